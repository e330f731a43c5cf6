"""
Keeper: runs the lanes of one worker as its group assigns them, and knows where the others are served.

Whatever it believes may be out of date, and costs time then, never an event: only the log says who owns
a lane. So it has three rules. A lane begins here once its earlier owner has given it up, or is gone. A lane
that was fenced stays down until the group has spoken again. And a follower whose owner is gone claims the
lane at once, once a generation, and asks the group to agree; but only from an owner that it has heard as
such: else two workers that are cut off from each other alone would take their lanes from each other for ever.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import structlog

from dedupe.clock import Clock, Deadline
from dedupe.errors import FencedError, GatewayError, IdentityMismatchError, LaneNotActiveError, RetriableError
from dedupe.group.assignment import NOBODY, Assignment, Member, WorkerId
from dedupe.group.codec import (
    COMMITTED,
    FIND,
    SESSION,
    SESSIONS,
    heard_committed,
    told_committed,
    told_entry,
    told_rows,
    told_state,
)
from dedupe.group.links import Link, Links, Status
from dedupe.group.membership import Membership
from dedupe.lane import Committed, Lane, LaneState, Outcomes, is_own_cancellation, keep_running
from dedupe.types import Event

STATUS = "status"

log = structlog.get_logger(__name__)


class Role(Enum):
    """What a worker is to a lane."""

    NONE = "none"
    OWNER = "owner"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Every wait of a keeper, in seconds."""

    release_s: float = 10.0  # for the earlier owner to give a lane up, while it is there
    hand_over_s: float = 20.0  # for all lanes to be served elsewhere, when this worker stops
    drain_s: float = 10.0  # for a lane to finish what it has taken, before it is cancelled
    look_s: float = 0.1  # between two looks at who is there
    steady_s: float = 3.0  # to reach a worker that was gone, before it may own a lane again
    connect_s: float = 2.0  # to reach a worker that was never reached, before it counts as gone
    again_s: float = 1.0  # after a failure that a lane itself does not handle
    expected_s: float = 10.0  # for the lanes of a worker that is gone to be served elsewhere, as a rule


