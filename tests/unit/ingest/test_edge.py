"""Claim: whatever happens behind a route, the client gets one of the contract's answers, CORS included."""

import asyncio
import contextlib
import gc
import gzip
import random
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Scope
from structlog.testing import capture_logs

from app.auth.key_file import KeyFile
from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import OpenKeys, WriteKeys
from app.http.body import BodyLimits
from app.http.body_memory import BodyMemory
from app.http.penalties import Penalties
from app.http.problems import Problems
from app.http.refusal_counts import RefusalCounts
from app.http.refusal_log import RefusalLog
from app.http.request_metrics import RequestMetrics
from app.ingest import large_json
from app.ingest.application import create_edge
from app.ingest.decision_observer import DecisionObserver
from app.ingest.event_limits import EventLimits
from app.ingest.identify import Identifier
from app.ingest.payload import Payload
from app.ingest.routes.events import Ingest
from app.ingest.routes.paths import PATH_WORDS
from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline, SystemClock
from dedupe.model.errors import (
    DeadlineExceededError,
    DiskFullError,
    GatewayError,
    LaneNotActiveError,
    LaneSaturatedError,
    OutcomeUnknownError,
)
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Event, Topic
from dedupe.router import Router
from dedupe.submission import Outcomes
from tests.unit.ingest.test_large_json import noting

IDENTITY = Identity(b"a secret of 24 bytes....")
QUARANTINE = Quarantine(IDENTITY, Topic("q", 1))
Decide = Callable[[Sequence[Event]], Outcomes]


class ScriptedRouter(Router):
    """A router without lanes, whose outcomes the test decides."""

    def __init__(self, decide: Decide) -> None:
        super().__init__([], [], QUARANTINE)
        self.decide = decide
        self.is_hanging = False
        self.is_asked = asyncio.Event()

    async def submit(
        self,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
        has_several_sources: bool = False,
    ) -> Outcomes:
        self.is_asked.set()
        if self.is_hanging:
            await asyncio.Event().wait()
        return self.decide(events)


def accept(events: Sequence[Event]) -> Outcomes:
    return Outcomes([Admission.NEW] * len(events), list(range(len(events))))


def failing(err: Exception) -> Decide:
    def decide(_events: Sequence[Event]) -> Outcomes:
        raise err

    return decide


OPEN_KEYS = OpenKeys(QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=time.monotonic))


def edge_over(
    router: Router,
    registry: CollectorRegistry | None = None,
    write_keys: WriteKeys = OPEN_KEYS,
    *,
    gives_advice: bool = False,
    memory: BodyMemory | None = None,
    penalty_s: float = 0.0,
    body_bytes_max: int = 100_000,
    observer: DecisionObserver | None = None,
) -> ASGIApp:
    ingest = Ingest(
        router=router,
        identifier=Identifier(IDENTITY, 8, QUARANTINE, EventLimits(10_000, 32, 100_000)),
        write_keys=write_keys,
        clock=SystemClock(),
        body_limits=BodyLimits(bytes_max=body_bytes_max, compressed_bytes_max=10_000),
        request_events_max=100,
        answer_timeout_s=5,
        gives_advice=gives_advice,
        observer=observer,
        penalties=Penalties(penalty_s),
    )
    counts = RefusalCounts()
    metrics = RequestMetrics(counts)
    if registry is not None:
        registry.register(metrics)
    return create_edge(
        ingest,
        memory=memory or BodyMemory(1_000_000),
        problems=Problems(
            retry_after_max=30, rng=random.Random(0), refusals=RefusalLog(PATH_WORDS, counts=counts)
        ),
        metrics=metrics,
    )


async def post(
    app: ASGIApp, body: bytes = b'{"messageId":"1","writeKey":"k"}', **headers: str
) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.post("/v1/events", content=body, headers=headers)


