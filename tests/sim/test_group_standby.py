"""Claim: whatever a standby hears or misses of its lane, it takes over with the index that the log says."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from dedupe.cluster.codec import COMMITTED, encode_committed
from dedupe.decide.committed import Committed, LastRecord
from dedupe.model.errors import IndexCorruptError
from dedupe.model.types import Event
from dedupe.storage.index import IndexIdentity
from tests.sim.group_world import GroupWorld, Worker
from tests.sim.test_group import NAMES, SERVED_AGAIN_S, owner_and_follower
from tests.support.sim.faults import SimFaults

Tamper = Callable[[Committed], Sequence[Committed]]
"""What arrives instead of a commit."""


def events_of(group: GroupWorld, prefix: str, number: int) -> list[Event]:
    """Return so many events of partition 0."""
    all_events = (group.world.event(f"{prefix}-{n}") for n in count())
    return [
        event for event, _ in zip((e for e in all_events if e.partition == 0), range(number), strict=False)
    ]


def tamper(worker: Worker, change: Tamper) -> None:
    """Change what arrives at the standby of lane 0."""
    follower = worker.router.all_lanes[0].follower
    receive = follower.receive

    def receive_other(committed: Committed) -> None:
        for other in change(committed):
            receive(other)

    follower.receive = receive_other  # type: ignore[method-assign] # what a network does


async def deliver_each(group: GroupWorld, events: Sequence[Event]) -> None:
    """Send events one by one, each a commit of its own."""
    for event in events:
        await group.deliver([event])


async def take_over(group: GroupWorld, owner: Worker, follower: Worker) -> None:
    """Kill the owner, and have the follower's answers judged: copies of all that was ever taken."""
    await owner.kill()
    assert await group.until(lambda: group.owner_of(0) is follower) < SERVED_AGAIN_S
    await group.settle()
    await group.judge()


@pytest.mark.parametrize("is_missed", [False, True], ids=["and hears", "and misses"])
async def test_standby_on_a_log_that_lost_its_tail_hears_what_replaced_it_or_reads_the_log(
    is_missed: bool,
) -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        await deliver_each(group, events_of(group, "old", 5))
        group.world.lose_tail(0, 1)
        if is_missed:
            number = count()
            tamper(follower, lambda committed: [committed] if next(number) else [])
        await deliver_each(group, events_of(group, "new", 3))

        await take_over(group, owner, follower)


async def test_standby_outlives_a_bug_of_its_own() -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        nonsense: Any = object()
        standby = follower.router.all_lanes[0].follower
        standby._replicated.append(nonsense)
        standby._arrived.set()
        await deliver_each(group, events_of(group, "x", 3))
        await group.until(lambda: 0 in follower.followed)

        await take_over(group, owner, follower)


def drop_every_third() -> Tamper:
    """Lose some, not the first one."""
    number = count(1)
    return lambda committed: [] if next(number) % 3 == 0 else [committed]


def double(committed: Committed) -> Sequence[Committed]:
    """Have each arrive twice."""
    return [committed, committed]


def swap_pairs() -> Tamper:
    """Have every second arrive before the one before it."""
    held: list[Committed] = []

    def swap(committed: Committed) -> Sequence[Committed]:
        if not held:
            held.append(committed)
            return []
        return [committed, held.pop()]

    return swap


def of_another_place(committed: Committed) -> Sequence[Committed]:
    """Have each say another place in the log first."""
    return [committed._replace(base=committed.base - 2), committed]


def of_the_past(committed: Committed) -> Sequence[Committed]:
    """Have each say an earlier time first."""
    return [committed._replace(timestamp_ms=0), committed]


def far_ahead(committed: Committed) -> Sequence[Committed]:
    """Have each claim first that much came in between."""
    return [committed._replace(first_seq=committed.first_seq + 100), committed]


@pytest.mark.parametrize(
    "make",
    [
        drop_every_third,
        lambda: double,
        swap_pairs,
        lambda: of_another_place,
        lambda: of_the_past,
        lambda: far_ahead,
        lambda: lambda _: [],
    ],
    ids=["lost", "doubled", "reordered", "other-place", "past", "ahead", "none"],
)
async def test_commits_that_do_not_fit_are_found_in_the_log(make: Callable[[], Tamper]) -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        tamper(follower, make())
        await deliver_each(group, events_of(group, "x", 20))
        await group.until(lambda: 0 in follower.followed)

        await take_over(group, owner, follower)


