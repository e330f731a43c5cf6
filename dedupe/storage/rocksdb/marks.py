"""
Files beside RocksDB's own, which say what is not known of an index, or wrong.

They outlive a process that ends before the index is checked or deleted.
"""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from dedupe.model.errors import IndexCorruptError, IndexDisprovedError
from dedupe.model.types import Offset

UNPROVED = "UNPROVED"
"""Offsets that recovery must still check, as a JSON array: the replay deletes the write-ahead log before."""

DISPROVED = "DISPROVED"
"""The log has disproved an entry: the index must be deleted."""


def unproved(path: Path) -> list[Offset]:
    """
    Return the offsets that the last unclean openings have noted.

    Raises:
        IndexCorruptError: the note is damaged.
        OSError: it cannot be read now.
    """
    try:
        noted = json.loads((path / UNPROVED).read_bytes())
        return [int(offset) for offset in noted]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise explained(err, f"the note of what is unproved in {path} cannot be read") from err
    except (ValueError, TypeError) as err:
        raise IndexCorruptError(f"the note of what is unproved in {path} is damaged: {err}") from err


def note_proved(path: Path) -> None:
    """Forget the noted offsets. Raises OSError."""
    (path / UNPROVED).unlink(missing_ok=True)


def note_unproved(path: Path, offsets: Sequence[Offset]) -> None:
    """Note offsets durably: what is replayed is deleted from the write-ahead log."""
    noted = unproved(path)
    added = [offset for offset in offsets if offset not in noted]
    if not added:
        return
    temporary = path / f"{UNPROVED}.new"
    with temporary.open("wb") as file:
        file.write(json.dumps([*noted, *added]).encode())
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / UNPROVED)
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def note_disproved(path: Path, lineage: bytes) -> None:
    """Note that the index of this lineage is wrong. Raises OSError."""
    (path / DISPROVED).write_bytes(lineage)


def check_not_disproved(path: Path) -> None:
    """Raise IndexDisprovedError if the index is noted to be wrong."""
    if (path / DISPROVED).exists():
        lineage = (path / DISPROVED).read_bytes()
        raise IndexDisprovedError(f"the log has disproved an entry of {path}", lineage=lineage)


def explained(err: OSError, what: str) -> OSError | IndexCorruptError:
    """Return the error of an access: a block that cannot be read will not be readable later either."""
    return IndexCorruptError(f"{what}: {err}") if err.errno == errno.EIO else err
