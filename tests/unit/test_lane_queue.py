"""The lane's queue: first in, first out, within its bounds, and never half a decision."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupe.admission import Admission
from dedupe.clock import Deadline
from dedupe.errors import LaneSaturatedError, OutcomeUnknownError
from dedupe.lane_queue import Batch, LaneQueue, Outcome, QueueLimits, Submission
from dedupe.types import RECORD_OVERHEAD_BYTES, Event

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


def event(name: str, *, size_bytes: int = 300) -> Event:
    value = b"x" * (size_bytes - RECORD_OVERHEAD_BYTES - len("web") - 4 * len(name))
    return Event(name.encode().ljust(16), 0, b"f" * 8, "web", name, value)


def submission(
    events: Sequence[Event], *, deadline: Deadline | None = None, received_ms: int = 0
) -> Submission:
    return Submission(
        events,
        received_ms,
        deadline or Deadline(CLOCK, 10),
        asyncio.get_running_loop().create_future(),
        sum(one.size_bytes for one in events),
    )


def names(batch: Batch) -> str:
    return "".join(one.message_id for one in batch.events)


def new_outcomes(count: int, first: int = 0) -> list[Outcome]:
    return [Outcome(Admission.NEW, first + i) for i in range(count)]


async def test_empty_queue_gives_an_empty_batch() -> None:
    batch = LaneQueue(LIMITS).take_batch()

    assert batch.events == []
    assert batch.shares == []


async def test_submissions_share_a_batch_in_order() -> None:
    queue = LaneQueue(LIMITS)
    first = submission([event("a"), event("b")], received_ms=5)
    second = submission([event("c")], received_ms=4)
    queue.put(first)
    queue.put(second)

    batch = queue.take_batch()

    assert names(batch) == "abc"
    assert batch.shares == [(first, 2), (second, 1)]
    assert batch.received_ms == 5
    assert queue.events == 0
    assert queue.take_batch().events == []


async def test_batch_is_bounded_by_events() -> None:
    queue = LaneQueue(LIMITS)
    first, second = submission([event("a"), event("b"), event("c")]), submission([event("d"), event("e")])
    queue.put(first)
    queue.put(second)

    taken, rest = queue.take_batch(), queue.take_batch()

    assert (names(taken), names(rest)) == ("abcd", "e")
    assert taken.shares == [(first, 3), (second, 1)]
    assert rest.shares == [(second, 1)]


async def test_batch_is_bounded_by_bytes() -> None:
    queue = LaneQueue(LIMITS)
    queue.put(submission([event("a", size_bytes=1_000), event("b", size_bytes=1_000)]))
    queue.put(submission([event("c", size_bytes=1_001)]))
    queue.put(submission([event("d", size_bytes=1_000)]))

    assert [names(queue.take_batch()) for _ in range(4)] == ["ab", "c", "d", ""]


async def test_event_larger_than_a_batch_goes_alone() -> None:
    queue = LaneQueue(LIMITS)
    queue.put(submission([event("a", size_bytes=2_001), event("b")]))

    assert [names(queue.take_batch()) for _ in range(2)] == ["a", "b"]


async def test_submission_larger_than_a_batch_counts_until_its_last_event_is_taken() -> None:
    queue = LaneQueue(LIMITS)
    large = submission([event(name) for name in "abcdef"])
    queue.put(large)

    queue.take_batch()

    assert queue.events == 6
    assert large.taken == 4
    queue.take_batch()
    assert queue.events == 0


async def test_room_is_bounded_by_events_and_by_bytes() -> None:
    queue = LaneQueue(LIMITS)
    queue.put(submission([event("a", size_bytes=1_000)] * 15))

    queue.check_room(5, 5_000)
    with pytest.raises(LaneSaturatedError):
        queue.check_room(6, 6)
    with pytest.raises(LaneSaturatedError):
        queue.check_room(1, 5_001)
    queue.take_all()
    queue.check_room(20, 20_000)


async def test_expired_submissions_leave_from_the_head() -> None:
    clock = StoppedClock()
    queue = LaneQueue(LIMITS)
    soon, late = Deadline(clock, 1), Deadline(clock, 9)
    submissions = [
        submission([event(n)], deadline=d) for n, d in [("a", soon), ("b", soon), ("c", late), ("d", soon)]
    ]
    for one in submissions:
        queue.put(one)
    assert list(queue.take_expired()) == []

    clock.now_s += 2

    assert list(queue.take_expired()) == submissions[:2]
    assert names(queue.take_batch()) == "cd"  # what waits behind a living one is decided anyway


async def test_submission_once_begun_never_expires() -> None:
    clock = StoppedClock()
    queue = LaneQueue(LIMITS)
    queue.put(submission([event(name) for name in "abcde"], deadline=Deadline(clock, 1)))
    queue.take_batch()

    clock.now_s += 2

    assert list(queue.take_expired()) == []
    assert names(queue.take_batch()) == "e"


async def test_take_all_empties_the_queue() -> None:
    queue = LaneQueue(LIMITS)
    submissions = [submission([event("a")]), submission([event("b")])]
    for one in submissions:
        queue.put(one)

    assert queue.take_all() == submissions
    assert queue.take_all() == []
    assert queue.events == 0


# ---- answers


async def test_answer_is_given_with_the_last_outcome() -> None:
    one = submission([event(name) for name in "abc"])

    one.decide(new_outcomes(2))
    assert not one.answer.done()
    one.decide(new_outcomes(1, first=7))

    assert await one.answer == [*new_outcomes(2), *new_outcomes(1, first=7)]


async def test_failed_answer_stays_failed() -> None:
    one = submission([event("a")])

    one.fail(OutcomeUnknownError("first"))
    one.fail(OutcomeUnknownError("second"))
    one.decide(new_outcomes(1))

    with pytest.raises(OutcomeUnknownError, match="first"):
        await one.answer


async def test_cancelled_answer_is_left_alone() -> None:
    one, other = submission([event("a")]), submission([event("b")])
    one.answer.cancel()
    other.answer.cancel()

    one.decide(new_outcomes(1))
    other.fail(OutcomeUnknownError("late"))

    assert one.answer.cancelled()
    assert other.answer.cancelled()


# ---- for every queue


@EXAMPLES
@given(st.lists(st.lists(st.integers(250, 2_500), min_size=1, max_size=9), max_size=8))
def test_every_event_is_taken_once_in_order_within_the_limits(sizes: list[list[int]]) -> None:
    async def check() -> None:
        queue = LaneQueue(LIMITS)
        submissions = [
            submission([event(f"{i}-{j}", size_bytes=size) for j, size in enumerate(row)])
            for i, row in enumerate(sizes)
        ]
        for one in submissions:
            queue.put(one)
        taken: list[Event] = []
        while (batch := queue.take_batch()).events:
            assert len(batch.events) <= 4
            assert len(batch.events) == 1 or sum(one.size_bytes for one in batch.events) <= 2_000
            assert sum(count for _, count in batch.shares) == len(batch.events)
            taken += batch.events
            start = 0
            for one, count in batch.shares:
                one.decide(new_outcomes(count, first=len(taken) - len(batch.events) + start))
                start += count
        assert taken == [one for each in submissions for one in each.events]
        answers = [outcome.offset for one in submissions for outcome in one.answer.result()]
        assert answers == list(range(len(taken)))
        assert queue.events == 0

    asyncio.run(check())
