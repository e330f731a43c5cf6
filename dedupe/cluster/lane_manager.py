"""
LaneManager: runs and follows the lanes of one worker as its group assigns them.

Assignments and statuses of other workers are hints that may be out of date. A wrong one delays events but
loses none, since the log's fencing decides which worker owns a lane. There are three rules:

- A lane starts here after its previous owner has released it or is down.
- A lane that was fenced stays down until the next assignment.
- A standby claims its lane when the owner is down, has given the lane up (HandOvers), or fails (Claims).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from dedupe.cancellation import is_own_cancellation
from dedupe.cluster.assignment import NOBODY, Assignment, Member, WorkerId
from dedupe.cluster.carrying import Carrying
from dedupe.cluster.claims import Claims, without_index
from dedupe.cluster.hand_overs import HandOvers
from dedupe.cluster.links import PeerLink, Peers, Status
from dedupe.cluster.membership import Membership
from dedupe.cluster.peer_directory import PeerDirectory
from dedupe.cluster.replication import Replication
from dedupe.cluster.role import Role
from dedupe.cluster.standing import Standing
from dedupe.cluster.watching import done_or_woken
from dedupe.model.clock import Clock, Deadline
from dedupe.model.errors import GatewayError, IdentityMismatchError, RetriableError
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState
from dedupe.partition.supervisor import keep_running

# In seconds:
RELEASE_S = 10.0  # for the previous owner to release a lane, while it is alive
HAND_OVER_S = 20.0  # for all lanes to be served elsewhere, when this worker stops
FOLLOW_S = 5.0  # of these, for next owners to follow them; then whoever has followed them gets them
NEW_S = 30.0  # after joining: of workers that are restarted in turn, the next one stops meanwhile
DRAIN_S = 10.0  # for a lane to finish its queue, before it is cancelled
POLL_S = 0.1  # between two checks of the other workers
RETRY_S = 1.0  # after a failure that a lane itself does not handle
EXPECTED_S = 10.0  # for the lanes of a worker that is down to be served elsewhere; requests wait as long

logger = structlog.get_logger(__name__)


class LaneManager:
    """Runs, follows and claims lanes."""

    def __init__(
        self,
        member: Member,
        lanes: Sequence[Lane],
        membership: Membership,
        peers: Peers,
        clock: Clock,
        *,
        has_disk_room: Callable[[], bool],
        begun: Assignment | None = None,
    ) -> None:
        """Manage no lane until `run`; `lanes` are all of the log, quarantine's last; see Carrying."""
        self.generation = -1
        self.assignment = Assignment((NOBODY,) * len(lanes), (NOBODY,) * len(lanes), {})
        self.moves = 0  # lanes that came here from other workers
        self.claims = 0  # of these, claimed without an assignment
        self.lanes = lanes
        self.is_leaving = False
        """Whether the group is requested to move this worker's lanes to other workers."""
        self._member = member
        self._membership = membership
        self._peers, self._clock = peers, clock
        self.directory = PeerDirectory(len(lanes), peers, clock)
        self.standing = Standing(lanes, self.directory, clock)
        self._running: set[int] = set()  # lanes owned here and not released
        self.hand_overs = HandOvers(
            lanes,
            self._running,
            self.directory,
            clock,
            self._on_handed_over,
            standby_of=lambda number: self.assignment.followers[number],
            has_disk_room=has_disk_room,
        )
        self._claimed: set[int] = set()  # lanes owned here without an assignment
        self._claims = Claims(lanes, self.directory, clock, self._is_standby)
        self._elsewhere: set[int] = set()  # lanes that other workers own, or owned last
        self._carrying = Carrying(begun, lanes, clock)
        self._joined_at: float | None = None
        self._is_stopping = False
        self._is_late = False  # leaving for longer than FOLLOW_S
        self._wake = [asyncio.Event() for _ in lanes]  # a lane's role may have changed
        self._unreachable: tuple[WorkerId, ...] = ()  # as last reported to the group
        self._told_given_up: tuple[int, ...] = ()  # as last reported to the group
        self._was_new = True  # as last reported to the group
        replication = Replication(self.directory, lambda: self.assignment)
        for number, lane in enumerate(lanes):
            lane.replicate_to(partial(replication.send, number))

    # ---- membership

    @property
    def worker(self) -> WorkerId:
        """This worker's name."""
        return self._member.worker

    def describe(self) -> Member:
        """Return this worker's description for the group."""
        followed = [
            number
            for number, lane in enumerate(self.lanes)
            if (lane.state is LaneState.FOLLOWING and lane.follower.is_caught_up)
            or (self._is_held_up() and self.role_of(number) is Role.FOLLOWER)  # it was, in the last round
        ]
        self._unreachable = self.directory.unreachable()
        self._told_given_up = tuple(sorted(self.hand_overs.unwanted))
        self._was_new = self._is_new()
        return self._member._replace(
            serving=tuple(sorted(self._running)),
            claimed=tuple(sorted(self._claimed)),
            followed=tuple(followed),
            is_leaving=self.is_leaving,
            unreached=self._unreachable,
            why_unreached=tuple(map(self.directory.why_unreachable, self._unreachable)),
            given_up=self._told_given_up,
            is_new=self._was_new,
            has_carried_over=self._was_new and self._carrying.was_begun,
            is_late=self._is_late,
        )

    def on_assignment(self, generation: int, assignment: Assignment) -> None:
        """Adopt the group's assignment."""
        if not assignment.is_of(len(self.lanes)):
            logger.error("assignment ignored: it has another number of lanes", lanes=len(assignment.owners))
            return
        for number, (before, owner) in enumerate(zip(self.assignment.owners, assignment.owners, strict=True)):
            if owner != before:
                self._claims.owner_since[number] = generation
            if owner not in (NOBODY, self.worker):
                self._elsewhere.add(number)
        if assignment is not self._carrying.begun:
            self._carrying.begun = None
            self._joined_at = self._clock.monotonic() if self._joined_at is None else self._joined_at
        for link in assignment.broken:
            if f" -> {self.worker}: " in link and link not in self.assignment.broken:
                logger.warning("another worker does not reach this one", link=link)
        self.generation, self.assignment = generation, assignment
        self._claimed.clear()
        kept = [number for number in self._told_given_up if assignment.owners[number] == self.worker]
        self.hand_overs.take_back(kept)
        if why := assignment.why_without(self._member):  # of one name: both would end each other's links
            logger.error("this worker serves nothing", reason=why)
        others = {name: at for name, at in assignment.addresses.items() if not why and name != self.worker}
        self.directory.set_members(others)
        logger.info(
            "lanes assigned",
            generation=generation,
            owned=assignment.owners.count(self.worker),
            followed=assignment.followers.count(self.worker),
            workers=len(assignment.addresses),
        )
        self._wake_all()

    async def run(self) -> None:
        """
        Be a member of the group and apply its assignments, until cancelled.

        Raises:
            ExceptionGroup: of IdentityMismatchError; this process must not serve this log.
        """
        if (begun := self._carrying.begun) is not None:
            self.on_assignment(begun.generation, begun)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(self.describe, self.on_assignment))
            tasks.create_task(self._watch_peers())
            tasks.create_task(self.hand_overs.run())
            for number in range(len(self.lanes)):
                tasks.create_task(self._manage(number))

    async def hand_over(self) -> bool:
        """Move all lanes to other workers within HAND_OVER_S; return False if there are none."""
        self.is_leaving = True
        self._membership.rejoin()
        self._peers.announce()
        deadline = Deadline(self._clock, HAND_OVER_S)
        while not deadline.is_over and not all(of.is_leaving for of in self.directory.alive().values()):
            served = [self.server_of(number) is not None for number in range(len(self.lanes))]
            if all(served) and not self._running:
                return True
            if not self._is_late and deadline.remaining_s <= HAND_OVER_S - FOLLOW_S:
                self._is_late = True
                self._membership.rejoin()
            await self._wait_for_change(deadline)
        return False

    def undo_hand_over(self) -> None:
        """Own lanes again after `hand_over`."""
        self.is_leaving = self._is_late = False
        self._membership.rejoin()

    async def finish(self, limit_s: float) -> None:
        """Let running lanes finish their queues within `limit_s` seconds, and start none."""
        self._is_stopping = True
        self._wake_all()
        deadline = Deadline(self._clock, limit_s)
        while self._running and not deadline.is_over:
            await self._wait_for_change(deadline)
        if self._running:
            logger.error("partitions did not finish in time; clients retry", lanes=sorted(self._running))

    # ---- where lanes are served

    def server_of(self, number: int) -> PeerLink | None:
        """See PeerDirectory.server_link."""
        return self.directory.server_link(number)

    def is_expected(self, number: int) -> bool:
        """Return whether a worker should serve the lane within seconds."""
        if self.role_of(number) is Role.OWNER:
            return not self._carrying.is_failing(number)
        if self.directory.absent_s(self.assignment.owners[number]) >= EXPECTED_S:
            return False
        return not any(number in status.failing for status in self.directory.alive().values())

    def role_of(self, number: int) -> Role:
        """Return this worker's role for a lane now."""
        if self._is_stopping or number in self.hand_overs.given_up:
            return Role.NONE
        if number in self._claimed or self.assignment.owners[number] == self.worker:
            return Role.OWNER
        return Role.FOLLOWER if self.worker in self.assignment.followers_of(number) else Role.NONE

    def status(self) -> Status:
        """Return this worker's status for the others."""
        given_up = self.hand_overs.given_up
        running = self._running - given_up
        active = {number for number in running if self.lanes[number].state is LaneState.ACTIVE}
        failing = {number for number in running if self._carrying.is_failing(number)}
        owned, slow = frozenset(self._running), self.hand_overs.slow
        told = frozenset(active), frozenset(failing), self.is_leaving, given_up, self.standing.unserved()
        lacking = without_index(self.lanes, running, self._clock)
        later = slow.commit_ms, lacking, self.directory.is_paused
        return Status(self.generation, owned, *told, slow.handed_over, *later)

    # ---- running lanes

    async def _manage(self, number: int) -> None:
        """Apply the role of one lane again and again; every failure is retried."""
        lane = self.lanes[number]
        while True:
            try:
                await self._apply_role(number, lane)
            except (Exception, asyncio.CancelledError) as err:
                if is_own_cancellation(err) or isinstance(err, IdentityMismatchError):
                    lane.forget()  # an index that was followed, and waits for its lane to be released
                    raise
                problem: dict[str, Any] = {"error": f"{type(err).__name__}: {err}"}
                if not isinstance(err, GatewayError):
                    problem["exc_info"] = err
                logger.error(
                    "partition failed, retrying", topic=lane.topic, partition=lane.partition, **problem
                )
                await asyncio.sleep(RETRY_S)

    async def _apply_role(self, number: int, lane: Lane) -> None:
        """Own, follow or leave the lane until its role changes."""
        self._wake[number].clear()
        role = self.role_of(number)
        if role is Role.OWNER and await self._wait_until_released(number):
            await self._own(number, lane)
        elif role is Role.FOLLOWER and self._is_held_up():
            await asyncio.sleep(POLL_S)
        elif role is Role.FOLLOWER:
            await self._follow(number, lane)
        elif role is Role.NONE:
            lane.forget()
            await self._wake[number].wait()

    async def _wait_until_released(self, number: int) -> bool:
        """Wait until no other worker owns the lane, at most RELEASE_S; False if the role changes."""
        if self._carrying.begun is not None and self.role_of(number) is Role.OWNER:
            return True  # nobody else can have it, or it was this worker's
        deadline = Deadline(self._clock, RELEASE_S)
        while self.role_of(number) is Role.OWNER:
            is_owned = any(number in status.owned for status in self.directory.alive().values())
            if is_owned:
                self._elsewhere.add(number)
            is_free = not is_owned and self.directory.are_known()
            if deadline.is_over or is_free or number in self._claimed:
                return True
            await self._wait_for_change(deadline)
        return False

    async def _own(self, number: int, lane: Lane) -> None:
        """Run the lane until its role changes or another worker fences it."""
        self._running.add(number)
        self.moves += number in self._elsewhere
        self._elsewhere.discard(number)
        lane.assign()
        running = asyncio.ensure_future(keep_running(lane))
        self.directory.signal_change()
        try:
            while not running.done() and self.role_of(number) is Role.OWNER:
                await done_or_woken(running, self._wake[number])
            lane.drain()
            is_left = number in self.hand_overs.left
            if lane.state is LaneState.DRAINING and not is_left:  # else a replay may take minutes
                await asyncio.wait({running}, timeout=DRAIN_S)
        finally:
            running.cancel()
            await asyncio.wait({running})
            self._running.discard(number)
            self._claimed.discard(number)
            self.directory.signal_change()
        if not running.cancelled():
            running.result()
        if self.role_of(number) is Role.OWNER and lane.health.is_lost:
            generation = self.generation
            self._membership.rejoin()
            while self.generation == generation:
                await self._wake[number].wait()
                self._wake[number].clear()

    async def _follow(self, number: int, lane: Lane) -> None:
        following = asyncio.ensure_future(lane.follow())
        was_caught_up = False
        try:
            while not following.done() and self.role_of(number) is Role.FOLLOWER:
                await done_or_woken(following, self._wake[number])
                if lane.follower.is_caught_up and not was_caught_up and not self.assignment.is_settled:
                    was_caught_up = True
                    self._membership.rejoin()
            if following.cancelled():  # not by this task: a library below leaked a cancellation
                raise RetriableError("following the partition was cancelled")
        finally:
            following.cancel()
            await asyncio.wait({following})
            if self.role_of(number) is not Role.OWNER:
                lane.forget()
        if not following.cancelled():
            following.result()

    async def _wait_for_change(self, deadline: Deadline) -> None:
        await self.directory.wait_for_change(min(deadline.remaining_s, POLL_S))

    def _wake_all(self) -> None:
        for wake in self._wake:
            wake.set()
        self.directory.signal_change()

    # ---- other workers

    async def _watch_peers(self) -> None:
        """Poll the other workers and the lanes here: announce changes, claim lanes, report broken links."""
        before: Any = None
        while True:
            await asyncio.sleep(POLL_S)
            states = [(lane.state, lane.follower.is_caught_up) for lane in self.lanes]
            unserved = self.standing.unserved()
            self.standing.update(unserved)
            lacking = without_index(self.lanes, self._running, self._clock)
            if (
                now := (states, list(self.directory.alive()), self._running.copy(), unserved, lacking)
            ) != before:
                before = now
                self.directory.update_servers()
                self._peers.announce()
                self._wake_all()
            self.directory.update_down()
            for number in self._claims.due(self.assignment):
                self._claim(number)
            is_older = self._was_new and not self._is_new() and not self.assignment.is_even
            if is_older or self.directory.unreachable() != self._unreachable:
                self._membership.rejoin()

    def _is_standby(self, number: int) -> bool:
        """Whether it follows the lane, and not only to own it next."""
        return self.role_of(number) is Role.FOLLOWER and self.assignment.followers[number] == self.worker

    def _claim(self, number: int) -> None:
        self.claims += 1
        self._claimed.add(number)
        self._claims.owner_since[number] = self.generation + 1
        self._wake[number].set()
        self._membership.rejoin()

    def _is_held_up(self) -> bool:
        return self._carrying.holds_up(n for n in range(len(self.lanes)) if self.role_of(n) is Role.OWNER)

    def _is_new(self) -> bool:
        return self._joined_at is None or self._clock.monotonic() - self._joined_at < NEW_S

    def _on_handed_over(self) -> None:
        self._membership.rejoin()
        self._peers.announce()
        self._wake_all()
