"""The admin port: health, statistics and metrics, on a port and in a thread of their own."""

from app.admin.answers import ADMIN_PROBLEMS, problem_document
from app.admin.application import Watched, create_admin, create_probes
from app.admin.edge_metrics import EdgeCollector
from app.admin.history import History
from app.admin.ingest_loop import IngestLoop, LoopCollector
from app.admin.limit_metrics import LimitCollector
from app.admin.replay import ReplayAt
from app.admin.tail import Tail

__all__ = [
    "ADMIN_PROBLEMS",
    "EdgeCollector",
    "History",
    "IngestLoop",
    "LimitCollector",
    "LoopCollector",
    "ReplayAt",
    "Tail",
    "Watched",
    "create_admin",
    "create_probes",
    "problem_document",
]
