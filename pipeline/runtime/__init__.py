"""How a job runs: its options, its Spark session, its stream with progress and stalls."""

from pipeline.runtime.session import IcebergTable, create_session
from pipeline.runtime.stall import stalled_partitions
from pipeline.runtime.streams import StreamPlan, default_checkpoint, run_stream

__all__ = [
    "IcebergTable",
    "StreamPlan",
    "create_session",
    "default_checkpoint",
    "run_stream",
    "stalled_partitions",
]
