"""
What every log owes its lanes, whatever it is made of.

A subclass's module has a fixture `world`: one log with one new topic, and how its outside is moved.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from dedupe.model.errors import FencedError, NotAppendedError, OutcomeUnknownError, RetriableError
from dedupe.model.types import Headers, LogRecord, NewRecord, Offset
from dedupe.storage.log import NOTE_BYTES_MAX, Crashpoint, LogStore, PartitionLog, no_crashpoint
from tests.support.waiting import PATIENCE_S

PARTITIONS = 2

# The present, because a broker's retention is free to delete what is older.
START_MS = int(time.time() * 1000)


class Crash(BaseException):
    """Ends an append half-way, as the end of its process would."""


class LogWorld(ABC):
    """One log with a topic of PARTITIONS partitions that nobody else uses."""

    topic: str

    def __init__(self) -> None:
        """Open nothing yet."""
        self._stores: list[LogStore] = []
        self._logs: list[PartitionLog] = []

    async def open(self, crashpoint: Crashpoint = no_crashpoint) -> LogStore:
        """Return a connection to the log, as a process of its own would have."""
        store = await self.connect(crashpoint)
        self._stores.append(store)
        return store

    async def log(self, partition: int = 0, *, crashpoint: Crashpoint = no_crashpoint) -> PartitionLog:
        """Return a partition, on a connection of its own."""
        log = (await self.open(crashpoint)).partition_log(self.topic, partition)
        self._logs.append(log)
        return log

    async def close(self) -> None:
        """Close whatever was opened."""
        for log in self._logs:
            await log.close()
        for store in self._stores:
            await store.close()

    @abstractmethod
    async def connect(self, crashpoint: Crashpoint) -> LogStore:
        """Open the log."""

    @abstractmethod
    async def trim(self, partition: int, first_kept: LogRecord) -> None:
        """Let retention delete everything before a record."""


def crash_once_at(step: str) -> Crashpoint:
    """Return a crash point that raises Crash the first time a step is reached."""
    crashes = [Crash(step)]

    def crashpoint(name: str) -> None:
        if name == step and crashes:
            raise crashes.pop()

    return crashpoint


def records_of(first: int, count: int) -> list[NewRecord]:
    """Return records `first`, `first` + 1, ...: each differs, and has bytes that are no text."""
    return [
        NewRecord(
            timestamp_ms=START_MS + number,
            key=f"id-{number}-é".encode(),
            value=b'{"n":%d,"bytes":"\x00\xff"}' % number,
            headers=headers_of(number),
        )
        for number in range(first, first + count)
    ]


def headers_of(number: int) -> Headers:
    """Return the headers of record format v1, every third time those of the quarantine."""
    headers = [("source", "web-ü".encode()), ("gw", b"\x01\x00" + number.to_bytes(8, "big"))]
    return [*headers, ("reason", b"conflict")] if number % 3 == 2 else headers


def at(base: Offset, records: Sequence[NewRecord]) -> list[LogRecord]:
    """Return what the log should hold once `records` are committed at `base`."""
    return [LogRecord(base + place, *record) for place, record in enumerate(records)]


async def read_all(
    log: PartitionLog, start: Offset, end: Offset, *, records_max: int | None = None
) -> list[LogRecord]:
    """Return all records of [start, end), or the first few."""
    found: list[LogRecord] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        aclosing(log.read(start, end, records_max=records_max)) as batches,
    ):
        async for batch in batches:
            assert batch, "batches are never empty"
            found += batch
    return found


async def visible_end(log: PartitionLog, at_least: Offset = 0) -> Offset:
    """Return the last stable offset, once it is there: Kafka answers a commit before readers see it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, end = await log.bounds()
            if end >= at_least:
                return end
            await asyncio.sleep(0.005)


async def assert_holds(log: PartitionLog, expected: Sequence[LogRecord], *, start: Offset = 0) -> None:
    """From `start` on the partition holds exactly these records."""
    end = await visible_end(log, expected[-1].offset + 1 if expected else 0)
    found = await read_all(log, start, end)
    assert found == list(expected), f"found {found[:3]}... of {len(found)}, expected {len(expected)}"


async def keep(store: LogStore, name: str, topic: str, partition: int, text: str) -> None:
    """Keep a note as a gateway does: again, while the log says that it cannot now."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await store.note(name, topic, partition, text)
            except RetriableError:
                await asyncio.sleep(0.05)


async def assert_offset_at(log: PartitionLog, timestamp_ms: int, records: Sequence[LogRecord]) -> None:
    """Of the partition's records, exactly the older ones may be skipped for a timestamp."""
    end = await visible_end(log, records[-1].offset + 1)
    first = await log.offset_at(timestamp_ms)
    assert first <= next((record.offset for record in records if record.timestamp_ms >= timestamp_ms), end)
    assert all(record.timestamp_ms < timestamp_ms for record in records if record.offset < first)