async def test_standby_applies_commits_and_does_not_read_the_log() -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        lane = follower.router.all_lanes[0]
        read = lane.metrics.restored_records
        await deliver_each(group, events_of(group, "x", 20))
        await asyncio.sleep(0.1)

        assert lane.partition_index.index.state.next_lane_seq == 20
        assert lane.metrics.restored_records == read
        await take_over(group, owner, follower)
        assert lane.metrics.restored_records == read


@pytest.mark.parametrize("missed", [1, 20])
async def test_standby_that_missed_commits_reads_the_log_within_seconds(missed: int) -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        _, follower = owner_and_follower(group)
        lane = follower.router.all_lanes[0]
        await deliver_each(group, events_of(group, "received", 1))
        await group.until(lambda: lane.partition_index.index.state.next_lane_seq == 1)
        tamper(follower, lambda _: [])
        await deliver_each(group, events_of(group, "missed", missed))

        assert await group.until(lambda: lane.partition_index.index.state.next_lane_seq == 1 + missed) < 6
        await group.judge()


@pytest.mark.parametrize(
    "place",
    range(8),
    ids=["seq", "base", "time", "after", "keys", "fingerprints", "secondary_keys", "sessions"],
)
@pytest.mark.parametrize("value", [None, -1, 2**70, "text", b"bytes", [None], [b"x"], {"a": 1}], ids=repr)
async def test_malformed_commits_end_nothing(place: int, value: object) -> None:
    async with GroupWorld("a", "b") as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        replicated = encode_committed(0, committed_next(follower, group.world.event("x")))
        replicated[1 + place] = value
        follower.handler.on_notification(owner.name, COMMITTED, replicated)
        await deliver_each(group, events_of(group, "x", 2))
        await group.until(lambda: 0 in follower.followed)

        await take_over(group, owner, follower)


def committed_next(follower: Worker, event: Event) -> Committed:
    """Return a commit that would go on from what the follower has."""
    state = follower.router.all_lanes[0].partition_index.index.state
    return Committed(
        state.next_lane_seq,
        state.applied_offset,
        follower.world.clock.now_ms(),
        LastRecord.of(state),
        [event.key],
        [event.fingerprint],
    )


async def test_standby_whose_index_cannot_be_deleted_goes_on_trying() -> None:
    async with GroupWorld(*NAMES) as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        identity = follower.world.index_identity(0)
        discard = follower.world.disk.discard
        refused: list[IndexIdentity] = []

        def refuse_twice(identity: IndexIdentity) -> None:
            if len(refused) < 2:
                refused.append(identity)
                raise IndexCorruptError("it cannot be deleted")
            discard(identity)

        follower.world.disk.discard = refuse_twice  # type: ignore[method-assign] # what a disk does
        follower.world.disk.damage(identity)
        await deliver_each(group, events_of(group, "x", 5))
        await group.until(lambda: len(refused) == 2)
        await group.until(lambda: 0 in follower.followed)

        await take_over(group, owner, follower)


async def test_worker_whose_log_fails_while_it_starts_holds_nobody_up() -> None:
    async with GroupWorld(*NAMES) as group:
        group.world.log.rng.faults = SimFaults(unavailable=0.3, leak_cancel=0.3)
        for worker in group.workers.values():
            worker.start()
        await asyncio.sleep(5)
        group.world.log.rng.faults = SimFaults()

        assert await group.settle() < 20
        await deliver_each(group, events_of(group, "x", 5))
        await group.judge()


async def test_malformed_commits_cost_no_index() -> None:
    async with GroupWorld("a", "b") as group:
        await group.start()
        owner, follower = owner_and_follower(group)
        replicated = encode_committed(0, committed_next(follower, group.world.event("x")))
        follower.handler.on_notification(owner.name, COMMITTED, [0, "one", *replicated[2:]])
        await asyncio.sleep(1)

        assert follower.router.all_lanes[0].metrics.rebuilds == 0
        assert 0 in follower.followed
