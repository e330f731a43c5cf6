"""How a job runs: its options, its Spark session, its stream with progress and stalls."""

from pipeline.runtime.checkpoint import Checkpoint, Reached, default_checkpoint
from pipeline.runtime.folder import Folder, refuse_foreign
from pipeline.runtime.session import DEBUG_VARIABLE, IcebergTable, catalog_conf, create_session
from pipeline.runtime.stages import stage_teller
from pipeline.runtime.stall import stalled_partitions
from pipeline.runtime.streams import StreamPlan, run_stream

__all__ = [
    "DEBUG_VARIABLE",
    "Checkpoint",
    "Folder",
    "IcebergTable",
    "Reached",
    "StreamPlan",
    "catalog_conf",
    "create_session",
    "default_checkpoint",
    "refuse_foreign",
    "run_stream",
    "stage_teller",
    "stalled_partitions",
]
