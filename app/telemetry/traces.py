"""
OpenTelemetry traces: a span for each request of the ingest port, and one for each append to the log.

GATEWAY_TRACES enables them. The packages are an extra, and imported only here. The usual `OTEL_*` variables
set the collector and the sampling. Spans have no contents of events, keys or addresses.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.request_context import CONTEXT, RequestContext
from app.settings.version import VERSION
from dedupe.model.errors import ConfigurationError
from dedupe.model.types import NewRecord, Offset
from dedupe.storage.log import LogStore, PartitionLog

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

FLUSH_S = 2.0
"""How long a process that ends waits for the collector to accept the last spans."""

COUNTS = {b"gateway-accepted": "gateway.accepted", b"gateway-duplicates": "gateway.duplicates"}
"""Headers of an answer that become attributes of its span."""


class Traces:
    """Wraps the ingest application and the log, so that they create spans."""

    def __init__(self, provider: "TracerProvider", system: str) -> None:
        """Create spans by a provider; `system` is the kind of the log: `kafka` or `sqlite`."""
        self._tracer = provider.get_tracer("gateway", VERSION)
        self._system = system

    def requests_of(self, app: ASGIApp) -> ASGIApp:
        """Return an ingest application whose requests create spans."""
        return _Requests(app, self._tracer)

    def appends_of(self, store: LogStore) -> LogStore:
        """Return a log whose appends create spans."""
        return cast(LogStore, _Store(store, self._tracer, self._system))


@contextmanager
def tracing(*, is_on: bool, system: str, instance: str) -> Iterator[Traces | None]:
    """
    Yield a Traces, or None; its last spans are sent when the context ends.

    Args:
        is_on: whether spans are created.
        system: the kind of the log, `kafka` or `sqlite`.
        instance: the name of this gateway.

    Raises:
        ConfigurationError: the packages are not installed.
    """
    if not is_on:
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as err:
        raise ConfigurationError(
            f"GATEWAY_TRACES needs packages of the extra otel ({err.name} is missing): "
            "pip install 'idempotent-ingestion-gateway[otel]'"
        ) from err
    attributes = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME", "gateway"),
        "service.version": VERSION,
        "service.instance.id": instance,
    }
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield Traces(provider, system)
    finally:
        last = Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(FLUSH_S)


class _Requests:
    """Creates the span of a request at its end, when its route is known; probes have none."""

    def __init__(self, app: ASGIApp, tracer: "Tracer") -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_ns = time.time_ns()
        began: Message | None = None

        async def send_and_note(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = message
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            context: RequestContext | None = scope.get(CONTEXT)
            if context is not None and context.request_id:
                self._write(scope, context, began, began_ns)

    def _write(self, scope: Scope, context: RequestContext, answer: Message | None, began_ns: int) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        attributes: dict[str, Any] = {
            "http.request.method": scope["method"],
            "http.route": context.route,
            "gateway.request_id": context.request_id,
        }
        if answer is not None:
            attributes["http.response.status_code"] = answer["status"]
            for name, value in answer["headers"]:
                if name in COUNTS:
                    attributes[COUNTS[name]] = int(value)
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in {b"traceparent", b"tracestate"}
        }
        span = self._tracer.start_span(
            f"{scope['method']} {context.route}",
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            attributes,
            start_time=began_ns,
        )
        if answer is None or answer["status"] >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()


class _Store:
    """A log whose partitions create a span for each append."""

    def __init__(self, store: LogStore, tracer: "Tracer", system: str) -> None:
        self._store = store
        self._tracer = tracer
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def partition_log(self, topic: str, partition: int) -> PartitionLog:
        return self._traced(self._store.partition_log(topic, partition), topic, partition)

    def deciding_log(self, topic: str, partition: int) -> PartitionLog:
        return self._traced(self._store.deciding_log(topic, partition), topic, partition)

    def _traced(self, log: PartitionLog, topic: str, partition: int) -> PartitionLog:
        attributes: dict[str, str | int] = {
            "messaging.system": self._system,
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
        }
        return cast(PartitionLog, _Log(log, self._tracer, f"send {topic}", attributes))


class _Log:
    def __init__(
        self, log: PartitionLog, tracer: "Tracer", name: str, attributes: dict[str, str | int]
    ) -> None:
        self._log = log
        self._tracer = tracer
        self._name = name
        self._attributes = attributes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Offset:
        from opentelemetry.trace import SpanKind

        attributes = self._attributes | {"messaging.batch.message_count": len(records)}
        with self._tracer.start_as_current_span(
            self._name, kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            base = await self._log.append(records)
            span.set_attribute("gateway.offset", base)
            return base
