"""
One lane's RocksDB: its sizes, its options, and how it is opened, closed and deleted.

Three column families. `default` holds entries and nothing else, under FIFO compaction: whole files
are dropped, oldest first, and nothing is ever rewritten. `meta` is small, `sessions` has a row for each
client session; both are levelled and hold what must outlive any file. What is in them is
rocks_index's business.
"""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
"""Measured best with 8 merged per flush: larger memtables fall out of the processor's cache."""
META_BUFFER_BYTES_MAX = 4 * MIB
"""Every update rewrites the state (about 0.1 KB), so this is a flush every 40,000 updates."""
BUFFERS_MERGED = 8
"""Memtables per flushed file. An absent key asks every file's filter: fewer files, faster lookups."""
BUFFERS = BUFFERS_MERGED + 2
"""One to write to and one to spare, so that a flush never makes a write wait."""
FILE_BYTES_PER_KEY = 48
"""45 bytes measured without compression (16 key, 8 RocksDB's own, 16 value, 5 lengths, hash index,
filter and block index), 38 with LZ4. Too small a figure would drop files inside the window."""
FRONT_FILES_MIN = 6
"""With fewer files, RocksDB's own filters take less time than adding to a front and asking it."""
FRONT_KEYS_CHECKED = 65_536
"""Added between two looks at the number of files."""
FRONT_KEYS_SCANNED = 4_096
"""Read at once, at least, while a front is built: 2 to 4 ms. Fewer would not be worth a seek in each file."""
KEYS_A_RECORD_MAX = 2
"""An event of a client session may be known by its message id, too."""
BACKGROUND_JOBS = 2
FILES_BESIDE = 64
"""Open files of a lane that its disk bound does not count: some 20 small files that wait for their
merge, as many logs, those of `meta`, and a few of RocksDB's own."""
INFO_LOG_BYTES = MIB
INFO_LOGS_KEPT = 2

SECONDARY_KEYS_KEY = b"guards"
"""In `meta` since the first record with a second key."""

_META = "meta"
_SESSIONS = "sessions"
_NEVER = 2**31 - 1

# In RocksDB's words, which end with those of the C library.
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
    front_keys_checked: int = FRONT_KEYS_CHECKED
    front_keys_scanned: int = FRONT_KEYS_SCANNED

    @property
    def open_files_max(self) -> int:
        """
        How many files one lane has open at most. All are kept open: every lookup asks each of them.

        A flush merges BUFFERS_MERGED memtables into about half their size. Restarts leave smaller
        files, but what is smaller than a memtable is merged, see _fifo_options.
        """
        return KEYS_A_RECORD_MAX * self.files_bytes_max // self.write_buffer_bytes + FILES_BESIDE