class Keeper:
    """Runs and follows lanes. See Whereabouts, too; and the host of what other workers send."""

    def __init__(
        self,
        member: Member,
        lanes: Sequence[Lane],
        membership: Membership,
        clock: Clock,
        *,
        times: GroupTimes | None = None,
    ) -> None:
        """Take what the worker is called and where it is reached, and all lanes, quarantine's last."""
        self.generation = -1
        self.assignment = Assignment((NOBODY,) * len(lanes), (NOBODY,) * len(lanes), {})
        self.moves = 0  # lanes that began here
        self.claims = 0  # of these, without a word of the group
        self.lanes = self._lanes = lanes
        self.answers: dict[str, Callable[[Any], Any]] = {
            SESSION: self._session,
            SESSIONS: self._sessions,
            FIND: self._find,
        }
        """What other workers may ask: by kind, what answers its body. It may raise a GatewayError."""
        self._member = member
        self._membership = membership
        self._clock = clock
        self._times = times or GroupTimes()
        self._links: Links | None = None
        self._heard: dict[WorkerId, Status] = {}
        self._servers: list[WorkerId | None] = [None] * len(lanes)
        self._running: set[int] = set()  # lanes that are owned here, and not given up
        self._claimed: set[int] = set()  # lanes owned here without a word of the group
        # The generation that gave each to its owner, or follows a claim.
        self._owner_since = [-1] * len(lanes)
        self._is_leaving = self._is_stopping = False
        self._turned = [asyncio.Event() for _ in lanes]  # a lane's keeping has something to look at
        self._changed = asyncio.Event()
        self._absent_since: dict[WorkerId, float] = {}
        self._gone: set[WorkerId] = set()
        self._missed_at: dict[WorkerId, float] = {}  # when it was gone last
        self._unreached: tuple[WorkerId, ...] = ()  # as the group was told

    # ---- for the group

    @property
    def worker(self) -> WorkerId:
        """This worker's name."""
        return self._member.worker

    @property
    def is_leaving(self) -> bool:
        """Whether it asks other workers to serve its lanes."""
        return self._is_leaving

    def is_up(self, worker: WorkerId) -> bool:
        """Whether another worker answers."""
        link = self._links.link(worker) if self._links is not None else None
        return link is not None and link.is_up

    def ask(self, worker: WorkerId, kind: str, body: Any, timeout_s: float) -> Awaitable[Any]:
        """Put a question to another worker. Raises what it answers, or RetriableError."""
        link = self._links.link(worker) if self._links is not None else None
        if link is None:
            raise RetriableError(f"there is no link to {worker}")
        return link.ask(kind, body, timeout_s)

    def stay(self) -> None:
        """Own lanes again after `hand_over`."""
        self._is_leaving = False
        self._membership.rejoin()

    def describe(self) -> Member:
        """Return what the group is told."""
        followed = [
            number
            for number, lane in enumerate(self._lanes)
            if lane.state is LaneState.FOLLOWING and lane.follower.is_caught_up
        ]
        self._unreached = self._missed()
        return self._member._replace(
            serving=tuple(sorted(self._running)),
            claimed=tuple(sorted(self._claimed)),
            followed=tuple(followed),
            is_leaving=self._is_leaving,
            unreached=self._unreached,
        )

    def take_assignment(self, generation: int, assignment: Assignment) -> None:
        """Follow what the group has assigned."""
        if len(assignment.owners) != len(self._lanes) or len(assignment.followers) != len(self._lanes):
            log.error("the group assigns other lanes than this worker has", lanes=len(assignment.owners))
            return
        for number, (before, owner) in enumerate(zip(self.assignment.owners, assignment.owners, strict=True)):
            if owner != before:
                self._owner_since[number] = generation
        self.generation, self.assignment = generation, assignment
        self._claimed.clear()
        if self._links is not None:
            is_member = self.worker in assignment.addresses
            if not is_member:  # both would end each other's connections, whose other sides know them by name
                log.error("another worker has this one's name, GATEWAY_WORKER_ID: nothing is served here")
            others = {
                name: at for name, at in assignment.addresses.items() if is_member and name != self.worker
            }
            self._links.set_members(others)
            self._links.announce()
            self._heard = {name: status for name, status in self._heard.items() if name in others}
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
        self._links = links
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(self.describe, self.take_assignment))
            tasks.create_task(self._look())
            for number in range(len(self._lanes)):
                tasks.create_task(self._keep(number))

    async def hand_over(self) -> bool:
        """Have other workers serve what is served here, bounded; false if there are none."""
        self._is_leaving = True
        self._membership.rejoin()
        if self._links is not None:
            self._links.announce()
        deadline = Deadline(self._clock, self._times.hand_over_s)
        while not deadline.is_over and any(not self._heard[name].is_leaving for name in self._up()):
            served = [self.server_of(number) is not None for number in range(len(self._lanes))]
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
        worker = self._servers[lane]
        if worker is None or self._links is None:
            return None
        link = self._links.link(worker)
        return link if link is not None and link.can_send else None

    def is_expected(self, lane: int) -> bool:
        """See Whereabouts."""
        if self._role_of(lane) is Role.OWNER:
            return not self._is_failing(lane)
        absent_since = self._absent_since.get(self.assignment.owners[lane])
        if absent_since is not None and self._clock.monotonic() - absent_since >= self._times.expected_s:
            return False
        return not any(lane in self._heard[name].failing for name in self._up())

    async def change(self, timeout_s: float) -> None:
        """See Whereabouts."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return

    # ---- for other workers (the host of links)

    def status(self) -> list[Any]:
        """Return what the others shall know."""
        active = {n for n in self._running if self._lanes[n].state is LaneState.ACTIVE}
        failing = {n for n in self._running if self._is_failing(n)}
        return Status(
            self.generation, frozenset(self._running), frozenset(active), frozenset(failing), self._is_leaving
        ).told()

    def take(self, worker: WorkerId, kind: str, body: Any) -> None:
        """Take what another worker says; whatever it is, nothing is raised."""
        try:
            if kind == STATUS:
                if body is not None:  # else it is down, which its link says, too
                    self._heard[worker] = Status.heard(body)
                self._find_servers()
            elif kind == COMMITTED:
                number, committed = heard_committed(body)
                if self._role_of(number) is Role.FOLLOWER:
                    self._lanes[number].follower.take(committed)
        except (ValueError, TypeError, IndexError) as err:
            log.warning("another worker is not understood", worker=worker, kind=kind, error=repr(err))

    async def answer(self, worker: WorkerId, kind: str, body: Any) -> Any:
        """Answer what another worker asks. Raises GatewayError."""
        if kind not in self.answers:
            raise RetriableError(f"nobody here answers {kind!r}")
        return self.answers[kind](body)

    def _session(self, body: Any) -> Any:
        number, key = body
        return told_state(self._lanes[number].session(key))

    def _sessions(self, body: Any) -> Any:
        number, client_hash, count = body
        return told_rows(self._lanes[number].sessions_of(client_hash, count))

    def _find(self, body: Any) -> Any:
        number, key = body
        return told_entry(self._lanes[number].find(key))

    def submit(
        self, lane: int, events: Sequence[Event], *, size_bytes: int, received_ms: int, deadline: Deadline
    ) -> "asyncio.Future[Outcomes]":
        """Decide events for another worker. Raises LaneNotActiveError, LaneSaturatedError."""
        if not 0 <= lane < len(self._lanes):
            raise LaneNotActiveError(f"there is no lane {lane}")
        own = self._lanes[lane]
        if any(event.partition != own.partition for event in events):
            raise LaneNotActiveError("these events are of another partition")
        own.check_room(len(events), size_bytes, events[0].source)
        received_ms = min(received_ms, self._clock.now_ms())  # no clock but this one moves the lane's window
        return own.submit(events, size_bytes=size_bytes, received_ms=received_ms, deadline=deadline)

    # ---- keeping lanes

    async def _keep(self, number: int) -> None:
        """Have one lane run or follow, whatever the group says of it and whatever befalls it, for ever."""
        lane = self._lanes[number]
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
        role = self._role_of(number)
        if role is Role.OWNER and await self._is_free(number):
            await self._own(number, lane)
        elif role is Role.FOLLOWER:
            await self._follow(number, lane)
        elif role is Role.NONE:
            lane.forget()
            if self.generation >= 0 and not lane.is_proved and not self._is_stopping:
                await lane.prove()  # the gate waits for all
            await self._turned[number].wait()

    def _role_of(self, number: int) -> Role:
        if self._is_stopping:
            return Role.NONE
        if number in self._claimed or self.assignment.owners[number] == self.worker:
            return Role.OWNER
        return Role.FOLLOWER if self.assignment.followers[number] == self.worker else Role.NONE

    async def _is_free(self, number: int) -> bool:
        """Wait until nobody else owns the lane, or for so long; false if it is not ours any more."""
        deadline = Deadline(self._clock, self._times.release_s)
        while self._role_of(number) is Role.OWNER:
            owners = [name for name in self._up() if number in self._heard[name].owned]
            if deadline.is_over or (not owners and self._knows_all()) or number in self._claimed:
                return True
            await self.change(min(deadline.remaining_s, self._times.look_s))
        return False

    async def _own(self, number: int, lane: Lane) -> None:
        """Run a lane until the group gives it to somebody else, or somebody else has taken it."""
        generation = self.generation
        self._running.add(number)
        self.moves += 1
        lane.assign()
        lane.ship = partial(self._ship, number)
        running = asyncio.ensure_future(keep_running(lane))
        self._turn_routes()
        try:
            while not running.done() and self._role_of(number) is Role.OWNER:
                await self._first(running, number)
            lane.drain()
            if (
                lane.state is LaneState.DRAINING
            ):  # else it has nothing to finish, and a replay may take minutes
                await asyncio.wait({running}, timeout=self._times.drain_s)
        finally:
            running.cancel()
            await asyncio.wait({running})
            self._running.discard(number)
            self._claimed.discard(number)
            self._turn_routes()
        if not running.cancelled():
            running.result()
        if self._role_of(number) is Role.OWNER and lane.health.is_lost:
            self._membership.rejoin()
            while self.generation == generation:
                await self._turned[number].wait()
                self._turned[number].clear()

    async def _follow(self, number: int, lane: Lane) -> None:
        following = asyncio.ensure_future(lane.follow())
        was_caught_up = False
        try:
            while not following.done() and self._role_of(number) is Role.FOLLOWER:
                await self._first(following, number)
                if lane.follower.is_caught_up and not was_caught_up and not self.assignment.is_settled:
                    was_caught_up = True
                    self._membership.rejoin()
            if following.cancelled():  # not by us: by a library that it asked
                raise RetriableError("following the partition was cut off")
        finally:
            following.cancel()
            await asyncio.wait({following})
            if self._role_of(number) is not Role.OWNER:
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
        link = self._links.link(follower) if self._links is not None and follower != NOBODY else None
        if link is None or not link.is_up:
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
            states = [(lane.state, lane.follower.is_caught_up) for lane in self._lanes]
            up = self._up()
            if (now := (states, up, self._running.copy())) != seen:
                seen = now
                self._find_servers()
                if self._links is not None:
                    self._links.announce()
                self._turn_all()
            self._note_absence(up)
            for name in self._gone:
                self._claim_of(name)
            if self._missed() != self._unreached:
                self._membership.rejoin()

    def _note_absence(self, up: Sequence[WorkerId]) -> None:
        """A link that was lost has been mended in vain; one that was never there may still be on its way."""
        now = self._clock.monotonic()
        absent = [name for name in self.assignment.addresses if name not in up and name != self.worker]
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        self._gone = {
            name
            for name, since in self._absent_since.items()
            if name in self._heard or now - since >= self._times.connect_s
        }
        self._missed_at.update(dict.fromkeys(self._gone, now))

    def _missed(self) -> tuple[WorkerId, ...]:
        """Return which members are not reached, or were not a moment ago: nothing moves each time."""
        since = self._clock.monotonic() - self._times.steady_s
        missed = [name for name, at in self._missed_at.items() if at > since]
        return tuple(sorted(name for name in missed if name in self.assignment.addresses))

    def _claim_of(self, gone: WorkerId) -> None:
        for number, (owner, follower) in enumerate(
            zip(self.assignment.owners, self.assignment.followers, strict=True)
        ):
            lane = self._lanes[number]
            if owner != gone or follower != self.worker or number in self._claimed:
                continue
            if gone not in self._heard or self._heard[gone].generation < self._owner_since[number]:
                continue
            if self._servers[number] is None and lane.follower.is_caught_up:
                log.warning(
                    "a partition is claimed: its owner is gone",
                    topic=lane.topic,
                    partition=lane.partition,
                    owner=gone,
                    generation=self.generation,
                )
                self.claims += 1
                self._claimed.add(number)
                self._owner_since[number] = self.generation + 1
                self._turned[number].set()
                self._membership.rejoin()

    def _up(self) -> list[WorkerId]:
        """Return the other workers that answer, and have said what they own."""
        if self._links is None:
            return []
        links = [(name, self._links.link(name)) for name in self._heard]
        return [name for name, link in links if link is not None and link.is_up]

    def _knows_all(self) -> bool:
        """Whether every other worker of the group has said what it owns, or is gone."""
        known = {*self._up(), *self._gone, self.worker}
        return known.issuperset(self.assignment.addresses)

    def _find_servers(self) -> None:
        servers: list[WorkerId | None] = [None] * len(self._lanes)
        for name in sorted(self._up(), key=lambda name: (self._heard[name].generation, name)):
            for number in self._heard[name].active:
                if 0 <= number < len(servers):
                    servers[number] = name
        self._servers = servers
        self._turn_routes()

    def _is_failing(self, number: int) -> bool:
        """Whether a lane of this worker waits for its log or its index, and nobody else would do better."""
        health = self._lanes[number].health
        is_fenced = health.last_error is not None and health.last_error.startswith(FencedError.__name__)
        return health.failing_since_ms is not None and not health.is_lost and not is_fenced

    def _turn_all(self) -> None:
        for turned in self._turned:
            turned.set()
        self._turn_routes()

    def _turn_routes(self) -> None:
        """Wake everybody who waits for a change, once."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
