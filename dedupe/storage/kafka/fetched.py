"""
The records of a response to a Fetch request.

aiokafka decodes the record batches: checksums, compression, markers, aborted transactions. The native module
reads a response that has whole batches of plain events alone; the records are the same.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.memory_records import MemoryRecords

from dedupe.decide.recovery import CheckedRecord, PlainRecords, RecordCheck
from dedupe.decide.sessions import NO_SOURCE
from dedupe.model.identity import Identity
from dedupe.model.record import EventRecords, RecordIdentity
from dedupe.model.types import Event, LogRecord, Offset
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.wire import READ_COMMITTED, ProducerIdAndEpoch

if TYPE_CHECKING:
    import gateway_native

NativeDecode: TypeAlias = Callable[[bytes, Offset], "gateway_native.Fetched | None"]
"""gateway_native.Decoder.decode: returns None for a response that it does not read."""


class Fetched(Protocol):
    """The records of a response that are still to be taken."""

    next_fetch_offset: Offset
    """The offset behind what was taken, and behind markers that follow it."""

    def take(self, count: int, /) -> Sequence[LogRecord]:
        """Take the next records; fewer than `count` if there are no more. Raises any error of aiokafka's."""


def fetched_in(
    tp: TopicPartition, raw: bytes, aborted: Any, position: Offset, *, native: NativeDecode | None = None
) -> Fetched:
    """
    Return the committed records of a response from a position on.

    Args:
        tp: the partition.
        raw: its record batches; the last may be cut off.
        aborted: the aborted transactions, as the response has them.
        position: the first offset.
        native: reads plain responses.
    """
    if native is not None and (plain := native(raw, position)) is not None:
        return _PlainFetched(plain)
    return _AnyFetched(  # type: ignore[no-untyped-call]
        tp,
        MemoryRecords(raw),
        aborted,
        position,
        key_deserializer=None,
        value_deserializer=None,
        check_crcs=True,
        isolation_level=READ_COMMITTED,
    )


class _AnyFetched(PartitionRecords):
    """aiokafka's records of a partition, each as a LogRecord."""

    next_fetch_offset: Offset

    def take(self, count: int) -> list[LogRecord]:
        return list(islice(self, count))

    def _consumer_record(self, _tp: TopicPartition, record: Any) -> LogRecord:
        return LogRecord(
            record.offset, record.timestamp, record.key or b"", record.value or b"", record.headers
        )


class _PlainFetched:
    """The native module's."""

    def __init__(self, native: "gateway_native.Fetched") -> None:
        self._native = native
        self.next_fetch_offset: Offset = native.next_fetch_offset

    def take(self, count: int) -> PlainRecords:
        records = PlainRecords(self._native.take(count))
        self.next_fetch_offset = self._native.next_fetch_offset
        return records


def native_decoder(module: ModuleType) -> NativeDecode:
    """Return the native module's reader of responses."""
    decoder = module.Decoder(LogRecord, RecordIdentity, CheckedRecord, (), NO_SOURCE)
    decode: NativeDecode = decoder.decode
    return decode


def is_decoding_proved(native: NativeDecode) -> bool:
    """Whether the native module reads and checks examples as the Python code does, and misses no damage."""
    identity, position = Identity(b"not a secret: of examples"), 3
    ids = ["", "m-1", "é" * 99]
    events = [
        Event(identity.message_key("web", each), 0, bytes(8), "web", each, b"{}" * 300, flags=place % 2 * 2)
        for place, each in enumerate(ids * 3)
    ]
    records = EventRecords(events, (), lane_seq=2**40, timestamp_ms=1_700_000_000_123)
    raw = encode_batch(records, ProducerIdAndEpoch(2**40 + 1, 7), 2**31 - 9, bytes_max=2**21)
    expected = fetched_in(TopicPartition("", 0), raw, [], position)
    found = fetched_in(TopicPartition("", 0), raw, [], position, native=native)
    check = RecordCheck(identity, 0, 1)
    for count in (4, 4):
        log_records, plain = expected.take(count), found.take(count)
        if not isinstance(plain, PlainRecords) or list(plain) != log_records:
            return False
        if check.checked_plain(plain) != [check.checked(each) for each in log_records]:
            return False
        if RecordCheck(Identity(bytes(16)), 0, 1).checked_plain(plain) is not None:
            return False
        if found.next_fetch_offset != expected.next_fetch_offset:
            return False
    return native(raw[:-1] + b"!", 0) is None
