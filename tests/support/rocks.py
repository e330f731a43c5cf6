"""Sizes of RocksDB for tests that want files, and many of them, from a few keys."""

from dedupe.storage.rocksdb.database import Tuning

SMALLEST = Tuning(
    write_buffer_bytes=64 * 1024,  # RocksDB takes no less
    meta_buffer_bytes=64 * 1024,
    cache_mib=1,
    files_bytes_max=2**30,
    wal_bytes_max=2**30,
)
