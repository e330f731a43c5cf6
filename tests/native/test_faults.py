"""Claim: a fault of the native module is counted and told, and the Python code does the work."""

from collections.abc import Callable

import gateway_native
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from app.admin.native_metrics import NativeCollector, native_document
from app.http.at_once import at_once, yield_to_nobody
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativeModule
from app.ingest.parse import parse_batch
from app.ingest.payload import Expected, Payload
from app.native_module import difference_of
from app.telemetry.native_use import NativeUse
from dedupe.decide.recovery import PlainRecords, RecordCheck
from dedupe.model.record import EventRecords
from dedupe.model.slots import PartitionMap
from dedupe.model.types import Event
from dedupe.storage.kafka.fetched import fetched_in
from dedupe.storage.kafka.record_batch import encode_batch
from tests.native.both_paths import (
    BATCH_BYTES_MAX,
    DECODE,
    IDENTITY,
    LIMITS,
    PARTITIONS,
    PRODUCER,
    QUARANTINE,
    RECEIVED_MS,
    TP,
    Paths,
)

BODY = b'{"batch":[{"messageId":"1","type":"track"},{"messageId":"2","type":"page"}]}'
ARRIVAL = Arrival("web", RECEIVED_MS)


def faults_of(work: Callable[[], object]) -> int:
    """Return how many faults the module counts during some work that has it panic once."""
    before, _ = gateway_native.faults()
    gateway_native.provoke()
    work()
    count, last = gateway_native.faults()
    assert last.startswith("panicked at src/faults.rs:")
    assert last.endswith("provoked")
    return count - before


def encoded(native: Callable[..., bytes | None] | None) -> bytes:
    events = [
        Event(IDENTITY.message_key("web", each), 0, bytes(8), "web", each, b"{}") for each in ("1", "2")
    ]
    records = EventRecords(events, (), lane_seq=1, timestamp_ms=RECEIVED_MS)
    return encode_batch(records, PRODUCER, 0, bytes_max=BATCH_BYTES_MAX, native=native)


def test_body_that_it_fails_to_read_is_read_by_the_python_code() -> None:
    paths = Paths()
    assert faults_of(lambda: paths.compare(BODY, parse_batch, ARRIVAL)) == 1
    assert paths.native.use.other_bodies == {"large": 0, "unreadable": 1, "form": 0}
    assert (paths.native.use.other_events, paths.native.use.events) == (2, 0)


def test_events_that_it_fails_to_identify_are_identified_by_the_python_code() -> None:
    def identified(payload: Payload | None) -> Identified:
        assert payload is not None
        found = Identified()
        found.take(identifier.identify(payload, ARRIVAL))
        found.work_bytes = 0
        return found

    identifier = Identifier(IDENTITY, PARTITIONS, QUARANTINE, LIMITS)
    limits = JSONLimits(9, LIMITS.event_bytes_max)
    expected = identified(at_once(parse_batch(BODY, limits, yield_to_nobody)))
    native = identifier.native = NativeModule(gateway_native, IDENTITY, PartitionMap(PARTITIONS), LIMITS)
    payload = at_once(native.read(BODY, limits, yield_to_nobody, Expected.BATCH))
    found: list[Identified] = []
    assert faults_of(lambda: found.append(identified(payload))) == 1
    assert found == [expected]
    assert (native.use.odd_events, native.use.events) == (1, 1)


def test_batch_that_it_fails_to_write_is_written_by_the_python_code() -> None:
    found: list[bytes] = []
    assert faults_of(lambda: found.append(encoded(gateway_native.encode_records))) == 1
    assert found == [encoded(None)]


def test_error_that_no_event_explains_is_a_fault() -> None:
    before, _ = gateway_native.faults()
    assert gateway_native.encode_records([()], [], 1, 2, 3, 4, 5, 99) is None  # type: ignore[list-item]
    assert gateway_native.faults() == (before + 1, "IndexError: tuple index out of range")


def test_response_that_it_fails_to_read_or_to_check_is_read_by_the_python_code() -> None:
    raw, check = encoded(None), RecordCheck(IDENTITY, 0, 1)
    expected = fetched_in(TP, raw, [], 0).take(9)
    found = []
    assert faults_of(lambda: found.append(fetched_in(TP, raw, [], 0, native=DECODE).take(9))) == 1
    assert found == [expected]
    records = fetched_in(TP, raw, [], 0, native=DECODE).take(9)
    assert isinstance(records, PlainRecords)
    checked: list[object] = []
    assert faults_of(lambda: checked.append(check.checked_plain(records))) == 1
    assert checked == [None]
    assert [check.checked(each) for each in records] == check.checked_plain(records)


def test_module_that_fails_on_an_example_is_refused() -> None:
    problems: list[str | None] = []
    assert faults_of(lambda: problems.append(difference_of(gateway_native))) == 1
    assert problems == [f"it fails: {gateway_native.faults()[1]}"]
    assert difference_of(gateway_native) is None


def test_faults_are_counted_and_told_together_with_the_last() -> None:
    faults = [(0, "")]
    use = NativeUse("1", lambda: faults[-1])
    with capture_logs() as logs:
        for fault in ((0, ""), (2, "panicked at src/json.rs"), (2, "panicked at src/json.rs"), (3, "again")):
            faults.append(fault)
            use.look()
    assert [(log["log_level"], log["faults"], log["last"]) for log in logs] == [
        ("warning", 2, "panicked at src/json.rs"),
        ("warning", 1, "again"),
    ]
    registry = CollectorRegistry()
    registry.register(NativeCollector(use))
    assert registry.get_sample_value("gateway_native_panics_total") == 3
    document = native_document(use)
    assert document is not None
    assert document["panics"] == 3


def test_nothing_of_a_fault_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert faults_of(lambda: encoded(gateway_native.encode_records)) == 1
    assert capfd.readouterr().err == ""