@pytest.mark.parametrize(
    ("err", "status", "code"),
    [
        (LaneNotActiveError("x"), 503, "lane_not_active"),
        (LaneSaturatedError("x"), 429, "overloaded"),
        (DiskFullError("x"), 503, "disk_full"),
        (DeadlineExceededError("x"), 503, "deadline_exceeded"),
        (OutcomeUnknownError("x"), 503, "outcome_unknown"),
        (KeyError("s3cret payload"), 503, "internal"),
        (RecursionError(), 503, "internal"),
    ],
)
async def test_errors_of_the_core_become_answers(
    err: Exception, status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = await post(edge_over(ScriptedRouter(failing(err))), Origin="https://shop.example")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert list(answer.json()) == ["code", "message"]
    assert 1 <= int(answer.headers["Retry-After"]) <= 30
    assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert "s3cret" not in answer.text
    if code == "internal":
        assert answer.headers["Gateway-Request-Id"] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("err", "body", "status"),
    [
        (None, b'{"messageId":"1","writeKey":"k"}', 200),
        (None, b'{"batch":[],"writeKey":"k"}', 200),
        (None, b'{"messageId":"1","writeKey":"k","client":""}', 400),
        (LaneSaturatedError("x"), b'{"messageId":"1","writeKey":"k"}', 429),
        (OutcomeUnknownError("x"), b'{"messageId":"1","writeKey":"k"}', 503),
        (KeyError("x"), b'{"messageId":"1","writeKey":"k"}', 503),
    ],
)
async def test_every_answer_of_the_native_path_names_its_source_by_a_hash(
    err: Exception | None, body: bytes, status: int
) -> None:
    router = ScriptedRouter(accept if err is None else failing(err))
    answer = await post(edge_over(router), body)
    assert answer.status_code == status
    assert answer.headers["Gateway-Source"] == IDENTITY.source_hash("k").hex()
    assert "Gateway-Source" in answer.headers["Access-Control-Expose-Headers"]
    other = await post(edge_over(router), body.replace(b'"k"', b'"l"'))
    assert other.headers["Gateway-Source"] != answer.headers["Gateway-Source"]


@pytest.mark.parametrize(
    "body", [b'{"messageId":"1"}', b"{", b'{"messageId":"1","writeKey":"%b"}' % (b"k" * 999)]
)
async def test_an_answer_without_a_good_key_names_no_source(body: bytes) -> None:
    answer = await post(edge_over(ScriptedRouter(accept)), body)
    assert answer.status_code in (400, 401)
    assert "Gateway-Source" not in answer.headers
    assert "Gateway-Request-Id" in answer.headers


async def test_outcomes_become_receipts_in_order() -> None:
    new, repeat, duplicate, conflict, *_ = Admission
    outcomes = Outcomes([new, repeat, duplicate, conflict, new], [7, 7, 3, 3, 8])
    body = orjson.dumps([*({"messageId": str(n), "writeKey": "k"} for n in range(4)), 5, {"messageId": "4"}])
    answer = await post(edge_over(ScriptedRouter(lambda _events: outcomes)), body)
    document = answer.json()
    assert [(r["messageId"], r["offset"]) for r in document["receipts"]] == [
        ("0", 7),
        ("1", 7),
        ("2", 3),
        ("4", 8),
    ]
    assert [(r["index"], r["messageId"], r["code"]) for r in document["rejected"]] == [
        (3, "3", "conflict"),
        (4, None, "not_an_object"),
    ]
    assert (answer.headers["Gateway-Accepted"], answer.headers["Gateway-Duplicates"]) == ("2", "2")
    assert "Idempotent-Replayed" not in answer.headers


@pytest.mark.parametrize("gives_advice", [False, True])
async def test_advice_stands_in_answers_of_development_only_and_the_same_at_each_try(
    gives_advice: bool,
) -> None:
    app = edge_over(ScriptedRouter(accept), gives_advice=gives_advice)
    body = b'[{"messageId":"1","writeKey":"k","type":"trakc"},5]'
    first, again = [await post(app, body), await post(app, body)]
    assert first.content == again.content
    assert [found["index"] for found in first.json().get("warnings", [])] == [0] * gives_advice
    good = await post(app, b'{"messageId":"1","writeKey":"k","event":"Seen"}')
    assert list(good.json()) == ["success", "receipts"]


@pytest.mark.parametrize("request_id", ["7b3e9e2a-0c7e-4a53-8f6e-1f3d7a2b9c00", "lb.12345_6"])
async def test_request_id_of_the_client_leads_from_its_answer_to_the_log(request_id: str) -> None:
    with capture_logs() as lines:
        answer = await post(edge_over(ScriptedRouter(accept)), b"{", **{"X-Request-Id": request_id})
    assert answer.headers["Gateway-Request-Id"] == request_id
    (line,) = lines
    assert (line["code"], line["request_id"], line["path"]) == ("invalid_json", request_id, "/v1/events")


@pytest.mark.parametrize("request_id", ["", "short", "x" * 65, "a b c d e f", "a/b/c/d/e", "a;b;c;d;e"])
async def test_odd_request_id_is_replaced_by_one_that_leads_to_the_log(request_id: str) -> None:
    edge = edge_over(ScriptedRouter(failing(DiskFullError("x"))))
    with capture_logs() as lines:
        answer = await post(edge, b'{"messageId":"1","writeKey":"k"}', **{"X-Request-Id": request_id})
    assert answer.headers["Gateway-Request-Id"] not in ("", request_id)
    assert (lines[0]["request_id"], lines[0]["source"]) == (answer.headers["Gateway-Request-Id"], "k")


