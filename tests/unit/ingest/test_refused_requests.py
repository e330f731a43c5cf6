"""Claim: what is refused is counted under its reason and source; what was not stored is in the head."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Scope
from structlog.testing import capture_logs

from app.auth.key_file import KeyFile
from app.auth.quotas import Quota, QuotaPolicy
from app.http.body_memory import BodyMemory
from app.http.errors import BodyTimeoutError
from app.http.refusal_counts import RefusalCounts, Sender
from app.http.request_context import CONTEXT, begin_context
from app.http.request_middleware import RequestMiddleware
from dedupe.decide.admission import Admission
from dedupe.model.errors import LaneNotActiveError
from dedupe.submission import Outcomes
from tests.unit.ingest.test_edge import Decide, ScriptedRouter, accept, edge_over, failing, post

PIXEL = "/v1/pixel/track?writeKey=k&messageId=1&event=x"
AGENT = {"User-Agent": "analytics-python/2.4.0"}


def counts_of(edge: ASGIApp) -> RefusalCounts:
    """Return what an edge has refused."""
    return cast("RequestMiddleware", edge)._problems._refusals.counts


def basic(key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{key}:'.encode()).decode()}"} | AGENT


def keys_in(folder: Path, policy: QuotaPolicy) -> KeyFile:
    file = folder / "keys.json"
    keys = [{"key": "k", "source": "web", "quotas": {"requests": 1, "burst": 1}}]
    file.write_bytes(orjson.dumps(keys))
    return KeyFile(file, policy)


async def test_refusals_before_events_are_known_have_reason_source_and_library(tmp_path: Path) -> None:
    policy = QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=lambda: 0.0)
    edge = edge_over(ScriptedRouter(accept), write_keys=keys_in(tmp_path, policy))
    counts = counts_of(edge)
    assert (await post(edge, b'{"writeKey":"k","event":"x"}', **AGENT)).status_code == 200
    for _ in range(9):
        assert (await post(edge, b"{}", **basic("k"))).status_code == 429
    assert (await post(edge, b'{"writeKey":"k","event":"x"}', **AGENT)).status_code == 429
    assert (await post(edge, b"{}", **basic("gone"))).status_code == 401
    assert counts.by_sender == {
        Sender("quota_exceeded", 429, "web", "analytics-python"): 10,
        Sender("invalid_write_key", 401, "", "analytics-python"): 1,
    }
    assert counts.before_events == 11
    assert policy.refusals == {"requests": 10}
    assert policy.source_refusals == {("web", "requests"): 10}


async def test_refusal_of_known_events_is_no_refusal_of_unknown_ones() -> None:
    edge = edge_over(ScriptedRouter(failing(LaneNotActiveError("x"))))
    assert (await post(edge)).status_code == 503
    counts = counts_of(edge)
    assert (counts.by_code, counts.before_events) == ({"lane_not_active": 1}, 0)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/batch", PIXEL])
async def test_answers_say_how_many_events_were_not_stored_each_time(path: str) -> None:
    new, conflict = Admission.NEW, Admission.CONFLICT
    is_pixel = "pixel" in path
    first, again = [conflict, new], [conflict, Admission.DUPLICATE]
    told = []
    for admissions in (first, again):
        verdicts = admissions[:1] if is_pixel else admissions
        outcomes = Outcomes(verdicts, [3] * len(verdicts))
        edge = edge_over(ScriptedRouter(deciding(outcomes)))
        items = [{"messageId": "1", "type": "track"}, 5, {"messageId": "2", "type": "track"}]
        answer = await ask(edge, path, {"batch": items, "writeKey": "k"})
        assert answer.headers["access-control-expose-headers"].count("Gateway-Rejected") == 1
        told.append(answer.headers["gateway-rejected"])
    assert told == (["1", "1"] if is_pixel else ["2", "2"])


def deciding(outcomes: Outcomes) -> Decide:
    return lambda _events: outcomes


async def ask(edge: ASGIApp, path: str, document: Any) -> Any:
    transport = httpx.ASGITransport(edge, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        if "pixel" in path:
            return await client.get(path)
        return await client.post(path, content=orjson.dumps(document))


async def test_slow_link_is_counted_apart_and_its_wait_is_no_time_of_an_answer() -> None:
    registry = CollectorRegistry()
    edge = edge_over(ScriptedRouter(accept), registry)
    await send(edge, [(0.5, b'{"writeKey":"k",'), (0.0, b'"event":"x"}')])
    await send(edge, [(0.0, BodyTimeoutError())])
    seconds = registry.get_sample_value("gateway_http_request_duration_seconds_sum", {"route": "/v1/batch"})
    assert seconds is not None
    assert seconds < 0.45
    told = {"code": "body_timeout"}
    assert registry.get_sample_value("gateway_http_link_failures_total", told) == 1
    assert registry.get_sample_value("gateway_http_link_failures_total", {"code": "body_truncated"}) == 0
    answered = {"route": "/v1/batch", "code": "503"}
    assert registry.get_sample_value("gateway_http_requests_total", answered) == 1


async def test_unknown_clients_behind_a_proxy_are_counted_and_told_once() -> None:
    registry = CollectorRegistry()
    edge = edge_over(ScriptedRouter(accept), registry)
    with capture_logs() as lines:
        for _ in range(3):
            await send(edge, [(0.0, b'{"writeKey":"k","event":"x"}')], unknown_behind="10.0.0.1")
        await send(edge, [(0.0, b'{"writeKey":"k","event":"x"}')])
    assert registry.get_sample_value("gateway_http_unknown_clients_total") == 3
    assert [line["proxy"] for line in lines if "proxy" in line] == ["10.0.0.1"]


async def send(
    edge: ASGIApp, parts: list[tuple[float, bytes | Exception]], *, unknown_behind: str | None = None
) -> list[Message]:
    """Send a body in parts, each after seconds, or its failure; return what was answered."""
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/batch",
        "query_string": b"",
        "headers": [],
        "client": None if unknown_behind else ("203.0.113.7", 1),
    }
    context = begin_context(scope, BodyMemory(10_000))
    context.unknown_behind = unknown_behind
    assert scope[CONTEXT] is context
    left = list(parts)
    answered: list[Message] = []

    async def receive() -> Message:
        seconds, part = left.pop(0)
        await asyncio.sleep(seconds)
        if isinstance(part, Exception):
            raise part
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def answer(message: Message) -> None:
        answered.append(message)

    await edge(scope, receive, answer)
    return answered
