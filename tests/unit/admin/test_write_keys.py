"""Claim: the list of write keys has each of them, or says how many it leaves out."""

import time
from pathlib import Path

import pytest

from app.admin import write_keys
from app.admin.write_keys import WriteKeysOfGroup
from app.auth.key_file import KeyFile
from app.auth.key_memory import KeyMemory
from app.auth.quotas import Quota, QuotaPolicy

POLICY = QuotaPolicy(Quota(), index_keys_max=1000, window_s=100, clock=time.monotonic)


def keys_of(folder: Path, numbers: range) -> KeyFile:
    path = folder / "keys.yaml"
    path.write_text("".join(f"- {{key: key-{number}, source: s{number}}}\n" for number in numbers))
    return KeyFile(path, POLICY, KeyMemory(folder, grace_s=60))


async def test_list_has_thousands_of_keys(tmp_path: Path) -> None:
    document = await WriteKeysOfGroup(keys_of(tmp_path, range(2_100)), None).read()
    assert {key["source"] for key in document["keys"]} == {f"s{number}" for number in range(2_100)}
    assert document["left_out"] == 0


async def test_list_that_is_cut_begins_with_the_keys_that_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of(tmp_path, range(5))
    keys = keys_of(tmp_path, range(4))
    monkeypatch.setattr(write_keys, "KEYS_MAX", 2)
    document = await WriteKeysOfGroup(keys, None).read()
    assert [(key["source"], key["state"]) for key in document["keys"]] == [
        ("s4", "removed"),
        ("s0", "enabled"),
    ]
    assert document["left_out"] == 3


async def test_without_a_key_file_there_is_none() -> None:
    assert await WriteKeysOfGroup(None, None).read() == {"keys": [], "left_out": 0, "silent": {}}
