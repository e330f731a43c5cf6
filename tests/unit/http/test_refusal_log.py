"""Claim: a flood of refusals costs one line a code and interval, and a line leads to its request."""

from http import HTTPStatus

from starlette.types import Scope
from structlog.testing import capture_logs

from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.refusal_log import INTERVAL_S, RefusalLog
from app.http.request_context import CONTEXT, RequestContext
from app.ingest.routes.paths import PATH_WORDS

SCOPE: Scope = {
    "path": "/v1/batch",
    CONTEXT: RequestContext(MemoryReservation(BodyMemory(0)), request_id="id-1", source="web"),
}


def test_flood_of_one_code_is_one_line_and_its_number() -> None:
    now = 100.0
    refusals = RefusalLog(PATH_WORDS, clock=lambda: now)
    with capture_logs() as lines:
        for _ in range(1_000):
            refusals.note("invalid_json", HTTPStatus.BAD_REQUEST, detail="it is empty", scope=SCOPE)
        refusals.note("disk_full", 503, detail="", scope=SCOPE)
        now += INTERVAL_S
        refusals.note("invalid_json", 400, detail="", scope=SCOPE)
    assert [(line["code"], line["log_level"], line["more_since_last_line"]) for line in lines] == [
        ("invalid_json", "info", 0),
        ("disk_full", "warning", 0),
        ("invalid_json", "info", 999),
    ]
    assert {name: lines[0][name] for name in ("request_id", "path", "source", "told", "status")} == {
        "request_id": "id-1",
        "path": "/v1/batch",
        "source": "web",
        "told": "it is empty",
        "status": 400,
    }
    assert type(lines[0]["status"]) is int


def test_refusal_before_there_is_a_request_is_logged_too() -> None:
    with capture_logs() as lines:
        RefusalLog().note("head_too_large", 400, detail="", scope=None)
    assert (lines[0]["code"], lines[0]["request_id"]) == ("head_too_large", None)


def test_path_is_told_by_known_words_only() -> None:
    assert logged_path("/v1/v1/v1/batch") == "/v1/v1/v1/batch"
    assert logged_path("/v2/batch") == "/*/batch"
    assert logged_path("/v1/projects/a-secret/settings") == "/v1/projects/*/settings"
    assert logged_path("/" + "a\nb/" * 1_000) == "/*" * 8


def logged_path(path: str) -> object:
    """Return how a refused request's path is logged."""
    with capture_logs() as lines:
        RefusalLog(PATH_WORDS).note("not_found", 404, detail="", scope={"path": path})
    return lines[0]["path"]
