"""From a request to its answer: paths, JSON, identity of each event, receipts."""

from app.ingest.application import create_edge, create_refusal
from app.ingest.identify import MESSAGE_ID_INVALID, NOT_AN_OBJECT, EventLimits, Identifier
from app.ingest.routes.events import Ingest
from app.ingest.routes.paths import PATH_WORDS, PATHS

__all__ = [
    "MESSAGE_ID_INVALID",
    "NOT_AN_OBJECT",
    "PATHS",
    "PATH_WORDS",
    "EventLimits",
    "Identifier",
    "Ingest",
    "create_edge",
    "create_refusal",
]