async def test_outage_of_the_log_reaches_the_client_in_one_sentence() -> None:
    err = LaneNotActiveError(
        "partition 3 of events is failed", detail="the log has not answered since 12:34:56Z"
    )
    answer = await post(edge_over(ScriptedRouter(failing(err))))
    message = "a partition is not served now; try again (the log has not answered since 12:34:56Z)"
    assert answer.json() == {"code": "lane_not_active", "message": message}


async def test_draining_gateway_tells_clients_to_leave() -> None:
    router = ScriptedRouter(accept)
    assert "Connection" not in (await post(edge_over(router))).headers
    router.is_draining = True
    assert (await post(edge_over(router))).headers["Connection"] == "close"


async def test_requests_are_counted_by_route_and_code() -> None:
    registry = CollectorRegistry()
    app = edge_over(ScriptedRouter(accept), registry)
    await post(app)
    await post(app, b"{")
    counted = {
        (
            code,
            registry.get_sample_value("gateway_http_requests_total", {"route": "/v1/events", "code": code}),
        )
        for code in ("200", "400")
    }
    assert counted == {("200", 1.0), ("400", 1.0)}
    assert (
        registry.get_sample_value("gateway_http_request_duration_seconds_count", {"route": "/v1/events"})
        == 2.0
    )


@pytest.mark.parametrize("err", [LaneNotActiveError("x"), LaneSaturatedError("x"), OutcomeUnknownError("x")])
async def test_pixel_answers_with_its_image_whatever_the_core_says(err: GatewayError) -> None:
    registry = CollectorRegistry()
    transport = httpx.ASGITransport(edge_over(ScriptedRouter(failing(err)), registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        with capture_logs() as lines:
            answer = await client.get("/pixel/v1/track?writeKey=k&event=Opened")
    assert [(line["code"], line["path"]) for line in lines] == [(err.code, "/pixel/v1/track")]
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/gif")
    labels = {"route": "/pixel/v1/{type}", "reason": err.code}
    assert registry.get_sample_value("gateway_http_discarded_total", labels) == 1.0


# ---- who sends, before what


def edge_with_keys(
    keys: str,
    folder: Path,
    registry: CollectorRegistry | None = None,
    *,
    decide: Decide = accept,
    **more: Any,
) -> ASGIApp:
    file = folder / "keys.yaml"
    file.write_text(keys)
    policy = QuotaPolicy(Quota(), index_keys_max=80, window_s=1, clock=lambda: 1.0)
    return edge_over(ScriptedRouter(decide), registry, write_keys=KeyFile(file, policy), **more)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic " + b64encode(b"unknown:").decode()},
        {"X-Write-Key": "unknown"},
        {"X-Write-Key": "gone"},
    ],
)
async def test_unknown_key_in_the_head_is_refused_before_the_body_is_read(
    headers: dict[str, str], tmp_path: Path
) -> None:
    app = edge_with_keys("- {key: known, source: a}\n- {key: gone, source: b, enabled: false}", tmp_path)
    scope = scope_of("/v1/events")
    scope["query_string"] = b""
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body is read")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_large_body_may_have_its_key_in_it_wherever_it_stands(tmp_path: Path) -> None:
    app = edge_with_keys(
        "- {key: known, source: a}", tmp_path, body_bytes_max=3_000_000, memory=BodyMemory(40_000_000)
    )
    events = b",".join(b'{"messageId":"%d","p":"%b"}' % (n, b"x" * 100_000) for n in range(25))
    for body in (
        b'{"writeKey":"known","batch":[%b]}' % events,
        b'{"batch":[%b],"writeKey":"known"}' % events,
        b'{"batch":[%b],"write\\u004bey":"known"}' % events,
        b'{"batch":[%b]}' % events.replace(b'"p"', b'"writeKey":"known","p"'),
    ):
        answer = await post(app, body)
        assert (answer.status_code, answer.headers["Gateway-Accepted"]) == (200, "0"), answer.text
        assert [one["code"] for one in answer.json()["rejected"]] == ["event_too_large"] * 25


