"""Claim: the native module reads and checks record batches as the Python code does, and none with damage."""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4
from zlib import crc32

import gateway_native
import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from app.native_module import difference_of
from dedupe.decide.recovery import CheckedRecord, PlainRecords, RecordCheck
from dedupe.model.errors import IdentityMismatchError, LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.record import build_record
from dedupe.model.types import Event, LogRecord, NewRecord, Progress, Session
from dedupe.storage.kafka.fetched import fetched_in, is_decoding_proved, native_decoder
from dedupe.storage.kafka.store import KafkaStore
from tests.support.kafka import create_topic
from tests.support.settings import kafka_config

SEED = int(os.environ.get("NATIVE_SEED", "1"))
RECORDS = int(os.environ.get("NATIVE_EVENTS", "200000")) // 2

IDENTITY, OTHER = Identity(b"a secret of 24 bytes...."), Identity(b"another secret of 24 byt")
TP = TopicPartition("events", 0)
DECODE = native_decoder(gateway_native)
FIRST_MS = 1_700_000_000_123
CRC_AT, CRC_FROM, ATTRIBUTES_AT, LAST_DELTA_AT = 17, 21, 21, 23
GZIP, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 1, 8, 16, 32
ODD_RECORDS = 16


class Responses:
    """Random responses of a broker, of which a part of the records and batches is odd or damaged."""

    def __init__(self, rng: random.Random, oddness: float) -> None:
        self.rng, self.oddness, self.odd_left = rng, oddness, 0
        self.records = 0
        self._seq = 0

    def __iter__(self) -> Iterator[tuple[bytes, list[tuple[int, int]], int]]:
        """Yield record batches, aborted transactions and a position."""
        while True:
            self.odd_left = self.rng.choice((0, 1, 1, 3))
            first = offset = self.rng.choice((0, 7, 2**40))
            raw = b""
            for _ in range(self.rng.randrange(1, 5)):
                batch, offset = self._batch(offset)
                raw += batch
            if self.rng.random() < 0.2:
                raw += self._batch(offset)[0][: self.rng.randrange(200)]
            if self._is_odd():
                raw = self._damaged(raw)
            aborted = [(5, first)] if self.rng.random() < 0.2 else []
            yield (
                raw,
                aborted,
                self.rng.choice((first, first, max(0, first - 3), first + 2, offset, offset + 1)),
            )

    def _is_odd(self) -> bool:
        """Whether the next part is odd: often the only one of its response, which nothing else covers up."""
        is_odd = self.odd_left > 0 and self.rng.random() < self.oddness
        self.odd_left -= is_odd
        return is_odd

    def _batch(self, base: int) -> tuple[bytes, int]:
        """Return a batch, and the offset behind it."""
        rng, count = self.rng, self.rng.choice((1, 2, 3, 9, 60 if self.rng.random() < 0.1 else 1))
        codec = GZIP if self._is_odd() else 0
        builder = DefaultRecordBatchBuilder(2, codec, False, rng.choice((-1, 5)), 0, 0, 2**22)
        delta = 0
        for _ in range(count):
            timestamp_ms, key, value, headers = self._record()
            builder.append(delta, timestamp_ms, key, value, headers)
            delta += rng.choice((2, 90)) if rng.random() < 0.1 else 1
        self.records += count
        batch = bytearray(builder.build())
        batch[:8] = base.to_bytes(8, "big")
        if self._is_odd():
            batch[LAST_DELTA_AT : LAST_DELTA_AT + 4] = (delta + rng.randrange(9)).to_bytes(4, "big")
        if self._is_odd():
            batch[ATTRIBUTES_AT + 1] |= rng.choice((LOG_APPEND_TIME, TRANSACTIONAL, 64, 128))
        if self._is_odd():
            batch[ATTRIBUTES_AT + 1] |= CONTROL
        if self._is_odd():  # such a program, or a fault of memory before the sum
            batch[rng.randrange(CRC_FROM, len(batch))] ^= 1 << rng.randrange(8)
        batch[CRC_AT:CRC_FROM] = calc_crc32c(bytes(batch[CRC_FROM:])).to_bytes(4, "big")
        last_delta = int.from_bytes(batch[LAST_DELTA_AT : LAST_DELTA_AT + 4], "big", signed=True)
        gap = rng.randrange(1, 5) if rng.random() < 0.2 else 0
        return bytes(batch), max(0, base + last_delta + 1 + (-2 if self._is_odd() else gap))

    def _record(self) -> tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        rng, odd = self.rng, self.rng.randrange(ODD_RECORDS) if self._is_odd() else None
        source = rng.choice(("web", "a source: é", ""))
        message_id = rng.choice(("", "m-", "é" * 90)) + str(rng.randrange(2**40))
        identity = OTHER if odd == 0 else IDENTITY
        event = Event(
            identity.message_key(source, message_id),
            0,
            rng.randbytes(8),
            source,
            message_id,
            rng.randbytes(rng.choice((0, 3, 60, 70, 700, 9000 if rng.random() < 0.05 else 1))),
            flags=rng.choice((0, 0, 2, 4, 6)) if odd != 1 else rng.choice((8, 32, 64, 128)),
        )
        if odd == 2:
            hashes = IDENTITY.client_hash(source, "phone"), IDENTITY.session_hash(source, "phone", "now")
            session = Session(*hashes, 7, before=Progress(6, 0))
            event = event._replace(key=IDENTITY.sequence_key(*hashes, 7), session=session)
        if odd == 3:
            key = IDENTITY.quarantine_key(source, message_id, event.fingerprint)
            event = event._replace(key=key, reason="conflict")
        self._seq += 1
        timestamp_ms = FIRST_MS + (rng.randrange(-(2**31), 2**31) if rng.random() < 0.1 else 0)
        record = build_record(event, lane_seq=self._seq, timestamp_ms=timestamp_ms)
        return self._changed(record, odd)

    def _changed(
        self, record: NewRecord, odd: int | None
    ) -> tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        timestamp_ms, key, value, built = record
        headers: list[tuple[str, bytes | None]] = [*built]
        source, gateway = built[0][1], built[1][1]
        if odd == 4:
            return timestamp_ms, None, value, headers
        if odd == 5:
            return timestamp_ms, key, None, headers
        of_later = bytes([2, *gateway[1:-4]])
        of_later += crc32(b"".join((source, key, of_later, value))).to_bytes(4, "big")
        changes: dict[int | None, list[tuple[str, bytes | None]]] = {
            6: [],
            7: [*headers, ("gw", gateway)],
            8: [*headers, ("trace", b"1")],
            9: headers[::-1],
            10: [("source", source), ("gw", None)],
            11: [("source", None), ("gw", gateway)],
            12: [("source", b"\xff" + source), ("gw", gateway)],
            13: [("source", source), ("gw", gateway[:-4])],
            14: [("source", source), ("gw", bytes([gateway[0], gateway[1] ^ 16, *gateway[2:]]))],
            15: [("source", source), ("gw", of_later)],
        }
        return timestamp_ms, key, value, changes.get(odd, headers)

    def _damaged(self, raw: bytes) -> bytes:
        place = self.rng.randrange(len(raw))
        kind = self.rng.randrange(3)
        if kind == 0:
            return raw[:place]
        if kind == 1:
            return raw[:place] + raw[place + 1 :]
        return raw[:place] + bytes([raw[place] ^ 1 << self.rng.randrange(8)]) + raw[place + 1 :]


