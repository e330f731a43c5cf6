"""Claim: a write-ahead log is judged by its records, in bounded memory, and a damaged disk is told."""

import errno
import io
import json
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.errors import IndexCorruptError
from dedupe.storage.rocksdb.marks import UNPROVED, unproved
from dedupe.storage.rocksdb.wal import _records, check_wal

BLOCK = 32 * 1024
PUT_HEAD = b"\x01\x10" + b"k" * 16 + b"\x10"
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def batch(sequence: int, count: int, offset: int, more: int = 0) -> bytes:
    """Return a batch whose first row is an entry, with some bytes behind it."""
    return struct.pack("<QI", sequence, count) + PUT_HEAD + struct.pack(">Q", offset) + bytes(8 + more)


def written(records: Sequence[bytes]) -> bytes:
    """Return a write-ahead file: records in fragments, none of which crosses a block's border."""
    out = bytearray()
    for record in records:
        at = 0
        while not at or at < len(record):
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += bytes(left)
                continue
            part = record[at : at + left - 7]
            is_last = at + len(part) == len(record)
            kind = (FULL if is_last else FIRST) if not at else (LAST if is_last else MIDDLE)
            if not part and not is_last:  # RocksDB writes an empty first fragment there
                out += struct.pack("<IHB", 0, 0, FIRST)
                rest = record[at : at + BLOCK - 7]
                is_last = len(rest) == len(record)
                out += struct.pack("<IHB", 0, len(rest), LAST if is_last else MIDDLE) + rest
                at = len(rest)
                continue
            out += struct.pack("<IHB", 0, len(part), kind) + part
            at += len(part)
    return bytes(out)


@given(st.lists(st.integers(0, 3 * BLOCK), max_size=8), st.integers(0, 2**16))
def test_every_whole_record_of_a_file_is_read_and_no_torn_one(sizes: list[int], cut: int) -> None:
    records = [batch(number, 1, number, size) for number, size in enumerate(sizes)]
    content = written(records)

    heads = [head for head, _ in _records(io.BytesIO(content))]
    cut_off = list(_records(io.BytesIO(content[:-cut])))
    padded = list(_records(io.BytesIO(content + bytes(100))))

    assert heads == [record[:64] for record in records]
    assert [head for head, _ in cut_off] == heads[: len(cut_off)]
    assert all(end <= len(content) - cut for _, end in cut_off) or not cut
    assert [head for head, _ in padded] == heads


@pytest.mark.regression("A write-ahead log with a block missing was taken as whole.")
def test_hole_is_told_and_what_is_before_the_first_record_is_noted(tmp_path: Path) -> None:
    (tmp_path / "000009.log").write_bytes(written([batch(7, 2, 70), batch(9, 3, 90)]))
    (tmp_path / "000010.log").write_bytes(written([batch(12, 1, 120)]))
    (tmp_path / "cleaner.log").write_text("not RocksDB's")

    check_wal(tmp_path)
    assert unproved(tmp_path) == [70, 120]

    (tmp_path / "000010.log").write_bytes(written([batch(13, 1, 130)]))
    with pytest.raises(IndexCorruptError, match="has a hole"):
        check_wal(tmp_path)


def test_large_file_is_checked_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "000009.log").write_bytes(written([batch(n, 1, n, 20_000) for n in range(400)]))

    tracemalloc.start()
    try:
        check_wal(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1024 * 1024


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_damaged_disk_means_a_rebuild_and_anything_else_another_try(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000009.log").write_bytes(written([batch(7, 2, 70)]))
    (tmp_path / UNPROVED).write_text(json.dumps([1]))

    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    expected = IndexCorruptError if number == errno.EIO else OSError

    with pytest.raises(expected):
        check_wal(tmp_path)
    with pytest.raises(expected):
        unproved(tmp_path)


@pytest.mark.parametrize("note", ["", "{", "5", '["a"]', "[null]"])
def test_damaged_note_is_told(note: str, tmp_path: Path) -> None:
    (tmp_path / UNPROVED).write_text(note)

    with pytest.raises(IndexCorruptError, match="damaged"):
        unproved(tmp_path)