async def test_large_body_with_a_wrong_key_or_none_is_refused_before_its_events_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = edge_with_keys(
        "- {key: known, source: a}", tmp_path, body_bytes_max=3_000_000, memory=BodyMemory(40_000_000)
    )
    parsed: list[bytes] = []
    monkeypatch.setattr(large_json, "read_document", noting(parsed))
    events = b",".join([b'{"messageId":"1","p":"%b"}' % (b"x" * 50_000)] * 50)
    for body, status, code in (
        (b'{"batch":[%b],"writeKey":"unknown"}' % events, 401, "invalid_write_key"),
        (b'{"batch":[%b]}' % events, 400, "write_key_missing"),
    ):
        answer = await post(app, body)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert sum(map(len, parsed)) < 100


async def test_large_body_is_charged_for_what_it_takes_while_it_is_parsed() -> None:
    memory = BodyMemory(8_000_000)
    app = edge_over(ScriptedRouter(accept), memory=memory, body_bytes_max=400_000)
    events = [{"messageId": str(n), "a": {"b": {"c": ["x" * 1_500]}}} for n in range(99)]

    answer = await post(app, orjson.dumps(events), authorization="Basic azo=")

    assert answer.json()["rejected"][0]["code"] == "request_too_large"
    assert memory.peak >= len(orjson.dumps(events)) + 99 * 6 * 64
    assert memory.used == 0


async def test_events_that_wait_for_their_commit_hold_their_memory() -> None:
    memory = BodyMemory(1_000_000)
    router = ScriptedRouter(accept)
    router.is_hanging = True
    body = orjson.dumps([{"messageId": str(n), "p": "x" * 300} for n in range(99)])
    waiting = asyncio.create_task(post(edge_over(router, memory=memory), body, **{"X-Write-Key": "k"}))
    await router.is_asked.wait()

    assert memory.used >= 99 * 300

    waiting.cancel()
    await asyncio.wait([waiting])
    assert memory.used == 0


@pytest.mark.regression("Refusals for want of memory were retried in a tight loop.")
async def test_refusal_for_want_of_memory_is_held_back() -> None:
    memory = BodyMemory(1_000)
    memory.add(None, 1_000)
    app = edge_over(ScriptedRouter(accept), memory=memory, penalty_s=3_600)
    asking = asyncio.create_task(post(app, b"{}", **{"Content-Length": "2"}))
    while not memory.refused:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()
    await asyncio.wait([asking])


async def test_bytes_quota_counts_what_is_stored(tmp_path: Path) -> None:
    app = edge_with_keys("- {key: known, source: a, quotas: {bytes: 700, burst: 100s}}", tmp_path)
    batch = {"batch": [{}] * 60, "context": {"a": "x" * 1_000}}
    assert len(orjson.dumps(batch)) < 2_000
    headers = {"X-Write-Key": "known"}
    assert (await post(app, orjson.dumps(batch), **headers)).status_code == 200  # 66 KB of 70
    assert (await post(app, orjson.dumps(batch), **headers)).status_code == 200  # beyond them: a debt
    answer = await post(app, b"{}", **headers)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


@pytest.mark.parametrize("is_own", [False, True], ids=["key of the request", "key of each event"])
async def test_rejected_events_have_a_quota_and_are_refused_whole(is_own: bool, tmp_path: Path) -> None:
    keys = "- {key: known, source: a, quotas: {bytes: 1000, burst: 4s}}"  # 250 a second, 1,000 at once
    submitted: list[int] = []

    def decide(events: Sequence[Event]) -> Outcomes:
        submitted.append(len(events))
        return Outcomes([Admission.NEW] * len(events), [0] * len(events))

    app = edge_with_keys(keys, tmp_path, decide=decide)
    named = {"writeKey": "known"} if is_own else {}
    headers = {} if is_own else {"X-Write-Key": "known"}
    bad, good = named | {"messageId": "x" * 300}, named | {"messageId": "m"}
    for body, status in (([bad], 200), ([bad, good], 429), ([good], 200)):
        assert (await post(app, orjson.dumps({"batch": body}), **headers)).status_code == status
    assert submitted == [0, 1]


