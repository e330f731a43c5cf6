"""Claim: changes of a key file leave all else in it as it was, and no file that a gateway could not use."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.auth.key_entries import read_key_file
from app.cli.commands import app
from app.cli.key_edits import KeyText, replace_file
from app.cli.keys import digest_of
from dedupe.model.errors import ConfigurationError

FILE = """\
# Keys of the shop.
- {key: web-key, source: web}  # in pages

# The phones.
- key: ios-key
  source: ios
  quotas:
    events: 100
    # as agreed
    bytes: 1MiB
  scopes: [ingest]
# The end.
"""
NESTED = (
    "defaults:\n  requests: 5\nkeys:\n  - key: web-key\n    source: web\n  - key: ios-key\n    source: ios"
)
FLOW = '[{"key": "web-key", "source": "web"}, {"key": "ios-key", "source": "ios", "enabled": true}]'


def run(file: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["keys", *arguments, "--file", str(file)])
    assert done.exit_code == code, done.output
    return done.stdout


def sources(file: Path) -> list[tuple[str, bool]]:
    return [(entry.source, entry.enabled) for entry in read_key_file(file).entries.values()]


@pytest.fixture(params=["keys.yaml", "nested.yaml", "flow.yaml", "keys.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    path.write_text({"keys.yaml": FILE, "nested.yaml": NESTED}.get(path.name, FLOW))
    return path


def test_key_is_added_and_is_the_one_that_was_printed(file: Path) -> None:
    written = run(file, "add", "--source", "tv", "--name", "Télé", "--scope", "replay").strip()
    contents = read_key_file(file)
    entry = contents.entries[bytes.fromhex(digest_of(written))]
    assert (entry.source, entry.name, entry.scopes) == ("tv", "Télé", ["replay"])
    assert written not in file.read_text()
    assert sources(file) == [("web", True), ("ios", True), ("tv", True)]
    assert ("requests" in file.read_text()) == (file.name == "nested.yaml")


def test_key_is_replaced_with_all_that_it_may(file: Path) -> None:
    before = read_key_file(file).entries[bytes.fromhex(digest_of("ios-key"))]
    written = run(file, "rotate", "ios").strip()
    after = read_key_file(file).entries[bytes.fromhex(digest_of(written))]
    assert (after.source, after.quotas, after.scopes) == ("ios", before.quotas, before.scopes)
    assert sources(file) == [("web", True), ("ios", True)]
    run(file, "rotate", "ios", "--keep")
    assert sources(file) == [("web", True), ("ios", True), ("ios", True)]
    run(file, "rotate", "tv", code=2)


def test_keys_are_removed_or_end_at_once(file: Path) -> None:
    run(file, "remove", digest_of("web-key")[:8], "--now")
    assert sorted(sources(file)) == [("ios", True), ("web", False)]
    run(file, "remove", "web")
    assert sources(file) == [("ios", True)]
    before = file.read_text()
    run(file, "remove", "ios", code=2)
    run(file, "remove", "tv", code=2)
    run(file, "remove", digest_of("ios-key")[:5], code=2)
    assert file.read_text() == before


def test_comments_stay_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(FILE)
    run(path, "remove", "web")
    assert path.read_text() == "# Keys of the shop.\n" + FILE[FILE.index("\n# The phones") :]
    path.write_text(FILE)
    run(path, "add", "--source", "tv")
    head, tail = path.read_text().split("- key_sha256: ")
    assert head == FILE.removesuffix("# The end.\n")
    assert tail.endswith("\n  source: tv\n# The end.\n")


def test_file_that_no_gateway_could_use_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(FILE)
    with pytest.raises(ConfigurationError, match="once changed: there is no key in it"):
        replace_file(path, "[]")
    assert (path.read_text(), os.listdir(tmp_path)) == (FILE, ["keys.yaml"])
    path.write_text("- {key: a}")
    with pytest.raises(ConfigurationError, match="source"):
        KeyText(path)


def test_link_and_mode_of_a_file_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target.yaml", tmp_path / "keys.yaml"
    target.write_text(FILE)
    target.chmod(0o640)
    link.symlink_to(target)
    run(link, "add", "--source", "tv")
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert len(sources(target)) == 3


def test_patch_of_a_secret_is_printed_where_the_file_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "write-keys.yaml"
    path.write_text(FILE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("app.cli.key_edits.NamedTemporaryFile", refuse)
    command, written = run(path, "add", "--source", "tv").splitlines()
    patch = json.loads(command.partition(" -p ")[2].strip("'"))
    entries: Sequence[dict[str, object]] = yaml.safe_load(patch["stringData"]["write-keys.yaml"])
    assert entries[-1] == {"key_sha256": digest_of(written), "source": "tv"}
    assert path.read_text() == FILE
