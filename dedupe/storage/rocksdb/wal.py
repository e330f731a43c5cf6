"""
Checks a database's write-ahead log before RocksDB replays it.

RocksDB replays the files that it finds, and stops at damage, which leaves an older but whole database. It
does not notice a file that ends early at a record's border, as after a power cut, or that was deleted before
it was synced: later files are replayed behind the hole. Each record begins with its sequence number and count
(WriteBatch in db/write_batch.cc), so a hole between two records shows. A hole before the first record does
not, nor does a file of another index with the same numbers: recovery has to look up the record before the
first one of each file, see dedupe.partition.index_recovery.

Deleted files that were synced are detected by RocksDB itself, see dedupe.storage.rocksdb.database.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dedupe.model.errors import IndexCorruptError
from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import Offset
from dedupe.storage.index import WalFiles
from dedupe.storage.rocksdb.marks import explained, note_unproved

_BLOCK_BYTES = 32 * 1024
_FRAGMENT = struct.Struct("<IHB")  # checksum, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH = struct.Struct("<QI")  # sequence number, count
_PUT = 0x1  # into `default`; an update begins with its entries
_OFFSET = struct.Struct(">Q")
_HEAD_BYTES = 64
"""As much of a record as is kept: the batch's numbers, and its first row if that is an entry."""


def wal_files(path: Path) -> WalFiles:
    """Return the write-ahead files of a database, none if it does not exist. Raises OSError."""
    sizes = []
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                with suppress(FileNotFoundError):  # flushed meanwhile
                    sizes.append(entry.stat().st_size)
    return WalFiles(len(sizes), sum(sizes))


def check_wal(path: Path) -> None:
    """
    Check the write-ahead log of a closed database, and note what recovery has to prove.

    Raises:
        IndexCorruptError: it has a hole, or lies on a damaged disk.
        OSError: it cannot be read now.
    """
    first_offsets: list[Offset] = []
    following: int | None = None
    for place in wal_in_order(path):
        first_offset: Offset | None = None
        try:
            with place.open("rb") as file:
                for head, _ in _records(file):
                    sequence, count = _BATCH.unpack_from(head)
                    if first_offset is None:
                        first_offset = _first_offset(head)
                    if sequence != following is not None:
                        raise IndexCorruptError(
                            f"the write-ahead log of {path} has a hole: {place.name} begins a record at "
                            f"{sequence}, and the record before it ends at {following}"
                        )
                    following = sequence + count
        except OSError as err:
            raise explained(err, f"{place} cannot be read") from err
        if first_offset is not None:
            first_offsets.append(first_offset)
    note_unproved(path, first_offsets)


def wal_in_order(path: Path) -> list[Path]:
    """Return the write-ahead files, oldest first; others have no number for a name."""
    files = [file for file in path.glob("*.log") if file.stem.isdecimal()]
    return sorted(files, key=lambda file: int(file.stem))


def _records(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the first _HEAD_BYTES of each complete record of a write-ahead file, and where it ends."""
    unpack, head_bytes = _FRAGMENT.unpack_from, _HEAD_BYTES
    head = b""  # of the record that has begun
    has_begun = False
    block_at = 0
    while block := file.read(_BLOCK_BYTES):
        place, size = 0, len(block)
        while place + _FRAGMENT.size <= size:
            _, length, kind = unpack(block, place)
            start = place + _FRAGMENT.size
            place = start + length
            if place > size:
                return
            if kind in (_FULL, _FIRST):
                head, has_begun = block[start : min(place, start + head_bytes)], True
            elif kind in (_MIDDLE, _LAST) and has_begun:
                head += block[start : min(place, start + head_bytes - len(head))]
            else:  # zeros of a preallocated file, or damage, where RocksDB stops as well
                return
            if kind in (_FULL, _LAST):
                if len(head) < _BATCH.size:
                    return
                has_begun = False
                yield head, block_at + place
        block_at += size


def _first_offset(batch: bytes) -> Offset | None:
    """Return the offset of a batch's first row; None if that is no entry."""
    if len(batch) < _BATCH.size + 2 or batch[_BATCH.size] != _PUT:
        return None
    key_bytes = batch[_BATCH.size + 1]  # a varint, below 128 for every key of the family
    value_at = _BATCH.size + 2 + key_bytes + 1
    if key_bytes != KEY_BYTES or len(batch) < value_at + _OFFSET.size:
        return None
    (offset,) = _OFFSET.unpack_from(batch, value_at)
    return int(offset)
