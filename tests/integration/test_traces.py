"""Traces: off they are not there; on they tell of requests and appends, and nothing of events or keys."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post

STRICT = {"Prefer": "handling=strict"}

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exports)
        self.bodies: list[bytes] = []

    def spans(self) -> list[dict[str, Any]]:
        return [
            {
                "name": span.name,
                "trace": span.trace_id.hex(),
                "parent": span.parent_span_id.hex(),
                "status": span.status.code,
            }
            | {
                each.key: each.value.string_value or each.value.int_value
                for each in (*resource.resource.attributes, *span.attributes)
            }
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Exports(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        try:
            yield server
        finally:
            server.shutdown()


def traced_to(port: int) -> dict[str, str]:
    return {
        "GATEWAY_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }


def test_requests_and_appends_leave_spans_without_content_or_keys(tmp_path: Path) -> None:
    with collector() as spans:
        settings = traced_to(spans.server_port) | {"GATEWAY_PARTITIONS": "1", "GATEWAY_WORKER_ID": "one"}
        with Gateway(tmp_path, settings) as gateway:
            with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
                client.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
                event = new_event(event="Secret name")
                request_id = post(client, "/v1/batch?writeKey=web", {"batch": [event]}).headers[
                    "Gateway-Request-Id"
                ]
                post(client, "/v1/batch", {"batch": [event]})
                del client.headers["traceparent"]
                assert client.post("/v1/batch", content=b"{", headers=STRICT).status_code == 400
                client.get("/health")
            gateway.stop()
        requests = [span for span in spans.spans() if "http.route" in span]
        (append,) = [span for span in spans.spans() if "messaging.system" in span]

    assert [(one["name"], one["trace"] == TRACE, one["http.response.status_code"]) for one in requests] == [
        ("POST /v1/batch", True, 200),
        ("POST /v1/batch", True, 200),
        ("POST /v1/batch", False, 400),
    ]
    assert [one["parent"] for one in requests] == [PARENT, PARENT, ""]
    assert [(one.get("gateway.accepted"), one.get("gateway.duplicates")) for one in requests[:2]] == [
        (1, 0),
        (0, 1),
    ]
    assert requests[0]["gateway.request_id"] == request_id
    assert (append["name"], append["messaging.system"]) == ("send events", "sqlite")
    assert (append["messaging.batch.message_count"], append["messaging.destination.partition.id"]) == (1, "0")
    assert {(one["service.name"], one["service.instance.id"]) for one in (*requests, append)} == {
        ("gateway", "one")
    }
    sent = b"".join(spans.bodies)
    for secret in (b"Secret", event["messageId"].encode(), b"web", b"127.0.0.1", b"writeKey"):
        assert secret not in sent, secret


def test_collector_that_is_gone_costs_nobody_an_answer_or_an_end(tmp_path: Path) -> None:
    with Gateway(tmp_path, traced_to(1)) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            post(client, "/v1/batch", {"batch": [new_event()]})
        gateway.stop()
    assert gateway.process.returncode == 0


@pytest.mark.parametrize(("settings", "is_loaded"), [("", False), ("GATEWAY_TRACES=1", True)])
def test_packages_are_loaded_only_if_asked_for(settings: str, is_loaded: bool) -> None:
    code = (
        "import sys; from app.telemetry.traces import tracing\n"
        f"with tracing(is_on={is_loaded}, system='sqlite', instance='a'):\n"
        "    print('opentelemetry.sdk.trace' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(is_loaded)]


def test_lack_of_the_packages_is_told_in_a_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None\n"
        "from app.cli import main; sys.argv = ['gateway', 'serve']; main()"
    )
    gateway = Gateway(tmp_path, {"GATEWAY_TRACES": "true"})
    done = subprocess.run(
        [sys.executable, "-c", code], env=gateway.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "GATEWAY_TRACES needs packages of the extra otel" in done.stderr
    assert "Traceback" not in done.stderr
