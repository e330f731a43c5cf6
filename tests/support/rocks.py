"""RocksDB for tests that want many files from a few keys, and know when its threads have done their work."""

import shutil
from pathlib import Path

from dedupe.storage.rocksdb.database import KEYS_A_RECORD_MAX, Tuning
from dedupe.storage.rocksdb.index import RocksIndex
from tests.support.waiting import until

SMALLEST = Tuning(
    write_buffer_bytes=64 * 1024,  # RocksDB takes no less
    meta_buffer_bytes=64 * 1024,
    cache_mib=1,
    files_bytes_max=2**30,
    wal_bytes_max=2**30,
)


def until_flushed_and_dropped(index: RocksIndex) -> None:
    """Wait until no flush is due and no file has to be dropped: until the next write, no entry leaves."""
    database = index._opened()
    keys_a_record = KEYS_A_RECORD_MAX if database.has_secondary_keys else 1
    bound_bytes = keys_a_record * database.tuning.files_bytes_max
    until(
        lambda: (
            not index.is_flushing
            and index._figure("rocksdb.live-sst-files-size") <= bound_bytes
            and not index.jobs
        )
    )


def copy_as_killed(index: RocksIndex, copy: Path) -> None:
    """
    Copy the folder of an open index as a killed process leaves it, and close the index.

    RocksDB's threads are stopped first, which would write and delete files under the copying.
    """
    index._opened().entries.cancel_all_background(True)
    shutil.copytree(index.path, copy)
    index.close()
