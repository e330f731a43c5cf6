"""What a span of an append says when the append fails."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from app.telemetry.traces import Traces
from dedupe.model.errors import NotAppendedError
from dedupe.model.types import NewRecord
from tests.support.sim.faults import SimFaults
from tests.support.sim.sim_log import SimStore


async def test_append_that_fails_is_an_error_of_its_span_and_of_its_caller() -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    plain = SimStore()
    plain.create_topic("events", 1)
    store = Traces(provider, "sim").appends_of(plain)
    log = store.partition_log("events", 0)
    assert await log.fence() == 1
    assert await log.append([NewRecord(1, b"key", b"value", [])]) == 1
    plain.rng.faults = SimFaults(unavailable=1.0)
    with pytest.raises(NotAppendedError):
        await log.append([NewRecord(1, b"key", b"value", [])])
    await log.close()

    done, failed = spans.get_finished_spans()
    assert (done.attributes or {})["gateway.offset"] == 1
    assert done.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert store.log_id == plain.log_id
