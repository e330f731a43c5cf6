"""Claim: every error has one stable answer that all SDKs understand, and tells nothing about the inside."""

import random

import orjson
import pytest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.http import errors as edge_errors
from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.errors import (
    BatchMissingError,
    BodyTimeoutError,
    BodyTooLargeError,
    InvalidJSONError,
    QuotaExceededError,
    RequestError,
    WriteKeyMissingError,
)
from app.http.problems import PROBLEMS, Problems
from app.http.request_context import CONTEXT, RequestContext
from dedupe.model import errors as core_errors
from dedupe.model.errors import (
    DiskFullError,
    GatewayError,
    IndexCorruptError,
    LaneNotActiveError,
    LaneSaturatedError,
    RecordsRefusedError,
    RetriableError,
)

STATUSES = {
    "bad_request": 400,
    "head_too_large": 400,
    "body_too_large": 400,
    "body_not_decompressable": 400,
    "unsupported_encoding": 400,
    "invalid_json": 400,
    "batch_missing": 400,
    "idempotency_key_invalid": 400,
    "fingerprints_invalid": 400,
    "session_fields_invalid": 400,
    "session_fields_conflict": 400,
    "session_unknown": 404,
    "write_key_missing": 400,
    "invalid_write_key": 401,
    "scope_missing": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "quota_exceeded": 429,
    "overloaded": 429,
    "unavailable": 503,
    "lane_not_active": 503,
    "disk_full": 503,
    "deadline_exceeded": 503,
    "not_appended": 503,
    "outcome_unknown": 503,
    "fenced": 503,
    "index_unavailable": 503,
    "body_timeout": 503,
    "body_truncated": 503,
    "memory_full": 503,
    "too_many_connections": 503,
    "internal": 503,
}


def problems(seed: int = 0) -> Problems:
    return Problems(retry_after_max=30, rng=random.Random(seed))


def classes(module: object) -> list[type[GatewayError]]:
    return [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, GatewayError)
    ]


def test_codes_and_statuses_are_stable() -> None:
    assert {code: int(problem.status) for code, problem in PROBLEMS.items()} == STATUSES


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in dict.fromkeys([*classes(core_errors), *classes(edge_errors)])
        if issubclass(kind, RetriableError | RequestError) and kind is not RecordsRefusedError
    ],
)
def test_every_error_a_client_can_see_has_its_answer(kind: type[GatewayError]) -> None:
    answer = problems().answer(kind("the inside of topic events"))
    assert answer.status_code == STATUSES[kind.code]
    body = orjson.loads(bytes(answer.body))
    assert list(body) == ["code", "message"]
    assert body["code"] == kind.code
    assert "events.quarantine" not in body["message"]
    assert "inside" not in body["message"]


def message_of(answer: Response) -> str:
    message: str = orjson.loads(bytes(answer.body))["message"]
    return message


@pytest.mark.parametrize("kind", [LaneNotActiveError, DiskFullError, InvalidJSONError, BatchMissingError])
def test_what_an_error_has_for_clients_stands_behind_its_own_text(kind: type[GatewayError]) -> None:
    err = kind("partition 3 of events", detail="since 12:34:56Z")
    assert message_of(problems().answer(err)) == f"{PROBLEMS[kind.code].message} (since 12:34:56Z)"


def test_limit_is_told_with_its_figure_unless_the_error_knows_better() -> None:
    figures = {"body_too_large": "at most 8 MiB"}
    answers = Problems(retry_after_max=30, rng=random.Random(0), figures=figures)
    assert message_of(answers.answer(BodyTooLargeError())).endswith(" (at most 8 MiB)")
    assert message_of(answers.answer(BodyTooLargeError(detail="9 MiB"))).endswith(" (9 MiB)")


def test_quota_that_is_used_up_is_named() -> None:
    assert "(events a second)" in message_of(problems().answer(QuotaExceededError("events", 1)))


def test_missing_write_key_is_told_where_it_may_stand() -> None:
    message = message_of(problems().answer(WriteKeyMissingError()))
    for place in ("Basic", "X-Write-Key", "query", "top level", "events"):
        assert place in message


def test_codes_of_the_edge_are_unique() -> None:
    own = [
        kind
        for kind in classes(edge_errors)
        if kind.__module__ == edge_errors.__name__ and "code" in vars(kind)
    ]
    assert len({kind.code for kind in own}) == len(own)
    assert not {kind.code for kind in own} & {kind.code for kind in classes(core_errors)}


@pytest.mark.parametrize("err", [LaneNotActiveError(), LaneSaturatedError(), BodyTimeoutError()])
def test_retry_after_is_jittered_within_its_bounds(err: GatewayError) -> None:
    source = problems()
    seconds = {int(source.answer(err).headers["Retry-After"]) for _ in range(1000)}
    assert seconds == set(range(1, 31))


def test_final_answers_have_no_retry_after() -> None:
    assert "Retry-After" not in problems().answer(RequestError()).headers


def test_body_timeout_closes_the_connection() -> None:
    assert problems().answer(BodyTimeoutError()).headers["Connection"] == "close"
    assert "Connection" not in problems().answer(LaneNotActiveError()).headers


def test_error_without_an_answer_of_its_own_is_unforeseen(capsys: pytest.CaptureFixture[str]) -> None:
    answer = problems().answer(IndexCorruptError("partition 3"))
    assert answer.status_code == 503
    assert orjson.loads(bytes(answer.body))["code"] == "internal"


@pytest.mark.regression("An error that nobody foresaw cost a refusal its answer.")
def test_unforeseen_error_is_logged_with_the_request_id_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    watched = problems()
    watched.watch(lambda code, scope: told.append(code))
    answer = watched.unforeseen(
        KeyError("x"), {CONTEXT: RequestContext(MemoryReservation(BodyMemory(0)), request_id="a-request-id")}
    )
    assert answer.status_code == 503
    assert told == ["internal"]
    assert "Retry-After" in answer.headers
    output = capsys.readouterr()
    assert "a-request-id" in output.out + output.err


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (405, "method_not_allowed"), (400, "bad_request"), (422, "bad_request")],
)
def test_refusals_of_the_framework_look_the_same(status: int, code: str) -> None:
    answer = problems().http(HTTPException(status, "detail", {"Allow": "POST"}))
    assert orjson.loads(bytes(answer.body))["code"] == code
    assert answer.status_code == STATUSES[code]
    assert answer.headers["Allow"] == "POST"
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("wait_s", "told"),
    [
        (0.0, {1, 2}),
        (0.2, {1, 2}),
        (7.01, {8, 9, 10}),
        (100, set(range(100, 126))),
        (9e9, set(range(240, 301))),
    ],
)
def test_retry_after_of_a_quota_is_the_true_wait_with_jitter(wait_s: float, told: set[int]) -> None:
    source = problems()
    answers = [source.answer(QuotaExceededError("events", wait_s)) for _ in range(1_000)]
    assert {answer.status_code for answer in answers} == {429}
    assert {int(answer.headers["Retry-After"]) for answer in answers} == told