def tuning_for(lane_bytes: int, keys_max: int) -> Tuning:
    """
    Divide one lane's memory and bound its disk.

    The memory is that of memtables and block cache. Filters and block indexes of the files come on
    top, 1.4 bytes a key: inside a cache smaller than they are, every lookup would read them anew. So
    does the front, 1.25 to 2.5 bytes a key, and 3.75 while the next one is built; and, once there are
    client sessions, a cache and two memtables of theirs as large as this one's cache and `meta`'s.

    The disk bound keeps every file that reaches into the window. FIFO drops the oldest file only
    when it and all newer ones exceed the bound. If it reaches into the window, they hold at most
    the window's keys (keys_max, and 1/64 more by the step table) and what else is in that file (at
    most BUFFERS memtables). So the bound is FILE_BYTES_PER_KEY for keys_max and 1/32, and BUFFERS
    memtables.
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

    It stays open as long as anything refers to one of its column family handles or iterators, an
    error's traceback included. So nobody keeps those in a variable; they live here until `close`.
    """

    def __init__(self, path: Path, tuning: Tuning, *, is_new: bool) -> None:
        """
        Open with exactly these sizes.

        They are passed for every column family: for one left out, the options of its last opening
        would come back from disk, block cache and all.

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
            self._bound_files()  # only now: a bound too small would drop files at once
        except Exception as err:
            with suppress(Exception):
                self.entries.close()
            translate(err, f"cannot open {path}")

    def note_secondary_keys(self) -> None:
        """Have room for a second key of each record from now on; raises what RocksDB raises."""
        if not self.has_secondary_keys:
            self.meta[SECONDARY_KEYS_KEY] = b""
            self.has_secondary_keys = True
            self._bound_files()

    def _bound_files(self) -> None:
        """Keep files enough for a window of records."""
        keys_a_record = KEYS_A_RECORD_MAX if self.has_secondary_keys else 1
        self.entries.set_options(_fifo_options(self.tuning, keys_a_record))

    def close(self) -> None:
        """
        Flush, and release files and lock; never raises.

        The flush (at most a lane's memtables, a second or two) leaves nothing in the WAL that the
        next opening would have to replay into a handful of small files. Other threads run meanwhile.
        """
        for error in self._close():
            structlog.get_logger(__name__).warning(
                "index was not flushed when closed", path=str(self.path), error=error
            )

    def abandon(self) -> None:
        """Release files and lock of what is about to be deleted, without a flush; never raises."""
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


def destroy(path: Path) -> None:
    """Delete a database. Raises IndexCorruptError, also if anybody has it open: then nothing is deleted."""
    if not path.exists():
        return
    try:
        Rdict.destroy(str(path), Options(raw_mode=True))  # takes the lock first
        if path.exists():
            shutil.rmtree(path)
    except Exception as err:
        raise IndexCorruptError(f"cannot delete {path}: {err}") from err


def translate(err: Exception, what: str) -> NoReturn:
    """
    Raise what a foreign error means; rocksdict knows only one class, so its words decide.

    What the machine lacks or forbids says nothing about the index: it is kept. That holds for a
    disk that fails to write, too: whatever did not get there, the next opening misses or detects.
    A block that cannot be *read* is corruption: the kernel has tried more than once, and every later
    lookup of its keys would fail again, for ever. The rebuilt files lie elsewhere.

    Raises:
        IndexUnavailableError: the lock is taken, or a condition of the machine.
        IndexCorruptError: anything else.
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

    Atomic flush stays off: it would flush single memtables. Without it the families still agree
    after a power cut, because with several of them RocksDB syncs every closed WAL before a flush
    becomes visible (DBImpl::FlushMemTableToOutputFile in db/db_impl/db_impl_compaction_flush.cc):
    what is in a file of one family, the other one finds in its own files or in a synced WAL.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(is_new)  # or a lost CURRENT file would look like a new database
    options.create_missing_column_families(is_new)
    options.set_paranoid_checks(True)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    # Otherwise 16 threads a family, even for one file: on busy processors, each is waited for. Whoever
    # opens holds the interpreter's lock meanwhile.
    options.set_max_file_opening_threads(1)
    options.set_max_total_wal_size(tuning.wal_bytes_max)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_keep_log_file_num(INFO_LOGS_KEPT)
    options.set_stats_dump_period_sec(0)
    if tuning.has_statistics:
        options.enable_statistics()
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
    options.set_disable_auto_compactions(True)  # until _fifo_options are set
    return options


def _fifo_options(tuning: Tuning, keys_a_record: int) -> dict[str, str]:
    """
    Options of `default` that can be set on an open database only.

    ttl: unless told otherwise, RocksDB drops FIFO files 30 days old by the local clock.
    allow_compaction: merges files smaller than a memtable, which restarts leave behind; whole
    flushes are larger and never rewritten.
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
    """Nearly every look is for one that is there; ordered, since the oldest are asked for, too."""
    options = _meta_options(tuning)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)
    table.set_block_cache(Cache(tuning.cache_mib * MIB))
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    return options
