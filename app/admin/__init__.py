"""What operators see: health, statistics, metrics, on a port and in a thread of their own."""

from app.admin.application import Watched, create_admin
from app.admin.edge_metrics import EdgeCollector
from app.admin.ingest_loop import IngestLoop
from app.admin.lane_metrics import LaneCollector

__all__ = ["EdgeCollector", "IngestLoop", "LaneCollector", "Watched", "create_admin"]