async def fenced(world: LogWorld, partition: int = 0) -> PartitionLog:
    """Return the partition's newest writer, on a connection of its own."""
    log = await world.log(partition)
    await log.fence()
    return log


async def interrupted(world: LogWorld, records: Sequence[NewRecord], step: str) -> PartitionLog:
    """Return a writer whose append has ended at a step, with whatever it left in the log."""
    zombie = await world.log(crashpoint=crash_once_at(step))
    await zombie.fence()
    with pytest.raises((Crash, OutcomeUnknownError)):
        await zombie.append(records)
    return zombie


class LogContract:
    """Inherit it in a module with a fixture `world`."""

    # ---- appending and reading

    async def test_records_are_read_back_whole_at_consecutive_offsets(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 5)

        base = await log.append(records)

        await assert_holds(log, at(base, records))

    async def test_empty_key_and_value_are_read_back(self, world: LogWorld) -> None:
        log = await fenced(world)
        record = NewRecord(START_MS, b"", b"", headers_of(0))

        base = await log.append([record])

        await assert_holds(log, at(base, [record]))

    async def test_other_headers_are_read_back(self, world: LogWorld) -> None:
        log = await fenced(world)
        others = [("origin", b"raw:raw/0/1"), ("binary", bytes(range(256)))]
        record = NewRecord(START_MS, b"k", b"v", [*headers_of(0), *others])

        base = await log.append([record])

        await assert_holds(log, at(base, [record]))

    async def test_appends_follow_each_other(self, world: LogWorld) -> None:
        log = await fenced(world)
        bases = [await log.append(records_of(3 * number, 3)) for number in range(4)]

        assert all(earlier + 3 <= later for earlier, later in pairwise(bases))
        expected = [record for number in range(4) for record in at(bases[number], records_of(3 * number, 3))]
        await assert_holds(log, expected)

    async def test_append_of_many_records_is_read_back(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 1000)

        base = await log.append(records)

        await assert_holds(log, at(base, records))

    async def test_probe_is_answered_and_stores_nothing_and_fences_nobody(self, world: LogWorld) -> None:
        earlier = await fenced(world)
        await earlier.append(records_of(0, 1))
        await earlier.probe()
        log = await fenced(world)
        base = await log.append(records_of(1, 2))
        await log.probe()
        await earlier.probe()

        assert await log.append(records_of(3, 1)) == base + 2
        assert (await log.bounds())[1] == base + 3
        assert log.leader
        assert log.leader == earlier.leader
        assert len(await read_all(log, 0, base + 3)) == 4

    async def test_read_returns_the_asked_range_only(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 10)
        base = await log.append(records)
        expected = at(base, records)

        assert await read_all(log, base + 3, base + 7) == expected[3:7]
        assert await read_all(log, 0, base + 7) == expected[:7]  # a marker may stand before the first
        assert await read_all(log, base + 9, base + 10) == expected[9:]
        assert await read_all(log, base + 4, base + 4) == []

    async def test_read_of_nothing_ends(self, world: LogWorld) -> None:
        log = await fenced(world)

        assert await read_all(log, 0, 0) == []
        await assert_holds(log, [])

    async def test_read_ends_at_the_bounds_behind_the_last_record(self, world: LogWorld) -> None:
        log = await fenced(world)
        base = await log.append(records_of(0, 2))

        end = await visible_end(log, base + 2)

        assert (await log.bounds())[0] == 0
        assert [record.offset for record in await read_all(log, base + 1, end)] == [base + 1]
        assert await read_all(log, base + 2, end) == []

    async def test_short_read_returns_the_first_records_only(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 300)
        base = await log.append(records)
        expected = at(base, records)
        end = await visible_end(log, base + 300)

        assert await read_all(log, base, end, records_max=1) == expected[:1]
        assert await read_all(log, base + 2, end, records_max=250) == expected[2:252]
        assert await read_all(log, base + 298, end, records_max=3) == expected[298:]
        assert await read_all(log, base + 2, base + 4, records_max=3) == expected[2:4]
        assert await read_all(log, base, end, records_max=0) == []

    async def test_short_read_returns_a_record_of_any_size(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = [NewRecord(START_MS, b"large", bytes(700_000), headers_of(0)), *records_of(0, 1)]
        base = await log.append(records)

        found = await read_all(log, base, await visible_end(log, base + 2), records_max=1)

        assert found == at(base, records)[:1]

    async def test_record_at_an_offset_is_that_one_or_none(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 5)
        expected = at(await log.append(records), records)
        await visible_end(log, expected[-1].offset + 1)

        for record in (expected[3], expected[0], expected[4], expected[3]):
            assert await log.record_at(record.offset) == record
        again = await log.append(records_of(5, 1))
        await visible_end(log, again + 1)
        assert await log.record_at(again) == at(again, records_of(5, 1))[0]

    async def test_record_at_an_offset_outside_of_the_bounds_is_none_or_unknown(
        self, world: LogWorld
    ) -> None:
        log = await fenced(world)
        expected = at(await log.append(records_of(0, 6)), records_of(0, 6))
        end = await visible_end(log, expected[-1].offset + 1)
        await world.trim(0, expected[4])

        for offset in (expected[3].offset, end + 10):
            with suppress(RetriableError):
                assert await log.record_at(offset) is None
        assert await log.record_at(expected[4].offset) == expected[4]

    async def test_offset_at_lies_behind_older_records_and_no_newer_one(self, world: LogWorld) -> None:
        log = await fenced(world)
        records: list[LogRecord] = []
        for number in (0, 10, 20):
            records += at(await log.append(records_of(number, 3)), records_of(number, 3))

        for number in (-START_MS, -START_MS - 1, -START_MS - 2, -1, 0, 1, 5, 10, 12, 13, 20, 22, 23, 10**12):
            await assert_offset_at(log, START_MS + number, records)

    async def test_offset_at_with_no_record_as_new_lies_within_the_bounds(self, world: LogWorld) -> None:
        log = await fenced(world)
        assert 0 <= await log.offset_at(START_MS) <= (await log.bounds())[1]
        base = await log.append(records_of(0, 3))
        end = await visible_end(log, base + 3)

        first = await log.offset_at(START_MS + 3)

        assert 0 <= first <= end

    async def test_offset_at_sees_no_record_before_its_commit(self, world: LogWorld) -> None:
        await interrupted(world, records_of(0, 3), "append")
        reader = await world.log()

        assert 0 <= await reader.offset_at(START_MS) <= (await reader.bounds())[1]

    async def test_offset_at_begins_at_the_log_start(self, world: LogWorld) -> None:
        log = await fenced(world)
        base = await log.append(records_of(0, 6))
        kept = at(base, records_of(0, 6))[4]
        await visible_end(log, base + 6)
        await world.trim(0, kept)

        assert await log.offset_at(START_MS) == kept.offset

    async def test_reading_while_others_append_sees_every_record_once(self, world: LogWorld) -> None:
        writer = await fenced(world)
        reader = await world.log()
        found: list[LogRecord] = []

        async def append_all() -> None:
            for number in range(20):
                await writer.append(records_of(10 * number, 10))

        async def follow() -> None:
            position = 0
            while len(found) < 200:
                _, end = await reader.bounds()
                found.extend(await read_all(reader, position, end))
                position = end

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(append_all(), follow())

        assert [record[1:] for record in found] == records_of(0, 200)
        await assert_holds(writer, found)

    # ---- notes

    async def test_note_is_found_by_every_process(self, world: LogWorld) -> None:
        writer, reader = await world.open(), await world.open()
        text = "ü" * (NOTE_BYTES_MAX // 2)

        await keep(writer, "pin", world.topic, 1, text)

        assert await reader.notes("pin", world.topic) == {1: text}

    async def test_note_takes_the_place_of_its_predecessor(self, world: LogWorld) -> None:
        first, second = await world.open(), await world.open()
        await keep(first, "pin", world.topic, 0, "old")
        await keep(second, "pin", world.topic, 0, "")

        assert await first.notes("pin", world.topic) == {0: ""}

    async def test_notes_of_other_names_partitions_and_topics_are_left_alone(self, world: LogWorld) -> None:
        store = await world.open()
        await keep(store, "pin", world.topic, 0, "a")
        await keep(store, "pin", world.topic, 1, "b")
        await keep(store, "trim", world.topic, 0, "c")
        await keep(store, "pin", world.topic, 0, "d")

        assert await store.notes("pin", world.topic) == {0: "d", 1: "b"}
        assert await store.notes("trim", world.topic) == {0: "c"}
        assert await store.notes("other", world.topic) == {}
        assert await store.notes("pin", "nobody-made-this") == {}

    async def test_note_changes_nothing_in_the_log(self, world: LogWorld) -> None:
        log = await fenced(world)
        base = await log.append(records_of(0, 1))
        store = await world.open()

        await keep(store, "pin", world.topic, 0, "a")

        after = await log.append(records_of(1, 1))
        await assert_holds(log, [*at(base, records_of(0, 1)), *at(after, records_of(1, 1))])

    # ---- transactions that do not end well

    async def test_append_is_invisible_before_its_commit(self, world: LogWorld) -> None:
        await interrupted(world, records_of(0, 3), "append")
        reader = await world.log()

        _, end = await reader.bounds()

        assert await read_all(reader, 0, end) == []

    async def test_fence_aborts_what_a_zombie_left_open(self, world: LogWorld) -> None:
        await interrupted(world, records_of(0, 3), "append")
        successor = await world.log()

        end = await successor.fence()

        assert await read_all(successor, 0, end) == []
        base = await successor.append(records_of(7, 2))
        assert base >= end
        await assert_holds(successor, at(base, records_of(7, 2)))

    async def test_fence_keeps_what_a_zombie_committed_without_being_told(self, world: LogWorld) -> None:
        await interrupted(world, records_of(0, 3), "commit")
        successor = await world.log()

        end = await successor.fence()

        assert [record[1:] for record in await read_all(successor, 0, end)] == records_of(0, 3)

    async def test_read_ends_by_position_where_the_last_offsets_hold_no_record(self, world: LogWorld) -> None:
        first = await fenced(world)
        base = await first.append(records_of(0, 2))
        await interrupted(world, records_of(2, 3), "append")
        successor = await world.log()

        end = await successor.fence()

        assert await read_all(successor, 0, end) == at(base, records_of(0, 2))

    async def test_append_after_an_error_needs_a_fence(self, world: LogWorld) -> None:
        log = await interrupted(world, records_of(0, 3), "append")

        with pytest.raises(NotAppendedError):
            await log.append(records_of(3, 1))

        end = await log.fence()
        base = await log.append(records_of(3, 1))
        assert base >= end
        await assert_holds(log, at(base, records_of(3, 1)))

    async def test_append_before_any_fence_is_refused(self, world: LogWorld) -> None:
        log = await world.log()

        with pytest.raises(NotAppendedError):
            await log.append(records_of(0, 1))

        assert await log.bounds() == (0, 0)

    async def test_cancelled_append_is_there_whole_or_not_at_all(self, world: LogWorld) -> None:
        log = await fenced(world)
        for _ in range(5):
            append = asyncio.ensure_future(log.append(records_of(0, 3)))
            await asyncio.sleep(0)
            append.cancel()
            with pytest.raises(asyncio.CancelledError):
                await append
            with pytest.raises(NotAppendedError):
                await log.append(records_of(3, 1))
            end = await log.fence()
            before = await read_all(log, 0, end)
            assert len(before) % 3 == 0
            assert (await log.bounds())[1] == end

    # ---- fencing

    async def test_fence_returns_an_end_behind_everything_committed(self, world: LogWorld) -> None:
        first = await fenced(world)
        base = await first.append(records_of(0, 4))
        second = await world.log()

        end = await second.fence()

        assert end >= base + 4
        assert await read_all(second, 0, end) == at(base, records_of(0, 4))
        assert (await second.bounds())[1] == end

    async def test_append_after_a_second_fence_is_refused_and_leaves_nothing(self, world: LogWorld) -> None:
        first = await fenced(world)
        base = await first.append(records_of(0, 2))
        second = await world.log()
        end = await second.fence()

        with pytest.raises(FencedError):
            await first.append(records_of(2, 5))

        await assert_holds(second, at(base, records_of(0, 2)))
        after = await second.append(records_of(2, 1))
        assert after >= end
        await assert_holds(second, [*at(base, records_of(0, 2)), *at(after, records_of(2, 1))])

    async def test_fenced_writer_takes_over_again_by_fencing(self, world: LogWorld) -> None:
        first = await fenced(world)
        second = await world.log()
        await second.fence()
        with pytest.raises(FencedError):
            await first.append(records_of(0, 1))

        await first.fence()
        base = await first.append(records_of(0, 1))

        with pytest.raises(FencedError):
            await second.append(records_of(1, 1))
        await assert_holds(first, at(base, records_of(0, 1)))

    async def test_fence_while_an_append_is_under_way_decides_it(self, world: LogWorld) -> None:
        first = await world.log()
        second = await world.log()
        committed: list[NewRecord] = []
        for number in range(6):
            await first.fence()
            append = asyncio.ensure_future(first.append(records_of(2 * number, 2)))
            for _ in range(number):
                await asyncio.sleep(0)
            end = await second.fence()
            seen = [NewRecord(*record[1:]) for record in await read_all(second, 0, end)]
            try:
                await append
            except (FencedError, NotAppendedError):
                assert seen == committed
            except OutcomeUnknownError:
                assert seen in (committed, committed + records_of(2 * number, 2))
            else:
                assert seen == committed + records_of(2 * number, 2)
            committed = seen
            assert (await second.bounds())[1] == end

    async def test_bounds_and_read_leave_the_writer_alone(self, world: LogWorld) -> None:
        writer = await fenced(world)
        base = await writer.append(records_of(0, 1))
        other = await world.log()

        await assert_holds(other, at(base, records_of(0, 1)))

        after = await writer.append(records_of(1, 1))
        await assert_holds(writer, [*at(base, records_of(0, 1)), *at(after, records_of(1, 1))])

    async def test_partitions_are_independent(self, world: LogWorld) -> None:
        first, second = await fenced(world, 0), await fenced(world, 1)
        first_base = await first.append(records_of(0, 2))
        second_base = await second.append(records_of(5, 3))

        await fenced(world, 1)
        with pytest.raises(FencedError):
            await second.append(records_of(8, 1))

        after = await first.append(records_of(2, 1))
        await assert_holds(first, at(first_base, records_of(0, 2)) + at(after, records_of(2, 1)))
        await assert_holds(second, at(second_base, records_of(5, 3)))

    # ---- retention, closing, and the store

    async def test_read_from_below_the_log_start_begins_there_loudly(self, world: LogWorld) -> None:
        log = await fenced(world)
        records = records_of(0, 10)
        base = await log.append(records)
        expected = at(base, records)
        end = await visible_end(log, base + 10)
        await world.trim(0, expected[4])

        with capture_logs() as reports:
            found = await read_all(log, 0, end)

        assert (await log.bounds())[0] == expected[4].offset
        assert found == expected[4:]
        assert [report["log_level"] for report in reports] == ["warning"]

    async def test_append_continues_after_retention(self, world: LogWorld) -> None:
        log = await fenced(world)
        base = await log.append(records_of(0, 6))
        kept = at(base, records_of(0, 6))[5]
        await visible_end(log, base + 6)
        await world.trim(0, kept)

        after = await log.append(records_of(6, 1))

        assert after >= base + 6
        await assert_holds(log, [kept, *at(after, records_of(6, 1))], start=kept.offset)

    async def test_closed_writer_refuses_to_append(self, world: LogWorld) -> None:
        log = await fenced(world)
        await log.close()
        await log.close()

        with pytest.raises(NotAppendedError):
            await log.append(records_of(0, 1))

    async def test_everything_is_there_after_closing_and_reopening(self, world: LogWorld) -> None:
        store = await world.open()
        log = store.partition_log(world.topic, 1)
        await log.fence()
        base = await log.append(records_of(0, 20))
        await log.close()
        await store.close()
        await store.close()

        reopened = await world.open()

        assert reopened.log_id == store.log_id
        assert await reopened.partitions_of(world.topic) == PARTITIONS
        await assert_holds(reopened.partition_log(world.topic, 1), at(base, records_of(0, 20)))

    async def test_two_appenders_of_one_topic_append_beside_each_other(self, world: LogWorld) -> None:
        first, second = [(await world.open()).appender(world.topic) for _ in range(2)]
        for number, appender in enumerate((first, second, first, second)):
            while True:
                try:
                    await appender.append(records_of(number, 1))
                    break
                except RetriableError:  # where there is one writer at a time, as it says
                    continue
        for appender in (first, second):
            await appender.close()

        log = (await world.open()).partition_log(world.topic, 0)
        start, end = await log.bounds()
        found = [record.key for record in await read_all(log, start, end)]
        assert found == [record.key for record in records_of(0, 4)]

    async def test_partitions_of_an_unknown_topic_is_zero(self, world: LogWorld) -> None:
        store = await world.open()

        assert await store.partitions_of("nobody-made-this") == 0
        assert await store.partitions_of(world.topic) == PARTITIONS

    async def test_closing_the_store_during_an_append_leaves_no_one_waiting(self, world: LogWorld) -> None:
        store = await world.open()
        log = store.partition_log(world.topic, 0)
        await log.fence()
        append = asyncio.ensure_future(log.append(records_of(0, 3)))
        await asyncio.sleep(0)

        await log.close()
        async with asyncio.timeout(PATIENCE_S):
            await store.close()
            try:
                await append
                count = 3
            except (NotAppendedError, FencedError):
                count = 0
            except RetriableError:
                count = -1

        successor = await world.log()
        found = len(await read_all(successor, 0, await successor.fence()))
        assert found == count if count >= 0 else found in (0, 3)
