"""What jobs compute: pure functions from DataFrame to DataFrame, for clean topics and for dirty ones."""

from pipeline.transforms.clean_topic import (
    BASE_HEADER_BYTES,
    SESSION_HEADER_BYTES,
    archived,
    decoded,
    minute_of,
    per_minute,
    per_minute_named,
    routed_partition,
    sessions,
    unsigned,
)
from pipeline.transforms.dirty_topic import CONFLICT, ORIGINAL, REJECTED, named, sorted_out

__all__ = [
    "BASE_HEADER_BYTES",
    "CONFLICT",
    "ORIGINAL",
    "REJECTED",
    "SESSION_HEADER_BYTES",
    "archived",
    "decoded",
    "minute_of",
    "named",
    "per_minute",
    "per_minute_named",
    "routed_partition",
    "sessions",
    "sorted_out",
    "unsigned",
]
