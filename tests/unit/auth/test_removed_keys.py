"""
Claim: a key that vanishes from the file goes on into its own source for its grace, loudly, over restarts; a
disabled one and one that never was good do not.
"""

import asyncio
import hashlib
import itertools
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.auth import key_file
from app.auth.key_file import PREFIX_DIGITS, KeyFile
from app.auth.key_memory import FILE, KeyMemory, Remembered
from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import INGEST, REPLAY
from app.http.errors import DisabledWriteKeyError, InvalidWriteKeyError, ScopeMissingError
from tests.support.waiting import PATIENCE_S

POLICY = QuotaPolicy(Quota(), index_keys_max=1000, window_s=100, clock=time.monotonic)
GRACE_S = 3_600.0

A = "- {key: key-of-a, source: a, name: App A, scopes: [ingest, replay], quotas: {events: 5}}\n"
B = "- {key: key-of-b, source: b}\n"
B_ENDED = "- {key: key-of-b, source: b, enabled: false}\n"
C = "- {key: key-of-c, source: c}\n"
TOOL = "- {key: key-of-a-tool, source: a, scopes: [replay]}\n"


class SetClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Folder:
    """A key file and a data folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SetClock()
        self.file = path / "keys.yaml"

    def start(self, text: str | None = None, grace_s: float = GRACE_S) -> KeyFile:
        """Return the keys of a gateway that starts."""
        if text is not None:
            self.file.write_text(text)
        return KeyFile(self.file, POLICY, KeyMemory(self.path, grace_s=grace_s), self.clock)

    async def change(self, keys: KeyFile, text: str) -> None:
        """Change the file of a running gateway."""
        self.file.write_text(text)
        await keys._reload()

    @property
    def remembered(self) -> str:
        return (self.path / FILE).read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def answer(keys: KeyFile, write_key: str) -> str:
    """Return the source of a key, or why it is refused."""
    try:
        return keys.source_of(write_key).id
    except DisabledWriteKeyError:
        return "disabled"
    except InvalidWriteKeyError:
        return "unknown"


async def vanish(folder: Folder, *, is_down: bool) -> KeyFile:
    """Let the key of A vanish, while the gateway is down or running."""
    keys = folder.start(A + B)
    if is_down:
        return folder.start(B)
    await folder.change(keys, B)
    return keys


@pytest.mark.parametrize("is_down", [True, False])
async def test_vanished_key_goes_on_until_its_term_ends(folder: Folder, is_down: bool) -> None:
    with capture_logs() as lines:
        keys = await vanish(folder, is_down=is_down)
    assert answer(keys, "key-of-a") == "a"
    source = keys.source_of("key-of-a")
    assert source.name == "App A"
    assert source.allowance is not None
    assert source.allowance.quota.events == 5
    assert (keys.status.keys, keys.status.removed) == (1, 1)
    (line,) = [line for line in lines if "vanished" in line["event"]]
    assert (line["log_level"], line["sources"], line["keys"]) == ("warning", ["a"], 1)
    folder.clock.ms += round(GRACE_S * 1000) - 1
    keys = folder.start()
    assert answer(keys, "key-of-a") == "a"
    folder.clock.ms += 1
    assert answer(keys, "key-of-a") == "unknown"
    with capture_logs() as lines:
        assert keys.end_terms()
    assert "the grace of removed write keys is over" in lines[0]["event"]
    assert keys.status.removed == 0
    assert answer(folder.start(), "key-of-a") == "unknown"


@pytest.mark.parametrize("is_down", [True, False])
async def test_scope_replay_ends_at_once(folder: Folder, is_down: bool) -> None:
    keys = await vanish(folder, is_down=is_down)
    keys.source_of("key-of-a").check(INGEST)
    with pytest.raises(ScopeMissingError):
        keys.source_of("key-of-a").check(REPLAY)


async def test_key_that_comes_back_is_as_any_other(folder: Folder) -> None:
    keys = await vanish(folder, is_down=False)
    await folder.change(keys, A + B)
    keys.source_of("key-of-a").check(REPLAY)
    assert keys.status.removed == 0
    folder.clock.ms += round(GRACE_S * 2000)
    assert not keys.end_terms()
    assert answer(folder.start(), "key-of-a") == "a"
    await folder.change(keys, B)
    await folder.change(keys, B + "- {key: key-of-a, source: elsewhere}\n")
    assert answer(keys, "key-of-a") == "elsewhere"


async def test_second_change_does_not_prolong_the_term(folder: Folder) -> None:
    keys = await vanish(folder, is_down=False)
    folder.clock.ms += round(GRACE_S * 500)
    await folder.change(keys, B + C)
    keys = folder.start()
    folder.clock.ms += round(GRACE_S * 500)
    assert answer(keys, "key-of-a") == "unknown"


@pytest.mark.parametrize("is_down", [True, False])
async def test_disabled_key_ends_at_once_also_when_it_vanishes(folder: Folder, is_down: bool) -> None:
    keys = folder.start(A + B)
    await folder.change(keys, A + B_ENDED)
    assert answer(keys, "key-of-b") == "disabled"
    if is_down:
        keys = folder.start(A)
    else:
        await folder.change(keys, A)
    assert answer(keys, "key-of-b") == "unknown"


async def test_vanished_key_that_is_listed_as_disabled_ends_at_once(folder: Folder) -> None:
    keys = folder.start(A + B)
    await folder.change(keys, A)
    assert answer(keys, "key-of-b") == "b"
    await folder.change(keys, A + B_ENDED)
    assert answer(keys, "key-of-b") == "disabled"


async def test_key_of_a_tool_has_no_grace(folder: Folder) -> None:
    keys = folder.start(B + TOOL)
    await folder.change(keys, B)
    assert answer(keys, "key-of-a-tool") == "unknown"


@pytest.mark.parametrize("is_down", [True, False])
async def test_without_grace_a_vanished_key_is_unknown_at_once(folder: Folder, is_down: bool) -> None:
    keys = folder.start(A + B, grace_s=0)
    if is_down:
        keys = folder.start(B, grace_s=0)
    else:
        await folder.change(keys, B)
    assert answer(keys, "key-of-a") == "unknown"
    assert not (folder.path / FILE).exists()


def test_grace_that_is_switched_off_ends_what_is_remembered(folder: Folder) -> None:
    folder.start(A + B)
    folder.start(B)
    assert answer(folder.start(grace_s=0), "key-of-a") == "unknown"
    assert answer(folder.start(), "key-of-a") == "unknown"


def test_other_data_folder_knows_no_vanished_key(folder: Folder, tmp_path: Path) -> None:
    folder.start(A + B)
    (tmp_path / "other").mkdir()
    other = Folder(tmp_path / "other")
    assert answer(other.start(B), "key-of-a") == "unknown"


async def test_forgotten_key_stays_forgotten(folder: Folder) -> None:
    keys = folder.start(A + B + C)
    await folder.change(keys, C)
    prefixes = {known.source.id: prefix for prefix, known in keys.removed()}
    assert [known.source.id for known in await keys.forget("a")] == ["a"]
    assert answer(keys, "key-of-a") == "unknown"
    assert [known.source.id for known in await keys.forget(prefixes["b"].upper())] == ["b"]
    for name in ("a", "c", prefixes["b"], hashlib.sha256(b"key-of-c").hexdigest(), "", "0"):
        assert await keys.forget(name) == []
    keys = folder.start()
    assert [answer(keys, key) for key in ("key-of-a", "key-of-b", "key-of-c")] == ["unknown", "unknown", "c"]
    assert len(prefixes["b"]) == PREFIX_DIGITS


async def test_file_has_no_key_and_only_its_owner_reads_it(folder: Folder) -> None:
    keys = folder.start(A + B)
    await folder.change(keys, B)
    assert "key-of" not in folder.remembered
    assert {tuple(key) for key in json.loads(folder.remembered)["keys"]} == {
        ("key_sha256", "source", "name", "quota", "removed_ms")
    }
    assert os.stat(folder.path / FILE).st_mode & 0o077 == 0
    assert not list(folder.path.glob("*.new"))


@pytest.mark.parametrize("damage", ["", "{", '{"version":1}', '{"version":1,"keys":[{"key_sha256":"x"}]}'])
def test_damaged_memory_is_told_and_written_anew(folder: Folder, damage: str) -> None:
    folder.start(A + B)
    (folder.path / FILE).write_text(damage)
    with capture_logs() as lines:
        keys = folder.start(B)
    assert answer(keys, "key-of-a") == "unknown"
    assert [line["log_level"] for line in lines if "remembered write keys" in line["event"]] == ["error"]
    assert answer(folder.start(C), "key-of-b") == "b"


async def test_full_disk_is_told_once_and_tried_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = folder.start(A + B)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with capture_logs() as lines, monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        await folder.change(keys, B)
        assert not keys._is_stored
        await keys._store()
    assert [line["log_level"] for line in lines if "cannot be remembered" in line["event"]] == ["error"]
    assert answer(keys, "key-of-a") == "a"
    async with asyncio.timeout(PATIENCE_S):
        watching = asyncio.create_task(keys.watch(0.001))
        while not keys._is_stored:
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait([watching])
    assert json.loads(folder.remembered)["keys"][1]["removed_ms"] == folder.clock.ms


@pytest.mark.regression("A key that was forgotten came back when an older list was stored after it.")
async def test_later_list_of_keys_is_not_replaced_by_an_earlier_one(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await vanish(folder, is_down=False)
    store, waits, goes_on = KeyMemory.store, threading.Event(), threading.Event()

    def slow_at_first(memory: KeyMemory, known: dict[bytes, Remembered]) -> bool:
        if not waits.is_set():
            waits.set()
            goes_on.wait(0.2)
        return store(memory, known)

    monkeypatch.setattr(KeyMemory, "store", slow_at_first)
    changing = asyncio.create_task(folder.change(keys, B + C))
    while not waits.is_set():
        await asyncio.sleep(0.001)
    await keys.forget("a")
    goes_on.set()
    await changing
    assert answer(folder.start(), "key-of-a") == "unknown"


@pytest.mark.regression("A key file that changed all the time was never read.")
async def test_file_that_changes_all_the_time_is_read(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = itertools.count()
    monkeypatch.setattr(key_file, "signature_of", lambda _path: (next(changes), 0, 0))
    keys = folder.start(A + B)
    folder.file.write_text(A + B + C)
    watching = asyncio.create_task(keys.watch(0.0001))
    async with asyncio.timeout(PATIENCE_S):
        while answer(keys, "key-of-c") != "c":
            await asyncio.sleep(0.001)
    watching.cancel()
    await asyncio.wait([watching])
    assert next(changes) > key_file.LOOKS_MAX


async def test_clock_that_is_set_back_does_not_prolong_the_term(folder: Folder) -> None:
    await vanish(folder, is_down=False)
    folder.clock.ms -= 10 * round(GRACE_S * 1000)
    keys = folder.start()
    folder.clock.ms += round(GRACE_S * 1000)
    assert answer(keys, "key-of-a") == "unknown"


async def test_uses_and_refusals_are_counted_by_key(folder: Folder) -> None:
    keys = folder.start(A + B)
    for _ in range(3):
        keys.source_of("key-of-a")
    keys.note_refused("key-of-a")
    keys.note_refused("unknown")
    used, unused = (known for _, known in keys.items())
    assert (used.requests, used.refused, used.last_used_ms) == (3, 1, folder.clock.ms)
    assert (unused.requests, unused.last_used_ms) == (0, None)
    await folder.change(keys, B)
    assert [known.source.id for _, known in keys.items()] == ["a", "b"]
    assert used.requests == 0
    with capture_logs() as lines:
        keys.source_of("key-of-a")
        keys._reported_at -= 60
        keys._report_use()
        keys._reported_at -= 60
        keys._report_use()
    assert [(line["requests"], line["sources"]) for line in lines] == [(1, ["a"])]


STATE = st.sampled_from(["there", "ended", "away"])
STEP = st.tuples(STATE, STATE, STATE)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.tuples(STATE, STATE, STATE), st.booleans(), st.integers(0, 4_000)), max_size=8))
async def test_key_works_while_its_last_state_says_so(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[tuple[str, ...], bool, int]],
) -> None:
    """A model: when each key was last good, and whether it has ended since."""
    folder = Folder(tmp_path_factory.mktemp("history"))
    always = "- {key: always, source: always}\n"
    keys = folder.start(always)
    vanished: dict[str, int | None] = {}
    states = {"a": "never", "b": "never", "c": "never"}
    for wanted, is_restarted, passed_s in history:
        folder.clock.ms += passed_s * 1000
        for name, since in vanished.items():
            if since is not None and folder.clock.ms >= since + round(GRACE_S * 1000):
                states[name] = "never"
        text = always
        for name, state in zip("abc", wanted, strict=True):
            if state == "away":
                if states[name] == "there":
                    vanished[name] = folder.clock.ms
                    states[name] = "grace"
                elif states[name] == "ended":
                    states[name] = "never"
            else:
                states[name], vanished[name] = state, None
                text += f"- {{key: key-{name}, source: {name}, enabled: {str(state == 'there').lower()}}}\n"
        if is_restarted:
            keys = folder.start(text)
        else:
            await folder.change(keys, text)
        expected = {"there": True, "grace": True, "ended": False, "never": False}
        for name, state in states.items():
            assert (answer(keys, f"key-{name}") == name) is expected[state]