@pytest.mark.parametrize("is_own", [False, True], ids=["key of the request", "key of each event"])
async def test_conflicts_are_a_debt_of_the_next_requests(is_own: bool, tmp_path: Path) -> None:
    keys = "- {key: known, source: a, quotas: {bytes: 1000, burst: 4s}}"
    app = edge_with_keys(keys, tmp_path, decide=lambda _events: Outcomes([Admission.CONFLICT], [0]))
    body = orjson.dumps({"batch": [{"messageId": "m", "writeKey": "known" if is_own else "other"}]})
    headers = {} if is_own else {"X-Write-Key": "known"}
    assert [(await post(app, body, **headers)).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(("admission", "status"), [(Admission.NEW, 429), (Admission.DUPLICATE, 200)])
async def test_new_events_alone_use_up_the_share_of_the_index(
    admission: Admission, status: int, tmp_path: Path
) -> None:
    keys = "- {key: known, source: a, quotas: {index_share: 1}}"  # 10 of 80 ids at once
    app = edge_with_keys(keys, tmp_path, decide=lambda _events: Outcomes([admission], [0]))
    for _ in range(10):
        assert (await post(app, b"{}", **{"X-Write-Key": "known"})).status_code == 200
    assert (await post(app, b"{}", **{"X-Write-Key": "known"})).status_code == status


async def test_refusal_for_want_of_quota_is_held_back_and_holds_no_memory(tmp_path: Path) -> None:
    memory = BodyMemory(1_000_000)
    keys = "- {key: known, source: a, quotas: {events: 1, burst: 1s}}"
    app = edge_with_keys(keys, tmp_path, memory=memory, penalty_s=3_600)
    body = gzip.compress(b'{"writeKey":"known","p":"%b"}' % (b"x" * 3_000))
    assert (await post(app, body, **{"Content-Encoding": "gzip"})).status_code == 200
    with capture_logs() as lines:
        asking = asyncio.create_task(post(app, body, **{"Content-Encoding": "gzip"}))
        while not asking.done() and "a write key has used up a quota" not in [
            line["event"] for line in lines
        ]:
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not asking.done()
    assert (memory.peak >= 3_000, memory.used) == (True, 0)
    assert [held for held in gc.get_objects() if isinstance(held, Payload) and "x" * 3_000 in str(held)] == []
    asking.cancel()
    await asyncio.wait([asking])


async def test_pixels_are_charged_for_their_query(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    keys = "- {key: known, source: a, quotas: {bytes: 1000, burst: 1s}}"
    transport = httpx.ASGITransport(edge_with_keys(keys, tmp_path, registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for _ in range(3):
            await client.get("/pixel/v1/track?writeKey=known&event=" + "x" * 900)
    labels = {"route": "/pixel/v1/{type}", "reason": "quota_exceeded"}
    assert registry.get_sample_value("gateway_http_discarded_total", labels) == 2.0


# ---- what httpx cannot do


def scope_of(path: str) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"writeKey=k",
        "root_path": "",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


async def run(app: ASGIApp, messages: list[dict[str, Any]], sent: list[Message]) -> None:
    remaining = iter(messages)

    async def receive() -> Message:
        return next(remaining)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of("/v1/events"), receive, send)


REQUEST = {"type": "http.request", "body": b'{"messageId":"1"}', "more_body": False}


async def test_handler_that_the_server_cancels_still_answers_503() -> None:
    router = ScriptedRouter(accept)
    router.is_hanging = True
    sent: list[Message] = []
    task = asyncio.create_task(run(edge_over(router), [REQUEST], sent))
    await router.is_asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[0]["status"] == 503
    assert orjson.loads(sent[1]["body"])["code"] == "outcome_unknown"
    assert b"retry-after" in dict(sent[0]["headers"])


async def test_client_that_leaves_is_counted_and_nothing_is_taken() -> None:
    registry = CollectorRegistry()
    taken: list[Event] = []

    def decide(events: Sequence[Event]) -> Outcomes:
        taken.extend(events)
        return accept(events)

    half = {"type": "http.request", "body": b'{"mess', "more_body": True}
    await run(edge_over(ScriptedRouter(decide), registry), [half, {"type": "http.disconnect"}], [])
    assert taken == []
    labels = {"route": "/v1/events", "code": "499"}
    assert registry.get_sample_value("gateway_http_requests_total", labels) == 1.0


class Watching:
    """A observer that is always on."""

    is_on = True

    def decided(self, *_: object) -> None:
        pass


@pytest.mark.regression("An idle connection of the tail held the events of requests that were over.")
@pytest.mark.parametrize("decide", [accept, failing(OutcomeUnknownError("x")), failing(KeyError("x"))])
async def test_events_that_were_watched_are_not_held_by_an_idle_connection(decide: Decide) -> None:
    scope = scope_of("/v1/events")  # uvicorn keeps it until the connection's next request
    sent: list[Message] = []

    async def receive() -> Message:
        return dict(REQUEST)

    async def send(message: Message) -> None:
        sent.append(message)

    app = edge_over(ScriptedRouter(decide), observer=Watching())
    with contextlib.suppress(KeyError):
        await app(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    held = list(scope.values())
    while held:
        value = held.pop()
        assert not isinstance(value, Event)
        if isinstance(value, list | tuple):
            held += value
