"""
A lane's RocksDB: sizes and options, and how it is opened, closed and deleted.

It has three column families. `default` holds the entries, under FIFO compaction, which drops the oldest files
and rewrites none. `meta` is small, and `sessions` has a row for each client session; both use level
compaction. The modules format and sessions define the rows.
"""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
)

from dedupe.model.errors import IndexCorruptError, IndexUnavailableError

MIB = 1024 * 1024
WRITE_BUFFER_BYTES_MAX = 16 * MIB
"""Fastest with 8 memtables per flush: larger ones do not fit into the processor's cache."""
META_BUFFER_BYTES_MAX = 4 * MIB
"""Every update rewrites the state of 0.1 KB, so a flush follows every 40,000 updates."""
BUFFERS_MERGED = 8
"""Memtables per flushed file: fewer files make lookups of absent keys faster."""
BUFFERS = BUFFERS_MERGED + 2
"""One is written to and one is spare, so that no write waits for a flush."""
FILE_BYTES_PER_KEY = 48
"""45 bytes without compression (16 key, 8 RocksDB's own, 16 value, 5 lengths, hash index, filter and block
index), 38 with LZ4. A smaller value would drop files inside the window."""
FRONT_FILES_MIN = 6
"""With fewer files, RocksDB's own filters are faster than the Bloom filter cache."""
FRONT_KEYS_MIN = 65_536
"""Of fewer keys there are never so many files."""
FRONT_KEYS_SCANNED = 4_096
"""The keys of one step of a scan, 2 to 4 ms: each step costs a seek in every file."""
KEYS_A_RECORD_MAX = 2
"""An event of a client session may have a secondary key."""
BACKGROUND_JOBS = 2
FILES_BESIDE = 64
"""Open files of a lane beyond its disk bound: about 20 small files before their merge, as many WALs, those of
`meta`, and a few of RocksDB's own."""
INFO_LOG_BYTES = MIB
INFO_LOGS_KEPT = 2

SECONDARY_KEYS_KEY = b"guards"
"""A key in `meta`, present since the first record with a secondary key."""

_META = "meta"
_SESSIONS = "sessions"
_NEVER = 2**31 - 1

# Texts of RocksDB's errors, which end with those of the C library.
_LOCKED = ("lock hold by current process", "While lock file")
_READING = ("While pread", "While reading file")
_IO_ERROR = os.strerror(errno.EIO)
_OF_THE_MACHINE = [
    os.strerror(number)
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,  # a limit of this process, or of the file system
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
    )
]


_VERIFIED = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""
_RAW = '{"raw_mode":true,"prefix_extractors":{}}'


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes of one lane's RocksDB."""

    write_buffer_bytes: int
    meta_buffer_bytes: int
    cache_mib: int
    files_bytes_max: int
    wal_bytes_max: int
    has_statistics: bool = False  # costs a few percent; for tests
    front_files_min: int = FRONT_FILES_MIN
    front_keys_min: int = FRONT_KEYS_MIN
    front_keys_scanned: int = FRONT_KEYS_SCANNED

    @property
    def open_files_max(self) -> int:
        """
        The maximum number of open files of one lane; all files stay open, since lookups read each of them.

        A flush merges BUFFERS_MERGED memtables into about half their size. Restarts leave smaller files;
        those smaller than a memtable are merged, see _fifo_options.
        """
        return KEYS_A_RECORD_MAX * self.files_bytes_max // self.write_buffer_bytes + FILES_BESIDE


