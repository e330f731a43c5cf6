"""Claim: nothing that a worker receives, and no failure of a lane, ends a worker or leaves a lane alone."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from dedupe.cluster import links
from dedupe.cluster.assignment import NOBODY, Assignment, Member
from dedupe.cluster.codec import COMMITTED, encode_committed
from dedupe.cluster.lane_manager import LaneManager
from dedupe.cluster.links import Status
from dedupe.cluster.membership import Describe, Take
from dedupe.cluster.request_handler import PeerRequestHandler
from dedupe.decide.admission import Admission
from dedupe.decide.committed import Committed, LastRecord
from dedupe.model.clock import Deadline
from dedupe.model.errors import DiskFullError, LogCorruptError, RetriableError
from dedupe.partition.index_recovery import IndexRecovery
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.router import Router
from dedupe.submission import Outcomes, Submission
from tests.sim.world import World
from tests.support.sim.faults import SimFaults
from tests.support.sim.memory_index import MemoryIndex
from tests.support.submissions import submission_of

SELF, OTHER, THIRD = "self", "other", "third"
PATIENCE_S = 120.0
LANES = 3


class SimLink(links.PeerLink):
    """To a worker that is there until it is not."""

    why = ""

    def __init__(self) -> None:
        self.is_up = True
        self.notifications = 0

    @property
    def can_send(self) -> bool:
        return self.is_up

    def check_capacity(self, submission: Submission) -> None:
        raise AssertionError("nobody sends here")

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        raise AssertionError("nobody sends here")

    async def request(self, kind: str, body: Any, timeout_s: float) -> Any:
        raise AssertionError("nobody asks here")

    def notify(self, kind: str, body: Any) -> bool:
        self.notifications += 1
        return True


class SimPeers(links.Peers):
    """To all members."""

    def __init__(self) -> None:
        self.links: dict[str, SimLink] = {}

    def set_members(self, addresses: Mapping[str, str]) -> None:
        self.links = {name: self.links.get(name, SimLink()) for name in addresses}

    def link(self, worker: str) -> SimLink | None:
        return self.links.get(worker)

    def announce(self) -> None:
        pass


class SimMembership:
    """A place in a group that says what a test wants."""

    def __init__(self) -> None:
        self.silence_s = self.joining_s = 0.0
        self.place = None
        self.rejoins = 0

    async def run(self, describe: Describe, take: Take) -> None:
        await asyncio.get_running_loop().create_future()

    def rejoin(self) -> None:
        self.rejoins += 1

    async def leave(self) -> None:
        pass


class Site:
    """One worker whose group is the test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.router: Router = world.build()
        self.membership, self.peers = SimMembership(), SimPeers()
        self.manager = LaneManager(
            Member(SELF, "self:1"),
            self.lanes,
            self.membership,
            self.peers,
            world.clock,
            has_disk_room=lambda: self.router.has_disk_room,
        )
        self.handler = PeerRequestHandler(self.manager, world.clock, lambda: self.router.has_disk_room)
        self.generation = 0

    @property
    def lanes(self) -> list[Lane]:
        return self.router.all_lanes

    def assign(self, owner: str, follower: str = "", *members: str) -> None:
        """Have the group give all lanes to one worker."""
        self.assign_each([owner] * LANES, [follower] * LANES, *members)

    def assign_each(self, owners: Sequence[str], followers: Sequence[str], *members: str) -> None:
        """Have the group give each lane to a worker."""
        self.generation += 1
        names = {SELF, *owners, *followers, *members} - {NOBODY}
        assignment = Assignment(tuple(owners), tuple(followers), {name: f"{name}:1" for name in names})
        self.manager.on_assignment(self.generation, assignment)

    def assign_to_others(self, *, plan: int = 0) -> None:
        """Have the group tell this worker that it is not meant, but another one of its name, or of a plan."""
        self.generation += 1
        nobody = (NOBODY,) * LANES
        assignment = Assignment(nobody, nobody, {OTHER: "other:1"}, plan=plan)
        self.manager.on_assignment(self.generation, assignment)

    def receive_status(self, worker: str, *, owned: bool, generation: int | None = None) -> None:
        """Have a worker say that it serves all lanes, or none."""
        lanes = frozenset(range(LANES)) if owned else frozenset()
        status = Status(self.generation if generation is None else generation, lanes, lanes)
        self.handler.on_status(worker, status.encode())

    def lose(self, worker: str) -> None:
        """Have a worker be out of reach."""
        self.peers.links[worker].is_up = False
        self.handler.on_status(worker, None)

    async def until(self, state: LaneState) -> None:
        """Wait until all lanes are in a state."""
        async with asyncio.timeout(PATIENCE_S):
            while {lane.state for lane in self.lanes} != {state}:
                await asyncio.sleep(0.1)

    async def until_caught_up(self) -> None:
        """Wait until all lanes are followed closely."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(lane.follower.is_caught_up for lane in self.lanes):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def running(site: Site) -> AsyncIterator[Site]:
    """Run the worker; it must still be there in the end."""
    task = asyncio.ensure_future(site.manager.run())
    try:
        await asyncio.sleep(0)
        yield site
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def pinned() -> World:
    """A log with some events and a pin."""
    world = World()
    await world.start()
    for number in range(20):
        await world.deliver([world.event(str(number))])
    await world.crash()
    return world


LIES: list[Any] = [
    None,
    7,
    "committed",
    [],
    [0] * 8,
    [0, "x", 1, 1, b"k" * 16, b"f" * 8, [], []],
    [0, 0, "x", 1, b"k" * 16, b"f" * 8, [], []],
    [0, 0, 10**6, "x", b"k" * 16, b"f" * 8, [], []],
    [0, 10**6, 10**6, None, b"k" * 16, b"f" * 8, [], []],
    [-1, 0, 10**6, 1, b"k" * 16, b"f" * 8, [], []],
    ["0", 0, 10**6, 1, b"k" * 16, b"f" * 8, [], []],
    [0, 0, 10**6, 1, "k" * 16, "f" * 8, [], []],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [7], []],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [b"short"], []],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [None], [[b"c", b"s", "x", 0, 0, None]]],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [None], [[b"c" * 16, b"s" * 16, 1, 0, 0, [1, "x"]]]],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [None], [[b"c" * 16, b"s" * 16, 1, 0, 0, ["x", b""]]]],
    [0, 0, 10**6, 1, b"k" * 16, b"f" * 8, [None], [[1, 2, 3, 4, 5, None]]],
]


@pytest.mark.regression("A standby ended when a replicated commit contradicted the log.")
@pytest.mark.parametrize("lie", LIES, ids=str)
async def test_lie_about_a_commit_does_not_end_the_follower(lie: Any) -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await site.until_caught_up()
        if isinstance(lie, list) and len(lie) == 8 and lie[1] == 0:  # as if it were the next
            lie = [lie[0], site.lanes[0].partition_index.index.state.next_lane_seq, *lie[2:]]
        site.handler.on_notification(OTHER, COMMITTED, lie)
        await asyncio.sleep(1)
        site.assign(SELF)
        site.receive_status(OTHER, owned=False)
        await site.until(LaneState.ACTIVE)


async def test_worker_survives_a_cancellation_out_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await pinned()
    tries = 0

    async def stumbles(_recovery: IndexRecovery) -> int:
        nonlocal tries
        tries += 1
        if tries > 1000:
            await asyncio.sleep(1e6)  # else nothing else has its turn
        raise asyncio.CancelledError

    async with running(Site(world)) as site:
        with monkeypatch.context() as broken:
            broken.setattr(IndexRecovery, "check", stumbles)
            site.assign(OTHER, SELF)
            site.receive_status(OTHER, owned=True)
            await asyncio.sleep(5)
        assert tries < 100
        await site.until_caught_up()


@pytest.mark.parametrize(
    "problem",
    [LogCorruptError("x"), RetriableError("x"), ZeroDivisionError(), asyncio.CancelledError()],
    ids=repr,
)
async def test_lane_whose_index_cannot_be_closed_takes_its_next_role_all_the_same(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_lane: Lane) -> None:
        raise problem

    async with running(Site(await pinned())) as site:
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await site.until_caught_up()
        with monkeypatch.context() as broken:
            broken.setattr(Lane, "forget", fails)
            site.assign(OTHER)
            await asyncio.sleep(1)
        site.assign(OTHER, SELF)
        await site.until_caught_up()


async def test_commits_that_wait_are_bounded_by_their_events() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(OTHER, SELF)
        await site.lanes[0].follower._context.follow_slots.acquire()
        many = Committed(10**6, 10**6, 1, LastRecord(0, b"", 0), [b"k" * 16] * 1000, [b"f" * 8] * 1000)
        for _ in range(500):
            site.handler.on_notification(OTHER, COMMITTED, encode_committed(0, many))
        assert sum(len(one.keys) for one in site.lanes[0].follower._replicated) <= 50_000


async def test_owner_that_is_gone_is_claimed_from_once() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await site.until_caught_up()
        site.lose(OTHER)
        await site.until(LaneState.ACTIVE)
        assert site.manager.claims == LANES

        site.assign(OTHER, SELF)  # the group does not agree, and the owner stays out of reach
        await site.until(LaneState.FOLLOWING)
        await site.until_caught_up()
        await asyncio.sleep(30)
        assert site.manager.claims == LANES


@pytest.mark.regression("Two owners took a partition from one another again and again.")
async def test_lane_that_somebody_took_stays_down_until_the_group_has_spoken_again() -> None:
    world = await pinned()
    world.times = replace(world.times, fencings_max=0)
    async with running(Site(world)) as site:
        site.assign(SELF)
        await site.until(LaneState.ACTIVE)
        site.assign(SELF)  # the group has spoken since, and it is still ours
        event = world.event("taken")

        world.log.rng.faults = SimFaults(rival=1.0)
        await world.send([event], by=site.router.submit)
        world.log.rng.faults = SimFaults()
        await asyncio.sleep(20)
        assert site.lanes[event.partition].state is not LaneState.ACTIVE
        assert site.membership.rejoins == 1

        site.assign(SELF)
        await site.until(LaneState.ACTIVE)
        assert site.manager.moves == 0, "none came from a worker of the group"


async def test_live_owner_is_not_claimed_from() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(OTHER, SELF, THIRD)
        site.receive_status(OTHER, owned=True)
        site.receive_status(THIRD, owned=False)
        await site.until_caught_up()
        site.lose(THIRD)
        await asyncio.sleep(30)
        assert site.manager.claims == 0


async def test_lanes_of_a_worker_long_gone_are_not_waited_for() -> None:
    world = await pinned()
    site = Site(world)
    async with running(site):
        site.assign(OTHER)
        site.receive_status(OTHER, owned=True)
        await asyncio.sleep(1)
        assert site.manager.server_of(0) is not None
        site.lose(OTHER)
        await asyncio.sleep(1)
        assert site.manager.is_expected(0)
        await asyncio.sleep(30)
        assert not site.manager.is_expected(0)


async def test_followed_and_served_indexes_are_kept_fast() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        for owner, follower in ((OTHER, SELF), (SELF, NOBODY)):
            site.assign(owner, follower, OTHER)
            await (site.until_caught_up() if owner == OTHER else site.until(LaneState.ACTIVE))
            indexes = [cast(MemoryIndex, lane.partition_index.index) for lane in site.lanes]
            before = [index.warmed for index in indexes]
            async with asyncio.timeout(PATIENCE_S):
                while any(index.warmed < known + 2 for index, known in zip(indexes, before, strict=True)):
                    await asyncio.sleep(1)


@pytest.mark.regression("Replays of standbys held up a partition that should serve.")
async def test_long_replays_of_followers_hold_up_no_lane_that_shall_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await pinned()
    site = Site(world)
    check = IndexRecovery.check
    followed = {lane.recovery for lane in site.lanes[1:]}

    async def takes_long(recovery: IndexRecovery) -> None:
        if recovery in followed:
            await asyncio.sleep(1e6)
        await check(recovery)

    monkeypatch.setattr(IndexRecovery, "check", takes_long)
    async with running(site):
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await asyncio.sleep(5)
        site.assign_each([SELF, OTHER, OTHER], [OTHER, SELF, SELF])
        site.receive_status(OTHER, owned=False)
        async with asyncio.timeout(PATIENCE_S):
            while site.lanes[0].state is not LaneState.ACTIVE:
                await asyncio.sleep(0.1)


@asynccontextmanager
async def following() -> AsyncIterator[Site]:
    """Follow lane 0 of another worker, and know all that it has told so far."""
    site = Site(await pinned())
    async with running(site):
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await site.until_caught_up()
        yield site


def next_commit(site: Site, key: bytes, fingerprint: bytes) -> Committed:
    """Return a commit of one event that follows what the standby of lane 0 knows."""
    state = site.lanes[0].partition_index.index.state
    last = LastRecord.of(state)
    return Committed(
        state.next_lane_seq, state.applied_offset, site.world.clock.ms, last, [key], [fingerprint]
    )


async def test_replicated_commit_that_the_log_does_not_show_yet_costs_no_rebuild() -> None:
    async with following() as site:
        lane, world = site.lanes[0], site.world
        event = next(event for event in map(world.event, map(str, range(100, 200))) if event.partition == 0)
        replicated = next_commit(site, event.key, event.fingerprint)
        site.handler.on_notification(OTHER, COMMITTED, encode_committed(0, replicated))
        site.handler.on_notification(
            OTHER, COMMITTED, encode_committed(0, replicated._replace(first_seq=10**6, base=10**6))
        )
        await asyncio.sleep(10)
        assert (lane.metrics.rebuilds, lane.follower.is_caught_up) == (0, False)

        # It was aborted after all: who serves knows nothing of it.
        site.assign(SELF)
        site.receive_status(OTHER, owned=False)
        await site.until(LaneState.ACTIVE)
        assert lane.metrics.rebuilds == 1
        assert lane.partition_index.index.lookup([event.key]) == [None]


async def test_replicated_commit_that_a_later_one_contradicts_is_not_kept() -> None:
    async with following() as site:
        lane = site.lanes[0]
        phantom = next_commit(site, b"p" * 16, b"f" * 8)
        site.handler.on_notification(OTHER, COMMITTED, encode_committed(0, phantom))
        await asyncio.sleep(1)
        assert lane.follower.is_caught_up
        site.handler.on_notification(
            OTHER, COMMITTED, encode_committed(0, phantom._replace(base=phantom.base + 2))
        )
        await asyncio.sleep(1)
        assert not lane.follower.is_caught_up


@pytest.mark.regression("Two workers of one name ended each other's connections all the time.")
async def test_older_of_two_workers_with_one_name_keeps_away_from_the_others() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(SELF, OTHER)
        site.receive_status(OTHER, owned=False)
        await site.until(LaneState.ACTIVE)
        assert site.peers.links
        with capture_logs() as logs:
            site.assign_to_others()
            await site.until(LaneState.UNASSIGNED)
        assert "another worker has the same GATEWAY_WORKER_ID" in map(reason, logs)
        assert not site.peers.links
        assert not site.manager.status().owned


@pytest.mark.regression("A worker that had not seen a plan was told that another one had its name.")
async def test_worker_that_has_not_seen_a_plan_says_so() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        with capture_logs() as logs:
            site.assign_to_others(plan=3)
            assert "the group serves by plan 3, and this worker has only seen plan 0" in map(reason, logs)
        site.assign(SELF)
        await site.until(LaneState.ACTIVE)


def reason(line: Mapping[str, Any]) -> Any:
    return line.get("reason")


async def test_only_lanes_that_another_worker_follows_replicate_their_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []

    def note(number: int, _committed: Committed) -> None:
        encoded.append(number)

    monkeypatch.setattr("dedupe.cluster.replication.encode_committed", note)
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(SELF, OTHER)
        site.receive_status(OTHER, owned=False)
        await site.until(LaneState.ACTIVE)
        world.router = site.router
        await world.deliver([world.event("replicated")])
        assert len(encoded) == site.peers.links[OTHER].notifications == 1
        with capture_logs() as logs:
            for follower in (NOBODY, SELF):  # a claimed lane has no follower but its owner
                site.assign(SELF, follower, OTHER)
                await world.deliver([world.event(f"not replicated to {follower!r}")])
        assert len(encoded) == 1
        assert not [line for line in logs if line["log_level"] == "error"]


async def test_replication_that_fails_does_not_stop_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_link: SimLink, kind: str, body: Any) -> bool:
        raise ValueError("committed has more bytes than a message may")

    monkeypatch.setattr(SimLink, "notify", fails)
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(SELF, OTHER)
        site.receive_status(OTHER, owned=False)
        await site.until(LaneState.ACTIVE)
        world.router = site.router
        for number in range(50, 60):
            await world.deliver([world.event(str(number))])
        assert [lane.metrics.failures for lane in site.lanes] == [0] * LANES


@pytest.mark.parametrize("seed", range(20))
async def test_assignment_that_flaps_leaves_each_lane_where_the_last_one_says(seed: int) -> None:
    rng = random.Random(seed)
    world = await pinned()
    async with running(Site(world)) as site:
        for _ in range(40):
            names = [rng.choice([(SELF, OTHER), (OTHER, SELF), (OTHER, NOBODY)]) for _ in range(LANES)]
            site.assign_each([owner for owner, _ in names], [follower for _, follower in names], OTHER)
            if rng.random() < 0.5:
                site.receive_status(OTHER, owned=rng.random() < 0.5)
            if rng.random() < 0.1:
                site.lose(OTHER)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0, 0.01, 0.1, 1, 15]))
        site.peers.links[OTHER].is_up = True
        site.receive_status(OTHER, owned=False)
        for state, (owner, follower) in (
            (LaneState.FOLLOWING, (OTHER, SELF)),
            (LaneState.ACTIVE, (SELF, OTHER)),
        ):
            site.assign(owner, follower)
            site.receive_status(OTHER, owned=owner == OTHER)
            await site.until(state)
        world.router = site.router
        for number in range(30, 60):
            await world.deliver([world.event(str(number))])
        world.judge_log()


@pytest.mark.parametrize("seed", range(20))
async def test_worker_that_is_cancelled_at_any_moment_leaves_nothing_running(seed: int) -> None:
    rng = random.Random(seed)
    world = await pinned()
    site = Site(world)
    task = asyncio.ensure_future(site.manager.run())
    await asyncio.sleep(0)
    for _ in range(rng.randrange(1, 5)):
        site.assign(*rng.choice([(SELF, OTHER), (OTHER, SELF), (OTHER, NOBODY)]), OTHER)
        site.receive_status(OTHER, owned=rng.random() < 0.3)
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(rng.choice([0, 0, 0, 0.1]))
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait({task})
    assert task.cancelled()
    assert not any(lane.is_running for lane in site.lanes)
    assert not {lane.state for lane in site.lanes} & {LaneState.ACTIVE, LaneState.DRAINING}
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.regression("An owner whose disk was full took events of other workers.")
async def test_owner_whose_disk_is_full_takes_no_events_of_other_workers() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(SELF)
        await site.until(LaneState.ACTIVE)
        site.router.has_disk_room = False
        event = world.event("for a full disk")

        def submit() -> "asyncio.Future[Outcomes]":
            deadline, now_ms = Deadline(world.clock, 5.0), world.clock.now_ms()
            return site.handler.submit(
                event.partition, submission_of([event], received_ms=now_ms, deadline=deadline)
            )

        with pytest.raises(DiskFullError):
            submit()
        site.router.has_disk_room = True
        assert (await submit()).admissions == [Admission.NEW], "the refused one has left no trace"


@pytest.mark.regression("The clock of another worker moved a partition's window.")
async def test_clock_of_another_worker_does_not_move_a_lanes_window() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(SELF)
        await site.until(LaneState.ACTIVE)
        event = world.event("of a worker that lives tomorrow")
        world.clock.ms += 1_000
        tomorrow = submission_of(
            [event], received_ms=world.clock.ms + 86_400_000, deadline=Deadline(world.clock, 5)
        )
        await site.handler.submit(event.partition, tomorrow)
        assert site.lanes[event.partition].partition_index.index.state.newest_timestamp_ms == world.clock.ms


@pytest.mark.regression(
    "A worker that went on with a plan while a lane was about to move to it could not open that lane's index."
)
async def test_round_that_ends_while_a_lane_moves_here_closes_its_index() -> None:
    world = await pinned()
    async with running(Site(world)) as site:
        site.assign(OTHER, SELF)
        site.receive_status(OTHER, owned=True)
        await site.until_caught_up()
        site.assign(SELF, OTHER)  # which has not released them yet
        await asyncio.sleep(0.5)
        assert not any(lane.is_running for lane in site.lanes)

    assert all(lane.recovery.opened is None for lane in site.lanes)
