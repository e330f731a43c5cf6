"""
Record batches of Kafka's format 2, encoded by aiokafka's builder or by the native module: the same bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from dedupe.model.errors import RecordsRefusedError
from dedupe.model.record import FLAG_CLOUDEVENT, EventRecords
from dedupe.model.types import (
    Event,
    Headers,
    NewRecord,
    Progress,
    Session,
    have_headers,
    with_headers,
)
from dedupe.storage.kafka.wire import ProducerIdAndEpoch

NativeEncode: TypeAlias = Callable[..., bytes | None]
"""gateway_native.encode_records: returns None for events that it does not encode."""


def encode_batch(
    records: Sequence[NewRecord],
    producer: ProducerIdAndEpoch,
    sequence: int,
    *,
    bytes_max: int,
    native: NativeEncode | None = None,
) -> bytes:
    """
    Return a record batch.

    Args:
        records: n >= 1, in order.
        producer: its id and epoch.
        sequence: the first record's sequence number.
        bytes_max: the limit of the batch.
        native: encodes the records of plain events, and of client sessions that evict no other.

    Raises:
        RecordsRefusedError: the records do not fit.
    """
    if native is not None and type(records) is EventRecords and not any(records.evicted):
        plain = records.events, records.sessions, records.lane_seq, records.timestamp_ms
        rest = producer.id, producer.epoch, sequence, bytes_max
        batch = native(*plain, *rest)
        if batch is not None:
            return batch
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        batch_size=bytes_max,
    )
    for index, (timestamp_ms, key, value, headers) in enumerate(records):
        if builder.append(index, timestamp_ms, key, value, headers) is None:  # type: ignore[arg-type] # invariant
            raise RecordsRefusedError("the records do not fit into one record batch")
    return bytes(builder.build())


def for_events_it_knows(native: NativeEncode) -> NativeEncode:
    """Return the encoder, which is given no events with headers if it is of a module before those."""
    if is_encoding_proved(native, headers=_HEADERS):
        return native

    def encode(events: Sequence[Event], *rest: Any) -> bytes | None:
        return None if have_headers(events) else native(events, *rest)

    return encode


def is_encoding_proved(native: NativeEncode, *, headers: Sequence[tuple[str, bytes]] = ()) -> bool:
    """Whether the native module encodes examples as aiokafka's builder does, with these headers of events."""
    producer, sequence = ProducerIdAndEpoch(2**40 + 1, 7), 2**31 - 9
    for size, flags in ((0, 0), (50, 2), (70, 1), (8_000, 2), (90, FLAG_CLOUDEVENT)):
        value, message_id = b"v" * size, "é" * (size % 71)
        event = Event(bytes(range(16)), 0, b"\xff" * 8, "source", message_id, value, flags=flags)
        event = with_headers(event, list(headers)) if headers else event
        for sessions in ((), _EXAMPLES * 26):
            records = EventRecords([event] * 130, sessions, lane_seq=2**40, timestamp_ms=1_700_000_000_123)
            expected, found = [
                encode_batch(records, producer, sequence, bytes_max=2**21, native=each)
                for each in (None, native)
            ]
            if found != expected:
                return False
    return True


_HEADERS: Headers = [("origin", b"raw:raw/0/7"), ("é", b""), *[(f"h{n}", b"\xff" * n) for n in range(70)]]
_SESSION = Session(b"c" * 16, b"s" * 16, 2**64 - 1, epoch=3, acknowledged_through=2**40)
_EXAMPLES = (
    None,
    _SESSION,
    *(_SESSION._replace(before=Progress(2**64 - 1, above)) for above in (0, 0x1FF, 2**511 + 5)),
)
