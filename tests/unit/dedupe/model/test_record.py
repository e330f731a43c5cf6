"""Record format v1: what is written is read back whole, and nothing else is taken for a record."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.sessions import SEQUENCES_AHEAD_MAX
from dedupe.model.errors import LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.record import (
    EVICTED_MAX,
    FLAG_ID_ASSIGNED,
    FLAG_NOT_IDEMPOTENT,
    FLAG_SESSION,
    EventRecords,
    RecordIdentity,
    build_record,
    is_identified_by,
    parse_identity,
)
from dedupe.model.routing import partition_of
from dedupe.model.types import (
    RECORD_OVERHEAD_BYTES,
    Event,
    LogRecord,
    NewRecord,
    Progress,
    Session,
    size_of,
    with_headers,
)
from dedupe.storage.kafka.record_batch import encode_batch, for_events_it_knows
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
from tests.support.foreign import CHANGED, FOREIGN, GENUINE, ODD, without_checksum

EXAMPLES = settings(max_examples=200)

SECRET = b"a secret of 24 bytes...."
IDENTITY = Identity(SECRET)
PARTITIONS = 8

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
U64 = st.integers(0, 2**64 - 1)
HASH = st.binary(min_size=16, max_size=16)
PROGRESS = st.builds(Progress, U64, st.integers(0, 2**SEQUENCES_AHEAD_MAX - 1))
SESSIONS = st.builds(Session, HASH, HASH, U64, U64, U64, st.none() | PROGRESS)


def message(message_id: str = "id-1", source: str = "web") -> Event:
    key = IDENTITY.message_key(source, message_id)
    return Event(key, partition_of(key, PARTITIONS), b"\xab" * 8, source, message_id, b'{"event":"paid"}')


def in_session(sequence: int = 1) -> Event:
    client = IDENTITY.client_hash("web", "phone")
    session = IDENTITY.session_hash("web", "phone", "today")
    key = IDENTITY.sequence_key(client, session, sequence)
    return message()._replace(
        key=key, partition=partition_of(client, PARTITIONS), session=Session(client, session, sequence)
    )


def in_quarantine(message_id: str = "id-1") -> Event:
    event = message(message_id)
    key = IDENTITY.quarantine_key("web", message_id, event.fingerprint)
    return event._replace(key=key, partition=partition_of(key, PARTITIONS), reason="conflict")


def committed(record: NewRecord, offset: int = 42) -> LogRecord:
    return LogRecord(offset, *record)


# ---- build and parse


@EXAMPLES
@given(
    key=HASH,
    fingerprint=st.binary(min_size=8, max_size=8),
    lane_seq=U64,
    flags=st.sampled_from([0, FLAG_ID_ASSIGNED, FLAG_NOT_IDEMPOTENT, FLAG_ID_ASSIGNED | FLAG_NOT_IDEMPOTENT]),
    source=TEXT,
    message_id=TEXT,
    session=st.none() | SESSIONS,
    reason=st.none() | TEXT,
)
def test_record_says_all_that_was_built_into_it(
    *,
    key: bytes,
    fingerprint: bytes,
    lane_seq: int,
    flags: int,
    source: str,
    message_id: str,
    session: Session | None,
    reason: str | None,
) -> None:
    event = Event(key, 0, fingerprint, source, message_id, b"{}", flags, session, reason)

    record = build_record(event, lane_seq=lane_seq, timestamp_ms=7)

    expected_flags = flags | (FLAG_SESSION if session else 0)
    assert record[:3] == (7, message_id.encode(), b"{}")
    assert parse_identity(committed(record)) == RecordIdentity(
        key, fingerprint, lane_seq, expected_flags, source, message_id, session
    )
    assert dict(record.headers).get("reason") == (None if reason is None else reason.encode())


def test_headers_of_a_plain_record() -> None:
    event = Event(b"k" * 16, 0, b"f" * 8, "web", "id", b"{}", FLAG_ID_ASSIGNED)

    record = without_checksum(build_record(event, lane_seq=258, timestamp_ms=9))

    gateway = b"\x01\x02" + b"k" * 16 + b"f" * 8 + b"\x00\x00\x00\x00\x00\x00\x01\x02"
    assert record == NewRecord(9, b"id", b"{}", [("source", b"web"), ("gw", gateway)])


def test_headers_of_a_session_record() -> None:
    session = Session(b"c" * 16, b"s" * 16, 3, 2, 1)
    event = Event(b"k" * 16, 0, b"f" * 8, "web", "", b"{}", session=session, reason="late")

    headers = without_checksum(build_record(event, lane_seq=0, timestamp_ms=9)).headers

    gateway = b"\x01\x01" + b"k" * 16 + b"f" * 8 + bytes(8)
    gateway += b"c" * 16 + b"s" * 16 + bytes(7) + b"\x03" + bytes(7) + b"\x02" + bytes(7) + b"\x01"
    assert headers == [("source", b"web"), ("gw", gateway), ("reason", b"late")]
    assert len(gateway) == 90


def test_headers_of_a_session_record_say_what_was_stored_before() -> None:
    session = Session(b"c" * 16, b"s" * 16, 600, before=Progress(515, 0b101_0000_0010))
    event = Event(b"k" * 16, 0, b"f" * 8, "web", "", b"{}", session=session)

    _, (_, gateway), progress = build_record(event, lane_seq=0, timestamp_ms=9).headers

    assert len(gateway) == 94
    assert progress == ("gs", bytes(6) + b"\x02\x03" + b"\x05\x02")


@EXAMPLES
@given(TEXT, st.text(st.characters(codec="ascii"), max_size=60), st.none() | SESSIONS)
def test_size_is_an_upper_bound(message_id: str, source: str, session: Session | None) -> None:
    reason = "r" * 40
    event = Event(b"k" * 16, 0, b"f" * 8, source, message_id, b"{}" * 9, 0, session, reason)

    record = build_record(event, lane_seq=2**63, timestamp_ms=2**42)

    content = len(record.key) + len(record.value)
    content += sum(len(name) + len(value) for name, value in record.headers)
    record_fields = 4 + 1 + 1 + 2  # its length, attributes, timestamp delta and offset delta in a batch
    lengths = 2 + 4 + 1 + 4 * (1 + 2)  # of key, value, header list, and each header's name and value
    assert content + record_fields + lengths <= event.size_bytes
    assert event.size_bytes - len(event.value) - 4 * len(message_id) - len(source) == RECORD_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("said", "before"),
    [
        (None, None),
        (bytes(8), Progress(0, 0)),
        (bytes(7) + b"\x05", Progress(5, 0)),
        (bytes(7) + b"\x05\x01\x02", Progress(5, 258)),
        (bytes(7) + b"\x05" + b"\xff" * 64, Progress(5, 2**512 - 1)),
        (bytes(7) + b"\x05" + b"\xff" * 65, None),
    ],
)
def test_what_was_stored_before_is_known_if_it_is_said(said: bytes | None, before: Progress | None) -> None:
    record = build_record(in_session(), lane_seq=0, timestamp_ms=9)
    headers = record.headers if said is None else [*record.headers, ("gs", said)]

    found = parse_identity(committed(record._replace(headers=headers)))

    assert found.session is not None
    assert found.session.before == before


# ---- what is not a record


@pytest.mark.parametrize("record", [pytest.param(record, id=name) for name, record in FOREIGN.items()])
def test_malformed_records_are_refused(record: NewRecord) -> None:
    with pytest.raises(LogCorruptError, match="offset 42"):
        parse_identity(committed(record))


@pytest.mark.parametrize(
    "record", [pytest.param(record, id=name) for name, record in (ODD | GENUINE).items()]
)
def test_other_records_are_read(record: NewRecord) -> None:
    parse_identity(committed(record))


@pytest.mark.regression("A record that was changed in the log was served as the original.")
@pytest.mark.parametrize("record", [pytest.param(record, id=name) for name, record in CHANGED.items()])
def test_records_that_were_changed_are_refused(record: NewRecord) -> None:
    with pytest.raises(LogCorruptError, match="offset 42"):
        parse_identity(committed(record))


@EXAMPLES
@given(st.data())
def test_any_changed_byte_of_a_record_is_noticed(data: st.DataObject) -> None:
    event = data.draw(st.sampled_from([message(), in_session(), in_quarantine()]))
    record = build_record(event, lane_seq=5, timestamp_ms=1)
    parts = [record.key, record.value, *(value for name, value in record.headers if name != "reason")]
    number = data.draw(st.integers(0, len(parts) - 1))
    at = data.draw(st.integers(0, len(parts[number]) - 1))
    changed = bytearray(parts[number])
    changed[at] ^= data.draw(st.integers(1, 255))
    if number == 3 and at < 2:
        return  # version and flags say how the rest is read
    parts[number] = bytes(changed)
    headers = [("source", parts[2]), ("gw", parts[3]), *record.headers[2:]]

    with pytest.raises(LogCorruptError):
        parse_identity(committed(NewRecord(1, parts[0], parts[1], headers)))


# ---- whose record it is


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(message(), id="message"),
        pytest.param(message(""), id="empty id"),
        pytest.param(message("\u00fc\U0001f600"), id="unicode"),
        pytest.param(in_session(), id="session"),
        pytest.param(in_quarantine(), id="quarantine"),
        pytest.param(in_quarantine(""), id="quarantine without id"),
    ],
)
def test_record_is_identified_by_its_own_secret_and_partition_alone(event: Event) -> None:
    record = committed(build_record(event, lane_seq=0, timestamp_ms=1))
    found = parse_identity(record)

    def is_identified(identity: Identity, partition: int, partitions: int) -> bool:
        return is_identified_by(record, found, identity, partition=partition, partitions=partitions)

    assert is_identified(IDENTITY, event.partition, PARTITIONS)
    assert not is_identified(Identity(SECRET + b"!"), event.partition, PARTITIONS)
    assert not is_identified(IDENTITY, (event.partition + 1) % PARTITIONS, PARTITIONS)
    assert not is_identified(IDENTITY, event.partition, 7_919)


def test_session_record_is_routed_by_its_client() -> None:
    for sequence in range(1, 50):
        event = in_session(sequence)
        record = committed(build_record(event, lane_seq=0, timestamp_ms=1))
        found = parse_identity(record)

        assert partition_of(event.session.client_hash, PARTITIONS) == event.partition  # type: ignore[union-attr]
        assert is_identified_by(record, found, IDENTITY, partition=event.partition, partitions=PARTITIONS)


@pytest.mark.parametrize("count", range(EVICTED_MAX + 1))
def test_record_says_which_sessions_are_evicted(count: int) -> None:
    session = Session(b"c" * 16, b"s" * 16, 3)
    event = Event(b"k" * 16, 0, b"f" * 8, "web", "id", b"{}", session=session)
    evicted = tuple(bytes([n]) * 32 for n in range(count))

    record = build_record(event, lane_seq=0, timestamp_ms=9, recorded=session, evicted=evicted)

    found = parse_identity(committed(record))
    assert (found.evicted, found.session, found.flags) == (evicted, session, FLAG_SESSION)
    plain = build_record(event, lane_seq=0, timestamp_ms=9, recorded=session)
    assert len(dict(record.headers)["gw"]) == len(dict(plain.headers)["gw"]) + 32 * count


def test_headers_of_an_event_follow_those_of_the_format_and_are_no_identity() -> None:
    plain = build_record(message(), lane_seq=1, timestamp_ms=5)
    event = with_headers(message(), [("origin", b"raw:raw/0/7"), ("h", b"\xff")])
    record = build_record(event, lane_seq=1, timestamp_ms=5)
    assert record == plain._replace(headers=plain.headers + event.headers)
    assert parse_identity(committed(record)) == parse_identity(committed(plain))


@EXAMPLES
@given(st.lists(st.tuples(TEXT, st.binary(max_size=3_000)), max_size=5))
def test_size_of_an_event_counts_its_headers(headers: list[tuple[str, bytes]]) -> None:
    event = with_headers(message(), headers)
    plain, headed = [
        encode_batch(
            [build_record(each, lane_seq=1, timestamp_ms=5)], ProducerIdAndEpoch(1, 1), 0, bytes_max=2**20
        )
        for each in (message(), event)
    ]
    assert len(headed) - len(plain) <= event.size_bytes - message().size_bytes
    assert size_of([event]) == event.size_bytes
    assert size_of([event, message()]) == event.size_bytes + message().size_bytes


def test_events_with_headers_are_not_encoded_by_a_module_that_knows_none() -> None:
    encode = for_events_it_knows(lambda *_: b"native")
    for event, is_native in ((message(), True), (with_headers(message(), [("h", b"x")]), False)):
        records = EventRecords([event], (), lane_seq=1, timestamp_ms=5)
        batch = encode_batch(records, ProducerIdAndEpoch(1, 1), 0, bytes_max=2**20, native=encode)
        assert (batch == b"native") is is_native


def test_events_with_headers_are_encoded_by_a_module_that_proves_to_know_them() -> None:
    def native(events: list[Event], sessions: Any, seq: int, ms: int, *rest: int) -> bytes:
        calls.append(len(events))
        records = EventRecords(events, sessions, lane_seq=seq, timestamp_ms=ms)
        return encode_batch(records, ProducerIdAndEpoch(*rest[:2]), rest[2], bytes_max=rest[3])

    calls: list[int] = []
    encode = for_events_it_knows(native)
    assert encode is native
    calls.clear()
    records = EventRecords([with_headers(message(), [("h", b"x")])], (), lane_seq=1, timestamp_ms=5)
    encode_batch(records, ProducerIdAndEpoch(1, 1), 0, bytes_max=2**20, native=encode)
    assert calls == [1]
