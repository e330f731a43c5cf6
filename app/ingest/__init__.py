"""From a request to its answer: paths, JSON, identity of each event, receipts."""

from app.ingest.application import create_edge, create_refusal
from app.ingest.event_limits import EventLimits
from app.ingest.identify import Identifier
from app.ingest.receipts import CODES, REASONS
from app.ingest.replay import READY, Replay, Result, body_of, judge, key_of, replay_by, result_of
from app.ingest.routes.events import Ingest
from app.ingest.routes.paths import PATH_WORDS, PATHS
from app.ingest.watching import Watcher

__all__ = [
    "CODES",
    "PATHS",
    "PATH_WORDS",
    "READY",
    "REASONS",
    "EventLimits",
    "Identifier",
    "Ingest",
    "Replay",
    "Result",
    "Watcher",
    "body_of",
    "create_edge",
    "create_refusal",
    "judge",
    "key_of",
    "replay_by",
    "result_of",
]