def tuning_for(lane_bytes: int, keys_max: int) -> Tuning:
    """
    Return the sizes of a lane's memtables, block cache and files.

    Not part of `lane_bytes` are: filters and block indexes of files, 1.4 bytes a key, which stay outside of
    the block cache, since every lookup reads them; the Bloom filter cache, 1.25 to 2.5 bytes a key, and 3.75
    while the next filter is built; and, with client sessions, a second cache and two more memtables.

    The disk bound keeps every file that reaches into the window. FIFO drops the oldest file when all files
    together exceed the bound. Files that reach into the window hold at most the window's keys (keys_max, and
    1/64 more because of the step table) and the other keys of the oldest file (at most BUFFERS memtables). So
    the bound is FILE_BYTES_PER_KEY for keys_max and 1/32 more, and BUFFERS memtables.

    Args:
        lane_bytes: the memory for memtables and block cache.
        keys_max: the number of newest keys that the lane remembers.
    """
    cache_mib = max(1, lane_bytes // 8 // MIB)
    meta_buffer_bytes = min(META_BUFFER_BYTES_MAX, lane_bytes // 32)
    left = lane_bytes - cache_mib * MIB - 2 * meta_buffer_bytes
    write_buffer_bytes = min(WRITE_BUFFER_BYTES_MAX, left // BUFFERS)
    return Tuning(
        write_buffer_bytes=write_buffer_bytes,
        meta_buffer_bytes=meta_buffer_bytes,
        cache_mib=cache_mib,
        files_bytes_max=FILE_BYTES_PER_KEY * (keys_max + keys_max // 32) + BUFFERS * write_buffer_bytes,
        wal_bytes_max=2 * lane_bytes,
    )


class Database:
    """
    An open RocksDB; not thread-safe.

    It stays open while a column family handle or an iterator is referenced, also by an error's traceback. So
    only this object holds handles, until `close`.
    """

    def __init__(self, path: Path, tuning: Tuning, *, is_new: bool) -> None:
        """
        Open with these sizes.

        Options are passed for every column family: RocksDB would load those of an omitted one from disk.

        Raises:
            IndexCorruptError, IndexUnavailableError: see `translate`.
        """
        self.path = path
        self.tuning = tuning
        families = {
            "default": _entries_options(tuning),
            _META: _meta_options(tuning),
            _SESSIONS: _sessions_options(tuning),
        }
        try:
            self.entries = Rdict(str(path), _options(tuning, is_new=is_new), column_families=families)
        except Exception as err:
            translate(err, f"cannot open {path}")
        try:
            self.meta = self.entries.get_column_family(_META)
            self.meta_handle: ColumnFamily | None = self.entries.get_column_family_handle(_META)
            self.sessions = self.entries.get_column_family(_SESSIONS)
            self.sessions_handle: ColumnFamily | None = self.entries.get_column_family_handle(_SESSIONS)
            self.has_secondary_keys = self.meta.get(SECONDARY_KEYS_KEY) is not None
            self._bound_files()  # after has_secondary_keys: too small a bound would drop files at once
        except Exception as err:
            with suppress(Exception):
                self.entries.close()
            translate(err, f"cannot open {path}")

    def note_secondary_keys(self) -> None:
        """Double the disk bound for secondary keys; raises RocksDB's errors."""
        if not self.has_secondary_keys:
            self.meta[SECONDARY_KEYS_KEY] = b""
            self.has_secondary_keys = True
            self._bound_files()

    def _bound_files(self) -> None:
        """Set the disk bound to a window of records."""
        keys_a_record = KEYS_A_RECORD_MAX if self.has_secondary_keys else 1
        self.entries.set_options(_fifo_options(self.tuning, keys_a_record))

    def close(self) -> None:
        """
        Flush, and release files and lock; never raises.

        The flush of at most a lane's memtables leaves an empty WAL, so that the next opening replays nothing.
        Other threads run meanwhile.
        """
        for error in self._close():
            structlog.get_logger(__name__).warning(
                "index was not flushed when closed", path=str(self.path), error=error
            )

    def abandon(self) -> None:
        """Release files and lock without a flush, before a deletion; never raises."""
        with suppress(Exception):
            self.entries.cancel_all_background(False)
        self._close()

    def _close(self) -> list[str]:
        self.meta_handle = self.sessions_handle = None
        errors = []
        for opened in (self.sessions, self.meta, self.entries):
            try:
                opened.close()
            except Exception as err:
                errors.append(str(err))
        return errors


def is_empty(path: Path) -> bool:
    """Whether there is nothing of a database. Raises as `translate` does."""
    try:
        return not path.exists() or next(path.iterdir(), None) is None
    except OSError as err:
        translate(err, f"cannot open {path}")


def destroy(path: Path) -> None:
    """Delete a database. Raises IndexCorruptError: it is open and nothing is deleted, or files remain."""
    if not path.exists():
        return
    try:
        Rdict.destroy(str(path), Options(raw_mode=True))  # acquires the lock first
        if path.exists():
            shutil.rmtree(path)
    except Exception as err:
        raise IndexCorruptError(f"cannot delete {path}: {err}") from err


def translate(err: Exception, what: str) -> NoReturn:
    """
    Raise the gateway's error for one of RocksDB; rocksdict has a single class, so the text decides.

    A condition of the machine does not mean that the index is damaged, nor does a failed write: the next
    opening detects what is missing. A block that cannot be read is corruption: the kernel has repeated the
    read, and later lookups of its keys would fail again. A rebuild writes other blocks.

    Raises:
        IndexUnavailableError: the database is locked, or a condition of the machine prevents access.
        IndexCorruptError: any other error.
    """
    text = str(err)
    if any(words in text for words in _LOCKED):
        raise IndexUnavailableError(
            f"{what}: it is locked by another process, or still open in this one"
        ) from err
    is_unreadable = _IO_ERROR in text and any(words in text for words in _READING)
    if not is_unreadable and any(words in text for words in _OF_THE_MACHINE):
        raise IndexUnavailableError(f"{what}: {text}") from err
    raise IndexCorruptError(f"{what}: {text}") from err


def _options(tuning: Tuning, *, is_new: bool) -> Options:
    """
    Options of the whole database.

    Atomic flush is off: it would flush single memtables. The families agree after a power cut without it:
    with several families, RocksDB syncs every closed WAL before a flush becomes visible
    (DBImpl::FlushMemTableToOutputFile in db/db_impl/db_impl_compaction_flush.cc).
    """
    options = _verified_options()
    options.create_if_missing(is_new)  # else a lost CURRENT file would look like a new database
    options.create_missing_column_families(is_new)
    options.set_paranoid_checks(True)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    # The default, 16 threads a family even for one file, is slow on busy processors, and the opening thread
    # holds Python's global lock meanwhile.
    options.set_max_file_opening_threads(1)
    options.set_max_total_wal_size(tuning.wal_bytes_max)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_keep_log_file_num(INFO_LOGS_KEPT)
    options.set_stats_dump_period_sec(0)
    if tuning.has_statistics:
        options.enable_statistics()
    return options


def _verified_options() -> Options:
    """
    Return options by which RocksDB notices that a synced write-ahead file was deleted or cut.

    rocksdict has no method for this one, but reads it from a file.
    """
    with TemporaryDirectory() as folder:
        Path(folder, "OPTIONS-000001").write_text(_VERIFIED)
        Path(folder, "rocksdict-config.json").write_text(_RAW)
        options, _ = Options.load_latest(folder)
    return options


def _entries_options(tuning: Tuning) -> Options:
    options = Options(raw_mode=True)
    options.optimize_for_point_lookup(tuning.cache_mib)  # 10-bit Bloom filters, hash index in blocks
    options.set_memtable_whole_key_filtering(True)
    options.set_write_buffer_size(tuning.write_buffer_bytes)
    options.set_min_write_buffer_number_to_merge(BUFFERS_MERGED)
    options.set_max_write_buffer_number(BUFFERS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_compaction_style(DBCompactionStyle.fifo())
    options.set_level_zero_slowdown_writes_trigger(_NEVER)  # FIFO keeps all files in level 0
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_disable_auto_compactions(True)  # enabled by _fifo_options
    return options


def _fifo_options(tuning: Tuning, keys_a_record: int) -> dict[str, str]:
    """
    Options of `default` that only an open database accepts.

    ttl: by default, RocksDB drops FIFO files that are 30 days old by the local clock.
    allow_compaction: merges files smaller than a memtable, which restarts leave; files of whole flushes are
    larger, and not rewritten.
    """
    files_bytes_max = keys_a_record * tuning.files_bytes_max
    fifo = f"{{max_table_files_size={files_bytes_max};allow_compaction=true}}"
    return {"ttl": "0", "compaction_options_fifo": fifo, "disable_auto_compactions": "false"}


def _meta_options(tuning: Tuning) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(tuning.meta_buffer_bytes)
    options.set_max_write_buffer_number(2)
    return options


def _sessions_options(tuning: Tuning) -> Options:
    """An ordered table, since the oldest sessions are read by order of use."""
    options = _meta_options(tuning)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(Cache(tuning.cache_mib * MIB))
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    return options
