"""Claim: the native module encodes records of client sessions as Python does, and leaves it the odd ones."""

import random
from collections.abc import Sequence

import gateway_native
import pytest

from dedupe.model.errors import RecordsRefusedError
from dedupe.model.record import EventRecords
from dedupe.model.types import Event, Progress, Session, with_headers
from dedupe.storage.kafka.record_batch import encode_batch, for_events_it_knows
from dedupe.storage.kafka.wire import ProducerIdAndEpoch

PRODUCER = ProducerIdAndEpoch(2**40 + 1, 7)
FIRST_MS = 1_700_000_000_123
BATCH_BYTES_MAX = 2**22
U64_MAX = 2**64 - 1
SEED, BATCHES = 1, 400


def random_session(rng: random.Random) -> Session | None:
    above = rng.choice((0, 1, 0xFF, 0x100, 2**63, 2**64, rng.getrandbits(512), 2**512 - 1))
    before = rng.choice((None, Progress(rng.choice((0, 7, U64_MAX)), above)))
    sequence, epoch, acknowledged = (rng.choice((0, 1, 2**40, U64_MAX)) for _ in range(3))
    session = Session(rng.randbytes(16), rng.randbytes(16), sequence, epoch, acknowledged, before)
    return session if rng.random() < 0.8 else None


def random_event(rng: random.Random, session: Session | None = None) -> Event:
    source, message_id = rng.choice(("web", "é", "")), rng.choice(("", "m-1", "é" * 90))
    value = rng.randbytes(rng.choice((0, 60, 70, 8_200)))
    flags = rng.choice((0, 2, 4))
    return Event(rng.randbytes(16), 0, rng.randbytes(8), source, message_id, value, flags, session=session)


def encoded(records: EventRecords, bytes_max: int = BATCH_BYTES_MAX) -> bytes | None:
    """Return what the module makes of records."""
    plain = records.events, records.sessions, records.lane_seq, records.timestamp_ms
    batch = gateway_native.encode_records(*plain, PRODUCER.id, PRODUCER.epoch, 9, bytes_max)
    return batch if batch is None else bytes(batch)


def records_of(
    events: Sequence[Event], sessions: Sequence[Session | None], evicted: Sequence[Sequence[bytes]] = ()
) -> EventRecords:
    return EventRecords(events, sessions, evicted, lane_seq=2**40, timestamp_ms=FIRST_MS)


def test_records_with_headers_have_the_same_bytes() -> None:
    rng = random.Random(SEED)
    for _ in range(BATCHES):
        events = [random_event(rng) for _ in range(rng.choice((1, 2, 9, 70)))]
        headers = [
            [(rng.choice(("origin", "é", "")), rng.randbytes(rng.choice((0, 9, 300))))]
            * rng.choice((0, 1, 2, 70))
            for _ in events
        ]
        events = [with_headers(each, own) if own else each for each, own in zip(events, headers, strict=True)]
        records = records_of(events, ())

        found = encoded(records)

        assert found == encode_batch(records, PRODUCER, 9, bytes_max=BATCH_BYTES_MAX)
    assert for_events_it_knows(gateway_native.encode_records) is gateway_native.encode_records


def test_records_of_sessions_have_the_same_bytes() -> None:
    rng = random.Random(SEED)
    for _ in range(BATCHES):
        sessions = [random_session(rng) for _ in range(rng.choice((1, 2, 9, 70)))]
        records = records_of([random_event(rng, session) for session in sessions], sessions)

        found = encoded(records)

        assert found == encode_batch(records, PRODUCER, 9, bytes_max=BATCH_BYTES_MAX)


@pytest.mark.parametrize(
    ("own", "recorded"),
    [
        pytest.param(Session(b"c" * 16, b"s" * 16, 1), (), id="sessions that are not recorded"),
        pytest.param(Session(b"c" * 16, b"s" * 16, 1), (None,), id="one that is not recorded"),
        pytest.param(None, (None, None), id="more sessions than events"),
        pytest.param(None, (Session(b"c" * 15, b"s" * 16, 1),), id="a short hash"),
        pytest.param(None, (Session(b"c" * 16, b"s" * 16, 2**64),), id="a sequence beyond 64 bits"),
        pytest.param(
            None, (Session(b"c" * 16, b"s" * 16, 1, before=Progress(-1, 0)),), id="a negative watermark"
        ),
    ],
)
def test_odd_sessions_are_left_to_python(own: Session | None, recorded: Sequence[Session | None]) -> None:
    event = random_event(random.Random(SEED), own)
    assert encoded(records_of([event], recorded)) is None


def test_records_that_evict_sessions_are_left_to_python() -> None:
    session = Session(b"c" * 16, b"s" * 16, 1, before=Progress(0, 0))
    events, evicted = [random_event(random.Random(SEED), session)], [(b"e" * 32,)]

    def unused(*_: object) -> bytes | None:
        raise AssertionError("it was asked")

    records = records_of(events, [session], evicted)
    assert encode_batch(records, PRODUCER, 9, bytes_max=BATCH_BYTES_MAX, native=unused)


def test_a_batch_of_sessions_that_is_too_large_is_refused() -> None:
    rng = random.Random(SEED)
    session = Session(b"c" * 16, b"s" * 16, 1, before=Progress(0, 0))
    records = records_of([random_event(rng, session)] * 9, [session] * 9)
    size = len(encode_batch(records, PRODUCER, 9, bytes_max=BATCH_BYTES_MAX))

    assert encoded(records, size) is not None
    assert encoded(records, size - 1) is None
    with pytest.raises(RecordsRefusedError):
        encode_batch(records, PRODUCER, 9, bytes_max=size - 2, native=gateway_native.encode_records)
