"""Claim: only an enabled key of the file is let in, and no accident with the file takes a key away."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.auth import key_file
from app.auth.key_file import KeyFile
from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import INGEST, REPLAY, Source
from app.http.errors import InvalidWriteKeyError, QuotaExceededError, ScopeMissingError
from dedupe.file_signature import signature_of
from dedupe.model.errors import ConfigurationError
from tests.support.waiting import until_async

POLICY = QuotaPolicy(Quota(), index_keys_max=1000, window_s=100, clock=time.monotonic)

YAML = f"""
- key: plain-key
  source: web
  name: Web shop
- key_sha256: {hashlib.sha256(b"hashed-key").hexdigest().upper()}
  source: ios
- key: old-key
  source: web
  enabled: false
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.yaml", YAML),
        ("keys.yml", "keys:" + YAML.replace("\n", "\n  ")),
        (
            "keys.json",
            '{"keys": [{"key": "plain-key", "source": "web", "name": "Web shop"}, {"key_sha256": "'
            + hashlib.sha256(b"hashed-key").hexdigest()
            + '", "source": "ios"}, {"key": "old-key", "source": "web", "enabled": false}]}',
        ),
    ],
)
def test_key_file_is_read(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    keys = KeyFile(path, POLICY)
    assert len(keys) == 3
    assert keys.source_of("plain-key") == Source("web", "Web shop")
    assert keys.source_of("hashed-key") == Source("ios", "ios")
    for refused in ("old-key", "unknown", "plain-key ", "PLAIN-KEY"):
        with pytest.raises(InvalidWriteKeyError):
            keys.source_of(refused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- key: a\n  source: [", "is not valid YAML or JSON, line"),
        ("just text", "should be a valid list"),
        ("", "should be a valid list"),
        ("- key: s3cret", "entry 1, source: Field required"),
        ("- source: web", "entry 1: needs either key or key_sha256"),
        (
            f"- key: s3cret\n  key_sha256: {'a' * 64}\n  source: web",
            "entry 1: needs either key or key_sha256",
        ),
        (
            "- {key: a, source: web}\n- {key: 123, source: web}",
            "entry 2, key: Input should be a valid string",
        ),
        ("- {key: s3cret, source: web, enabled: 'no'}", "entry 1, enabled: Input should be a valid boolean"),
        ("- {key: s3cret, source: web, enable: false}", "entry 1: it has a field that is none of key, "),
        ("- {key_sha256: s3cret, source: web}", "entry 1, key_sha256: "),
        ("- {key: '', source: web}", "entry 1, key: "),
        ("[]", "there is no key in it"),
        ("- {key: s3cret, source: a, quotas: {events: 0}}", "entry 1, quotas, events: "),
        ("- {key: s3cret, source: a, quotas: {bytes: many}}", "entry 1, quotas, bytes: must be a size"),
        ("- {key: s3cret, source: a, quotas: {index_share: 1.5}}", "entry 1, quotas, index_share: "),
        ("- {key: s3cret, source: a, quotas: {tokens: 1}}", "entry 1, quotas: it has a field"),
        ("- {key: s3cret, source: ''}", "entry 1, source: "),
        ("- {key: 's3cret:x', source: a}", "entry 1: its key has a colon"),
        ("- {key: s3cret, source: a, scopes: []}", "entry 1, scopes: "),
        (
            "- {key: s3cret, source: a, scopes: [admin]}",
            "entry 1, scopes, entry 1: Input should be 'ingest' or",
        ),
        (
            "- {key: s3cret, source: a}\n- {key: s3cret, source: b}",
            "entry 2 repeats the key of an earlier one",
        ),
        ("keys: [{key: s3cret, source: a}]\ndefaults: {events: 0}", "defaults, events: "),
        (
            "keys: [{key: s3cret, source: a}]\ndefault: {events: 1}",
            "it has a top-level field that is none of keys, defaults",
        ),
        ("keys: [{key: s3cret, source: a}]\ns3cret: 1", "it has a top-level field that is none of keys, "),
        ("{key: s3cret, source: a}", "it has a top-level field that is none of keys, defaults"),
        ("keys: [{key: s3cret, source: a}]\ndefaults: [5]", "defaults: "),
        (
            "keys: [{key: s3cret, source: a}]\ndefaults: {s3cret: 5}",
            "defaults: it has a field that is none of requests, events, bytes, burst, index_share",
        ),
    ],
)
def test_wrong_key_file_is_refused_in_one_sentence_without_keys(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        KeyFile(path, POLICY)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_scopes_of_a_key_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("- {key: a, source: web}\n- {key: b, source: web, scopes: [ingest, replay]}")
    keys = KeyFile(path, POLICY)
    keys.source_of("a").check(INGEST)
    with pytest.raises(ScopeMissingError):
        keys.source_of("a").check(REPLAY)
    assert keys.source_of("b").scopes == {INGEST, REPLAY}


def test_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        KeyFile(tmp_path / "keys.yaml", POLICY)


# ---- a file that changes

INTERVAL_S = 0.01
OLD, NEW = "- {key: old, source: a}\n", "- {key: new, source: a}\n"


def knows(keys: KeyFile, write_key: str) -> bool:
    try:
        keys.source_of(write_key)
    except InvalidWriteKeyError:
        return False
    return True


@asynccontextmanager
async def watched(path: Path, policy: QuotaPolicy = POLICY) -> AsyncIterator[KeyFile]:
    keys = KeyFile(path, policy)
    task = asyncio.create_task(keys.watch(INTERVAL_S))
    try:
        yield keys
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def edit(path: Path) -> None:
    path.write_text(NEW)


def rename_over(path: Path) -> None:
    path.with_suffix(".tmp").write_text(NEW)
    path.with_suffix(".tmp").rename(path)


def keep_size_and_time(path: Path) -> None:
    before = path.stat()
    path.with_suffix(".tmp").write_text(NEW)
    os.utime(path.with_suffix(".tmp"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_suffix(".tmp").rename(path)


@pytest.mark.parametrize("change", [edit, rename_over, keep_size_and_time])
async def test_changed_file_is_used(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(OLD)
    async with watched(path) as keys:
        assert knows(keys, "old")
        change(path)
        await until_async(lambda: knows(keys, "new"))
        assert not knows(keys, "old")
        assert keys.status.is_stale is False
        assert keys.status.failures == 0


async def test_swapped_directory_link_is_followed(tmp_path: Path) -> None:
    for version, text in (("..1", OLD), ("..2", NEW)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    async with watched(tmp_path / "keys.yaml") as keys:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await until_async(lambda: knows(keys, "new"))


@pytest.mark.parametrize("damage", ["- {key: new, sou", "", "[]", None])
async def test_damaged_file_keeps_the_previous_keys_loudly_and_once(
    damage: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(OLD)
    looks: list[Path] = []
    look = signature_of

    def noted_look(path: Path) -> tuple[int, ...] | None:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(key_file, "signature_of", noted_look)
    async with watched(path) as keys:
        if damage is None:
            path.unlink()
        else:
            path.write_text(damage)
        await until_async(lambda: keys.status.is_stale)
        enough = len(looks) + 5
        await until_async(lambda: len(looks) >= enough)
        assert knows(keys, "old")
        assert keys.status.failures == 1
        assert capsys.readouterr().out.count("write keys not reloaded") == 1
        path.write_text(NEW)
        await until_async(lambda: knows(keys, "new"))
        assert not keys.status.is_stale


async def test_reload_leaves_used_up_quotas_used_up(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    entry = "- {{key: old, source: a, name: {}, quotas: {{events: {}, burst: 1s}}}}\n"
    path.write_text(entry.format("one", 1))
    async with watched(
        path, QuotaPolicy(Quota(), index_keys_max=1000, window_s=1, clock=lambda: 0.0)
    ) as keys:
        allowance = keys.source_of("old").allowance
        assert allowance is not None
        allowance.take(events=1, size_bytes=0)
        path.write_text(entry.format("renamed", 1))
        await until_async(lambda: keys.source_of("old").name == "renamed")
        with pytest.raises(QuotaExceededError):
            keys.source_of("old").allowance.take(events=1, size_bytes=0)  # type: ignore[union-attr]
        path.write_text(entry.format("renamed", 2))
        await until_async(lambda: keys.source_of("old").allowance is not allowance)


def test_limits_of_an_entry_stand_before_the_default(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(
        "- {key: plain, source: a}\n"
        "- {key: own, source: a, quotas: {events: 5, bytes: 2MiB, burst: 1m, index_share: 0.5}}\n"
        "- {key: free, source: a, quotas: {requests: null}}\n"
    )
    default = Quota(requests=7)
    keys = KeyFile(path, QuotaPolicy(default, index_keys_max=1000, window_s=1, clock=time.monotonic))
    quotas = {
        name: allowance.quota for name in ("plain", "own") if (allowance := keys.source_of(name).allowance)
    }
    assert quotas["plain"] == default
    assert quotas["own"] == Quota(requests=7, events=5, bytes=2 * 1024**2, burst_s=60, index_share=0.5)
    assert keys.source_of("free").allowance is None


async def test_defaults_of_the_file_stand_between_an_entry_and_the_built_in_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    text = (
        "defaults: {{events: {}, bytes: null}}\n"
        "keys: [{{key: plain, source: a}}, {{key: own, source: b, quotas: {{events: 5, burst: 1m}}}}]\n"
    )
    path.write_text(text.format(7))
    built_in = Quota(requests=3, bytes=9)
    policy = QuotaPolicy(built_in, index_keys_max=1000, window_s=1, clock=time.monotonic)
    async with watched(path, policy) as keys:

        def quota_of(key: str) -> Quota | None:
            allowance = keys.source_of(key).allowance
            return allowance.quota if allowance else None

        assert quota_of("plain") == Quota(requests=3, events=7)
        assert quota_of("own") == Quota(requests=3, events=5, burst_s=60)
        path.write_text(text.format(8))
        await until_async(lambda: quota_of("plain") == Quota(requests=3, events=8))
        assert quota_of("own") == Quota(requests=3, events=5, burst_s=60)