def checked(records: Sequence[LogRecord], check: RecordCheck) -> list[CheckedRecord | str]:
    """Return what recovery makes of records: the errors too."""
    if isinstance(records, PlainRecords) and (plain := check.checked_plain(records)) is not None:
        return [*plain]
    found: list[CheckedRecord | str] = []
    for record in records:
        try:
            found.append(check.checked(record))
        except (LogCorruptError, IdentityMismatchError) as err:
            found.append(repr(err))
    return found


@pytest.mark.parametrize("oddness", [0.0, 0.01, 0.05])
def test_both_read_and_check_the_same(oddness: float) -> None:
    rng = random.Random(SEED)
    responses = Responses(rng, oddness)
    taken = plain = passed = failed = 0
    for raw, aborted, position in responses:
        check = RecordCheck(IDENTITY, 0, rng.choice((1, 1, 1, 2)))
        counts = [rng.choice((1, 7, 2000)) for _ in range(9)]

        def results_of(*, is_native: bool) -> Iterator[object]:
            nonlocal taken, plain, passed, failed
            try:
                native = DECODE if is_native else None
                fetched = fetched_in(TP, raw, aborted, position, native=native)  # noqa: B023 - used at once
                for count in counts:  # noqa: B023
                    records = fetched.take(count)
                    found = checked(records, check)  # noqa: B023
                    yield list(records), fetched.next_fetch_offset, found
                    if is_native:
                        taken += 1
                        plain += isinstance(records, PlainRecords)
                        passed += sum(isinstance(each, CheckedRecord) for each in found)
                    if len(records) < count:
                        return
            except Exception as err:
                failed += is_native
                yield repr(err)

        python, native = (list(results_of(is_native=each)) for each in (False, True))
        assert native == python, (raw, aborted, position, counts)
        if responses.records > RECORDS // 3:
            break
    assert passed > RECORDS / 12
    assert plain > taken / (20 if oddness else 2)
    assert oddness == 0 or failed > 0


