"""
Keeper: runs the lanes of one worker as its group assigns them, and knows where the others are served.

Whatever it believes may be out of date, and costs time then, never an event: only the log says who owns
a lane. So it has three rules. A lane begins here once its earlier owner has given it up, or is gone. A lane
that was fenced stays down until the group has spoken again. And a follower whose owner is gone claims the
lane at once, or after a while if the owner says that it fails, once a generation, and asks the group to
agree; but only from an owner that it has heard as such: else two workers that are cut off from each other
alone would take their lanes from each other for ever.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import structlog

from dedupe.cancellation import is_own_cancellation
from dedupe.clock import Clock, Deadline
from dedupe.committed import Committed
from dedupe.errors import GatewayError, IdentityMismatchError, RetriableError
from dedupe.group.assignment import NOBODY, Assignment, Member, WorkerId
from dedupe.group.codec import COMMITTED, told_committed
from dedupe.group.links import Link, Links, Status
from dedupe.group.membership import Membership
from dedupe.group.neighbours import Neighbours
from dedupe.lane import Lane, LaneState, keep_running

log = structlog.get_logger(__name__)


class Role(Enum):
    """What a worker is to a lane."""

    NONE = "none"
    OWNER = "owner"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """Every wait of a keeper, in seconds."""

    release_s: float = 10.0  # for the earlier owner to give a lane up, while it is there
    hand_over_s: float = 20.0  # for all lanes to be served elsewhere, when this worker stops
    drain_s: float = 10.0  # for a lane to finish what it has taken, before it is cancelled
    look_s: float = 0.1  # between two looks at who is there
    steady_s: float = 3.0  # to reach a worker that was gone, before it may own a lane again
    connect_s: float = 2.0  # to reach a worker that was never reached, before it counts as gone
    again_s: float = 1.0  # after a failure that a lane itself does not handle
    failing_s: float = 15.0  # for an owner to get over it; its follower has asked the log itself meanwhile
    expected_s: float = 10.0  # for the lanes of a worker that is gone to be served elsewhere, as a rule


class Keeper:
    """Runs and follows lanes. See Whereabouts, too."""

    def __init__(
        self,
        member: Member,
        lanes: Sequence[Lane],
        membership: Membership,
        clock: Clock,
        *,
        times: KeeperTimes | None = None,
    ) -> None:
        """Take what the worker is called and where it is reached, and all lanes, quarantine's last."""
        self.generation = -1
        self.assignment = Assignment((NOBODY,) * len(lanes), (NOBODY,) * len(lanes), {})
        self.moves = 0  # lanes that began here
        self.claims = 0  # of these, without a word of the group
        self.lanes = lanes
        self.is_leaving = False
        """Whether it asks other workers to serve its lanes."""
        self._member = member
        self._membership = membership
        self._clock = clock
        self._times = times or KeeperTimes()
        self.neighbours = Neighbours(
            len(lanes), clock, connect_s=self._times.connect_s, steady_s=self._times.steady_s
        )
        self._running: set[int] = set()  # lanes that are owned here, and not given up
        self._claimed: set[int] = set()  # lanes owned here without a word of the group
        # The generation that gave each to its owner, or follows a claim.
        self._owner_since = [-1] * len(lanes)
        self._idle_since: dict[int, float] = {}  # lanes that fail at their owner, and would not fail here
        self._is_stopping = False
        self._turned = [asyncio.Event() for _ in lanes]  # a lane's keeping has something to look at
        self._unreached: tuple[WorkerId, ...] = ()  # as the group was told

    # ---- for the group

    @property
    def worker(self) -> WorkerId:
        """This worker's name."""
        return self._member.worker

    def stay(self) -> None:
        """Own lanes again after `hand_over`."""
        self.is_leaving = False
        self._membership.rejoin()

    def describe(self) -> Member:
        """Return what the group is told."""
        followed = [
            number
            for number, lane in enumerate(self.lanes)
            if lane.state is LaneState.FOLLOWING and lane.follower.is_caught_up
        ]
        self._unreached = self.neighbours.missed()
        return self._member._replace(
            serving=tuple(sorted(self._running)),
            claimed=tuple(sorted(self._claimed)),
            followed=tuple(followed),
            is_leaving=self.is_leaving,
            unreached=self._unreached,
        )

    def take_assignment(self, generation: int, assignment: Assignment) -> None:
        """Follow what the group has assigned."""
        if len(assignment.owners) != len(self.lanes) or len(assignment.followers) != len(self.lanes):
            log.error("the group assigns other lanes than this worker has", lanes=len(assignment.owners))
            return
        for number, (before, owner) in enumerate(zip(self.assignment.owners, assignment.owners, strict=True)):
            if owner != before:
                self._owner_since[number] = generation
        self.generation, self.assignment = generation, assignment
        for number, (lane, follower) in enumerate(zip(self.lanes, assignment.followers, strict=True)):
            is_followed = follower not in {NOBODY, self.worker}
            lane.replicate_to(partial(self._ship, number) if is_followed else None)
        self._claimed.clear()
        is_member = self.worker in assignment.addresses
        if not is_member:  # both would end each other's connections, whose other sides know them by name
            log.error("another worker has this one's name, GATEWAY_WORKER_ID: nothing is served here")
        others = {name: at for name, at in assignment.addresses.items() if is_member and name != self.worker}
        self.neighbours.set_members(others)
        log.info(
            "lanes are assigned",
            generation=generation,
            owned=assignment.owners.count(self.worker),
            followed=assignment.followers.count(self.worker),
            workers=len(assignment.addresses),
        )
        self._turn_all()

    async def run(self, links: Links) -> None:
        """
        Be a member of the group and do what it says, until cancelled.

        Raises:
            ExceptionGroup: of IdentityMismatchError; this process must not serve this log.
        """
        self.neighbours.join(links)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(self.describe, self.take_assignment))
            tasks.create_task(self._look())
            for number in range(len(self.lanes)):
                tasks.create_task(self._keep(number))

    async def hand_over(self) -> bool:
        """Have other workers serve what is served here, bounded; false if there are none."""
        self.is_leaving = True
        self._membership.rejoin()
        self.neighbours.announce()
        deadline = Deadline(self._clock, self._times.hand_over_s)
        while not deadline.is_over and not all(of.is_leaving for of in self.neighbours.up().values()):
            served = [self.server_of(number) is not None for number in range(len(self.lanes))]
            if all(served) and not self._running:
                return True
            await self.change(min(deadline.remaining_s, self._times.look_s))
        return False

    async def finish(self, limit_s: float) -> None:
        """Let lanes that run finish what they have taken, and leave the group; at most so long."""
        self._is_stopping = True
        self._turn_all()
        deadline = Deadline(self._clock, limit_s)
        while self._running and not deadline.is_over:
            await self.change(min(deadline.remaining_s, self._times.look_s))
        if self._running:
            log.error("partitions did not finish in time; their clients retry", lanes=sorted(self._running))

    # ---- for routes (Whereabouts)

    def server_of(self, lane: int) -> Link | None:
        """See Whereabouts."""
        worker = self.neighbours.server_of(lane)
        link = self.neighbours.link(worker) if worker is not None else None
        return link if link is not None and link.can_send else None

    def is_expected(self, lane: int) -> bool:
        """See Whereabouts."""
        if self.role_of(lane) is Role.OWNER:
            return not self._is_failing(lane)
        if self.neighbours.absent_s(self.assignment.owners[lane]) >= self._times.expected_s:
            return False
        return not any(lane in status.failing for status in self.neighbours.up().values())

    async def change(self, timeout_s: float) -> None:
        """See Whereabouts."""
        await self.neighbours.change(timeout_s)

    def status(self) -> Status:
        """Return what the others shall know of this worker."""
        active = {n for n in self._running if self.lanes[n].state is LaneState.ACTIVE}
        failing = {n for n in self._running if self._is_failing(n)}
        return Status(
            self.generation, frozenset(self._running), frozenset(active), frozenset(failing), self.is_leaving
        )

    # ---- keeping lanes

    async def _keep(self, number: int) -> None:
        """Have one lane run or follow, whatever the group says of it and whatever befalls it, for ever."""
        lane = self.lanes[number]
        while True:
            try:
                await self._play_role(number, lane)
            except IdentityMismatchError:
                raise
            except (Exception, asyncio.CancelledError) as err:
                if is_own_cancellation(err):
                    raise
                problem: dict[str, Any] = {"error": f"{type(err).__name__}: {err}"}
                if not isinstance(err, GatewayError):
                    problem["exc_info"] = err
                log.error(
                    "a partition is looked at again", topic=lane.topic, partition=lane.partition, **problem
                )
                await asyncio.sleep(self._times.again_s)

    async def _play_role(self, number: int, lane: Lane) -> None:
        """Do what the group says until it says something else."""
        self._turned[number].clear()
        role = self.role_of(number)
        if role is Role.OWNER and await self._is_free(number):
            await self._own(number, lane)
        elif role is Role.FOLLOWER:
            await self._follow(number, lane)
        elif role is Role.NONE:
            lane.forget()
            if self.generation >= 0 and not lane.is_proved and not self._is_stopping:
                await lane.prove()  # the gate waits for all
            await self._turned[number].wait()

    def role_of(self, number: int) -> Role:
        """Return what this worker is to a lane now."""
        if self._is_stopping:
            return Role.NONE
        if number in self._claimed or self.assignment.owners[number] == self.worker:
            return Role.OWNER
        return Role.FOLLOWER if self.assignment.followers[number] == self.worker else Role.NONE

    async def _is_free(self, number: int) -> bool:
        """Wait until nobody else owns the lane, or for so long; false if it is not ours any more."""
        deadline = Deadline(self._clock, self._times.release_s)
        while self.role_of(number) is Role.OWNER:
            is_owned = any(number in status.owned for status in self.neighbours.up().values())
            is_free = not is_owned and self.neighbours.are_known()
            if deadline.is_over or is_free or number in self._claimed:
                return True
            await self.change(min(deadline.remaining_s, self._times.look_s))
        return False

    async def _own(self, number: int, lane: Lane) -> None:
        """Run a lane until the group gives it to somebody else, or somebody else has taken it."""
        self._running.add(number)
        self.moves += 1
        lane.assign()
        running = asyncio.ensure_future(keep_running(lane))
        self.neighbours.tell_change()
        try:
            while not running.done() and self.role_of(number) is Role.OWNER:
                await self._first(running, number)
            lane.drain()
            if lane.state is LaneState.DRAINING:  # else it has nothing to finish: a replay may take minutes
                await asyncio.wait({running}, timeout=self._times.drain_s)
        finally:
            running.cancel()
            await asyncio.wait({running})
            self._running.discard(number)
            self._claimed.discard(number)
            self.neighbours.tell_change()
        if not running.cancelled():
            running.result()
        if self.role_of(number) is Role.OWNER and lane.health.is_lost:
            generation = self.generation
            self._membership.rejoin()
            while self.generation == generation:
                await self._turned[number].wait()
                self._turned[number].clear()

    async def _follow(self, number: int, lane: Lane) -> None:
        following = asyncio.ensure_future(lane.follow())
        was_caught_up = False
        try:
            while not following.done() and self.role_of(number) is Role.FOLLOWER:
                await self._first(following, number)
                if lane.follower.is_caught_up and not was_caught_up and not self.assignment.is_settled:
                    was_caught_up = True
                    self._membership.rejoin()
            if following.cancelled():  # not by us: by a library that it asked
                raise RetriableError("following the partition was cut off")
        finally:
            following.cancel()
            await asyncio.wait({following})
            if self.role_of(number) is not Role.OWNER:
                lane.forget()
        if not following.cancelled():
            following.result()

    async def _first(self, task: "asyncio.Future[Any]", number: int) -> None:
        """Wait until the task ends, or the lane is to be looked at."""
        turned: asyncio.Future[Any] = asyncio.ensure_future(self._turned[number].wait())
        try:
            await asyncio.wait({task, turned}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turned.cancel()
        self._turned[number].clear()

    def _ship(self, number: int, committed: Committed) -> None:
        """Tell the lane's follower what was committed."""
        follower = self.assignment.followers[number]
        link = self.neighbours.link(follower)
        if link is None:
            return
        try:
            link.tell(COMMITTED, told_committed(number, committed))
        except Exception as err:  # what is committed is committed: the follower finds it in the log
            log.error("a commit cannot be told to its follower", worker=follower, exc_info=err)

    # ---- who is there

    async def _look(self) -> None:
        """Notice who has come and gone, and what has become of the lanes here."""
        seen: Any = None
        while True:
            await asyncio.sleep(self._times.look_s)
            states = [(lane.state, lane.follower.is_caught_up) for lane in self.lanes]
            if (now := (states, list(self.neighbours.up()), self._running.copy())) != seen:
                seen = now
                self.neighbours.find_servers()
                self.neighbours.announce()
                self._turn_all()
            self.neighbours.note_absence()
            self._claim_lanes()
            if self.neighbours.missed() != self._unreached:
                self._membership.rejoin()

    def _claim_lanes(self) -> None:
        """Take what is followed here, and whose owner is gone or has failed for long."""
        now = self._clock.monotonic()
        failing = frozenset[int]().union(*(status.failing for status in self.neighbours.up().values()))
        self._idle_since = {
            number: self._idle_since.get(number, now)
            for number, lane in enumerate(self.lanes)
            if number in failing and lane.follower.is_caught_up
        }
        for number, (lane, owner) in enumerate(zip(self.lanes, self.assignment.owners, strict=True)):
            is_gone = owner in self.neighbours.gone
            is_lost = is_gone or now - self._idle_since.get(number, now) >= self._times.failing_s
            if not is_lost or self.role_of(number) is not Role.FOLLOWER:
                continue
            heard = self.neighbours.heard(owner)
            if heard is None or heard.generation < self._owner_since[number]:
                continue
            if self.neighbours.server_of(number) is None and lane.follower.is_caught_up:
                log.warning(
                    f"a partition is claimed: its owner {'is gone' if is_gone else 'cannot serve it'}",
                    topic=lane.topic,
                    partition=lane.partition,
                    owner=owner,
                    generation=self.generation,
                )
                self.claims += 1
                self._claimed.add(number)
                self._owner_since[number] = self.generation + 1
                self._turned[number].set()
                self._membership.rejoin()

    def _is_failing(self, number: int) -> bool:
        """Whether a lane of this worker waits for its log or its index, and nobody else would do better."""
        health = self.lanes[number].health
        return health.failing_since_ms is not None and not health.is_lost and not health.is_fenced

    def _turn_all(self) -> None:
        for turned in self._turned:
            turned.set()
        self.neighbours.tell_change()
