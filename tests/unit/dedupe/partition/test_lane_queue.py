"""The lane's queue: shared fairly by sources, each of them first in, first out, within its bounds."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline
from dedupe.model.errors import LaneSaturatedError, OutcomeUnknownError
from dedupe.model.types import RECORD_OVERHEAD_BYTES, Event
from dedupe.partition.queue import (
    EVENT_COST_BYTES,
    QUANTUM_BYTES,
    Batch,
    LaneQueue,
    QueuedSubmission,
    QueueLimits,
)
from tests.support.settings import QUEUE_LIMITS
from tests.support.submissions import submission_of

EXAMPLES = settings(max_examples=200)

LIMITS = QueueLimits(queue_events_max=20, queue_bytes_max=20_000, batch_events_max=4, batch_bytes_max=2_000)


class StoppedClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1_000)

    def monotonic(self) -> float:
        return self.now_s


CLOCK = StoppedClock()


def event(name: str, *, size_bytes: int = 300, source: str = "web") -> Event:
    value = b"x" * (size_bytes - RECORD_OVERHEAD_BYTES - len(source) - 4 * len(name))
    return Event(name.encode().ljust(16), 0, b"f" * 8, source, name, value)


def put(
    queue: LaneQueue, events: Sequence[Event], *, deadline: Deadline | None = None, received_ms: int = 0
) -> QueuedSubmission:
    deadline = deadline or Deadline(CLOCK, 10)
    return queue.put(submission_of(events, received_ms=received_ms, deadline=deadline), CLOCK.now_s)


def check(queue: LaneQueue, events: int, size_bytes: int, source: str) -> None:
    queue.check_capacity(submission_of([event("n", source=source)] * events, size_bytes=size_bytes))


def names(batch: Batch) -> str:
    return "".join(one.message_id for one in batch.events)


def decide(one: QueuedSubmission, offsets: Iterable[int]) -> None:
    told = list(offsets)
    one.decide([Admission.NEW] * len(told), told)


async def test_empty_queue_gives_an_empty_batch() -> None:
    batch = LaneQueue(LIMITS).take_batch()

    assert batch.events == []
    assert batch.shares == []


async def test_submissions_share_a_batch_in_order() -> None:
    queue = LaneQueue(LIMITS)
    first = put(queue, [event("a"), event("b")], received_ms=5)
    second = put(queue, [event("c")], received_ms=4)

    batch = queue.take_batch()

    assert names(batch) == "abc"
    assert batch.shares == [(first, 2), (second, 1)]
    assert batch.received_ms == 5
    assert queue.events == 0
    assert queue.take_batch().events == []


async def test_batch_is_bounded_by_events() -> None:
    queue = LaneQueue(LIMITS)
    first = put(queue, [event("a"), event("b"), event("c")])
    second = put(queue, [event("d"), event("e")])

    taken, rest = queue.take_batch(), queue.take_batch()

    assert (names(taken), names(rest)) == ("abcd", "e")
    assert taken.shares == [(first, 3), (second, 1)]
    assert rest.shares == [(second, 1)]


async def test_batch_is_bounded_by_bytes() -> None:
    queue = LaneQueue(LIMITS)
    put(queue, [event("a", size_bytes=1_000), event("b", size_bytes=1_000)])
    put(queue, [event("c", size_bytes=1_001)])
    put(queue, [event("d", size_bytes=1_000)])

    assert [names(queue.take_batch()) for _ in range(4)] == ["ab", "c", "d", ""]


async def test_event_larger_than_a_batch_goes_alone() -> None:
    queue = LaneQueue(LIMITS)
    put(queue, [event("a", size_bytes=2_001), event("b")])

    assert [names(queue.take_batch()) for _ in range(2)] == ["a", "b"]


async def test_submission_larger_than_a_batch_counts_until_its_last_event_is_taken() -> None:
    queue = LaneQueue(LIMITS)
    large = put(queue, [event(name) for name in "abcdef"])

    queue.take_batch()

    assert queue.events == 6
    assert large.taken == 4
    queue.take_batch()
    assert queue.events == 0


async def test_room_is_bounded_by_events_and_by_bytes() -> None:
    queue = LaneQueue(LIMITS)
    for source in ("a", "b", "c"):
        put(queue, [event("x", size_bytes=1_000, source=source)] * 5)

    check(queue, 5, 5_000, "d")
    with pytest.raises(LaneSaturatedError):
        check(queue, 6, 6, "d")
    with pytest.raises(LaneSaturatedError):
        check(queue, 1, 5_001, "d")
    queue.take_all()
    check(queue, 20, 20_000, "a")


async def test_source_has_no_more_room_than_it_leaves_to_others() -> None:
    queue = LaneQueue(LIMITS)
    put(queue, [event("a", size_bytes=400)] * 9)

    check(queue, 1, 400, "web")
    for too_many in [(2, 800), (1, 16_400 - 3_600)]:
        with pytest.raises(LaneSaturatedError):
            check(queue, *too_many, "web")
    check(queue, 11, 16_400, "other")
    put(queue, [event("b", source="other")] * 11)
    with pytest.raises(LaneSaturatedError):
        check(queue, 1, 300, "web")


def test_any_number_of_greedy_sources_leaves_room_for_another() -> None:
    async def fill(greedy: int) -> None:
        queue = LaneQueue(replace(QUEUE_LIMITS, queue_events_max=1_000))
        is_full = False
        while not is_full:
            is_full = True
            for source in map(str, range(greedy)):
                try:
                    check(queue, 1, 300, source)
                except LaneSaturatedError:
                    continue
                put(queue, [event("x", source=source)])
                is_full = False
        assert 1_000 - queue.events >= 1_000 // (greedy + 1)

    for greedy in (1, 2, 9):
        asyncio.run(fill(greedy))


async def test_expired_submissions_leave_from_the_head() -> None:
    clock = StoppedClock()
    queue = LaneQueue(LIMITS)
    soon, late = Deadline(clock, 1), Deadline(clock, 9)
    submissions = [
        put(queue, [event(n)], deadline=d) for n, d in [("a", soon), ("b", soon), ("c", late), ("d", soon)]
    ]
    assert list(queue.take_expired()) == []

    clock.now_s += 2

    assert list(queue.take_expired()) == submissions[:2]
    assert names(queue.take_batch()) == "cd"  # what waits behind a living one is decided anyway


async def test_submission_once_begun_never_expires() -> None:
    clock = StoppedClock()
    queue = LaneQueue(LIMITS)
    put(queue, [event(name) for name in "abcde"], deadline=Deadline(clock, 1))
    queue.take_batch()

    clock.now_s += 2

    assert list(queue.take_expired()) == []
    assert names(queue.take_batch()) == "e"


async def test_take_all_empties_the_queue() -> None:
    queue = LaneQueue(LIMITS)
    submissions = [put(queue, [event("a")]), put(queue, [event("b")])]

    assert queue.take_all() == submissions
    assert queue.take_all() == []
    assert queue.events == 0


# ---- sources


TURN_EVENTS = QUANTUM_BYTES // (event("a").size_bytes + EVENT_COST_BYTES)


@pytest.mark.regression("One greedy source kept all others out of a partition.")
async def test_source_that_sends_little_is_in_the_next_batch() -> None:
    queue = LaneQueue(QUEUE_LIMITS)
    for _ in range(64):
        put(queue, [event("n", source="noisy")] * 100)
    put(queue, [event("q", source="quiet")] * 10)

    assert names(queue.take_batch()).count("q") == 10


async def test_sources_share_a_batch_by_turns() -> None:
    queue = LaneQueue(QUEUE_LIMITS)
    for source in "abc":
        for _ in range(20):
            put(queue, [event(source, source=source)] * 100)

    taken = names(queue.take_batch())

    assert taken.startswith("a" * TURN_EVENTS + "b" * TURN_EVENTS + "c" * TURN_EVENTS + "a")
    assert max(map(taken.count, "abc")) - min(map(taken.count, "abc")) <= TURN_EVENTS + 1
    taken += names(queue.take_batch())
    assert max(map(taken.count, "abc")) - min(map(taken.count, "abc")) <= TURN_EVENTS + 1


async def test_large_events_wait_for_their_turns_and_take_no_more_than_small_ones() -> None:
    queue = LaneQueue(QUEUE_LIMITS)
    for _ in range(100):
        put(queue, [event("L", size_bytes=400_000, source="large")])
        put(queue, [event("s", size_bytes=1_024, source="small")] * 200)

    taken = "".join(names(queue.take_batch()) for _ in range(10))

    assert taken.count("L") * 400_000 == pytest.approx(taken.count("s") * 2_048, rel=0.2)


async def test_submission_taken_in_turns_is_answered_in_order() -> None:
    queue = LaneQueue(QUEUE_LIMITS)
    large = put(queue, [event(f"{n:03}", source="large") for n in range(200)])
    small = put(queue, [event("s", source="small")] * 200)

    batch = queue.take_batch()
    assert len(batch.shares) > 4  # both of them several times
    start = 0
    for one, count in batch.shares:
        events = batch.events[start : start + count]
        decide(one, [int(e.message_id) if one is large else 0 for e in events])
        start += count

    assert large.answer.result().offsets == list(range(200))
    assert small.answer.done()


async def test_expired_submissions_of_every_source_leave() -> None:
    clock = StoppedClock()
    queue = LaneQueue(LIMITS)
    put(queue, [event("a", source="a")], deadline=Deadline(clock, 9))
    expired = put(queue, [event("b", source="b")], deadline=Deadline(clock, 1))

    clock.now_s += 2

    assert list(queue.take_expired()) == [expired]
    assert (names(queue.take_batch()), queue.events) == ("a", 0)


# ---- answers


async def test_answer_is_given_with_the_last_outcome() -> None:
    one = put(LaneQueue(LIMITS), [event(name) for name in "abc"])

    decide(one, [0, 1])
    assert not one.answer.done()
    decide(one, [7])

    assert await one.answer == ([Admission.NEW] * 3, [0, 1, 7])


async def test_failed_answer_stays_failed() -> None:
    one = put(LaneQueue(LIMITS), [event("a")])

    one.fail(OutcomeUnknownError("first"))
    one.fail(OutcomeUnknownError("second"))
    decide(one, [0])

    with pytest.raises(OutcomeUnknownError, match="first"):
        await one.answer


async def test_cancelled_answer_is_left_alone() -> None:
    queue = LaneQueue(LIMITS)
    one, other = put(queue, [event("a")]), put(queue, [event("b")])
    one.answer.cancel()
    other.answer.cancel()

    decide(one, [0])
    other.fail(OutcomeUnknownError("late"))

    assert one.answer.cancelled()
    assert other.answer.cancelled()


# ---- for every queue


@EXAMPLES
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(250, 2_500), min_size=1, max_size=9)),
        max_size=12,
    )
)
def test_every_event_is_taken_once_in_its_sources_order_within_the_limits(
    rows: list[tuple[str, list[int]]],
) -> None:
    async def check() -> None:
        queue = LaneQueue(LIMITS)
        submissions = [
            put(queue, [event(f"{i}-{j}", size_bytes=s, source=source) for j, s in enumerate(sizes)])
            for i, (source, sizes) in enumerate(rows)
        ]
        taken: list[Event] = []
        while (batch := queue.take_batch()).events:
            assert len(batch.events) <= 4
            size_bytes = sum(one.size_bytes for one in batch.events)
            assert batch.size_bytes == size_bytes
            assert len(batch.events) == 1 or size_bytes <= 2_000
            assert sum(count for _, count in batch.shares) == len(batch.events)
            start = 0
            for one, count in batch.shares:
                decide(one, range(len(taken) + start, len(taken) + start + count))
                start += count
            taken += batch.events
        for source in "abc":
            sent = [one for each in submissions for one in each.submission.events if one.source == source]
            assert [one for one in taken if one.source == source] == sent
        for one in submissions:
            assert [taken[offset] for offset in one.answer.result().offsets] == one.submission.events
        assert queue.events == 0

    asyncio.run(check())