def test_no_bit_of_a_batch_can_change_unseen() -> None:
    """Each is found by the batch's own sum, and by the record's where somebody has written the sum anew."""
    event = Event(IDENTITY.message_key("web", "m"), 0, bytes(8), "web", "m", b'{"event":"paid"}')
    builder = DefaultRecordBatchBuilder(2, 0, False, 5, 0, 0, 2**20)
    builder.append(0, *build_record(event, lane_seq=3, timestamp_ms=FIRST_MS))  # type: ignore[arg-type]
    batch, check = bytes(builder.build()), RecordCheck(IDENTITY, 0, 1)
    for place in range(8 * CRC_FROM, 8 * len(batch)):
        changed = bytearray(batch)
        changed[place // 8] ^= 1 << place % 8
        assert DECODE(bytes(changed), 0) is None
        changed[CRC_AT:CRC_FROM] = calc_crc32c(bytes(changed[CRC_FROM:])).to_bytes(4, "big")
        results: list[object] = []
        for native in (None, DECODE):
            try:
                records = fetched_in(TP, bytes(changed), [], 0, native=native).take(9)
                results.append((list(records), checked(records, check)))
            except Exception as err:
                results.append(repr(err))
        assert results[0] == results[1], place


def test_a_module_that_reads_otherwise_is_not_proved() -> None:
    def without_sums(raw: bytes, start: int) -> gateway_native.Fetched | None:
        changed = bytearray(raw)
        changed[CRC_AT:CRC_FROM] = calc_crc32c(raw[CRC_FROM:]).to_bytes(4, "big")
        return DECODE(bytes(changed), start)

    def from_the_start(raw: bytes, _start: int) -> gateway_native.Fetched | None:
        return DECODE(raw, 0)

    assert is_decoding_proved(DECODE)
    for other in (without_sums, from_the_start, lambda _raw, _start: None):
        assert not is_decoding_proved(other)


def test_a_module_of_before_is_refused_with_a_sentence() -> None:
    assert difference_of(SimpleNamespace(__version__="0.1.0")) == "it is of an earlier version"
    assert difference_of(gateway_native) is None


async def test_both_read_the_same_of_a_log_on_kafka(kafka_bootstrap: str) -> None:
    """With markers of fences between the batches, to every end, and in short reads."""
    topic = f"native-{uuid4().hex[:8]}"
    await create_topic(kafka_bootstrap, topic)
    config = kafka_config(kafka_bootstrap)
    stores = [await KafkaStore.open(each) for each in (config, replace(config, native_decode=DECODE))]
    logs = [store.partition_log(topic, 0) for store in stores]
    lane_seq = 0
    for count in (1, 40, 3):
        await logs[0].fence()
        records = [
            build_record(
                Event(IDENTITY.message_key("web", str(seq)), 0, bytes(8), "web", str(seq), b"{}" * 300),
                lane_seq=seq,
                timestamp_ms=FIRST_MS,
            )
            for seq in range(lane_seq, lane_seq + count)
        ]
        await logs[0].append(records)
        lane_seq += count
    check, (start, end) = RecordCheck(IDENTITY, 0, 1), await logs[0].bounds()
    kinds = set()
    for first in (start, 3, end - 2):
        for last in (first + 1, first + 7, end):
            for records_max in (None, 5):
                results = []
                for log in logs:
                    found: list[object] = []
                    async for read in log.read(first, min(last, end), records_max=records_max):
                        kinds.add(type(read))
                        found += zip(read, checked(read, check), strict=True)
                    results.append(found)
                assert results[0] == results[1]
    assert kinds == {list, PlainRecords}
    for log, store in zip(logs, stores, strict=True):
        await log.close()
        await store.close()
