"""
A simulated group coordinator, by the rules of Kafka's: members join, the leader assigns, whoever is silent
is out. It decides nothing of its own, and its members run the code that real ones run to assign lanes.
"""

import asyncio
from dataclasses import dataclass, field

from dedupe.cluster.assignment import Member
from dedupe.cluster.membership import Describe, MemberPlace, Take
from dedupe.storage.kafka.group_wire import Joined, decide, packed, read_share

SESSION_S, REBALANCE_S, HEARTBEAT_S, RETRY_S, ANSWER_S = 6.0, 3.0, 0.5, 0.5, 3.0
"""As in GroupTimes of the real member."""

INITIAL_S = 0.5
"""How long others are waited for when the first one joins; Kafka's 3 s would only be virtual, too."""

LOOK_S = 0.05


class NotAnsweredError(Exception):
    """The coordinator is out of reach, or says that it does not know the member."""


class RejoinError(Exception):
    """Others join: so must this member."""


@dataclass
class Place:
    """A member, as the coordinator knows it."""

    told: Member
    heard_at: float
    joining: "asyncio.Future[Joined] | None" = None
    share: "asyncio.Future[bytes] | None" = None


@dataclass
class SimCoordinator:
    """All members of one group. Run `keep_time` as long as there are any."""

    lanes: int
    standbys: bool = True
    is_up: bool = True
    slow_s: float = 0.0
    """How long each question takes."""
    is_frozen: bool = False
    """Whether its process stands still: no question is answered, and no session ends."""
    cut_off: set[str] = field(default_factory=set)
    """Workers that do not reach it."""
    unheard: set[str] = field(default_factory=set)
    """Workers that reach it, and hear no answer."""
    generation: int = 0
    places: dict[str, Place] = field(default_factory=dict)
    rebalances: int = 0
    cut_short: int = 0
    """Rebalances that ended without a living member: as Kafka ends one that a freeze of its own overran."""
    _rebalancing_since: float | None = None
    _is_first: bool = True

    async def keep_time(self) -> None:
        """Put out who is silent, and finish rebalances."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            if not self.is_up or self.is_frozen:
                for place in self.places.values():
                    place.heard_at = now  # sessions begin anew with it
                continue
            for name, place in list(self.places.items()):
                is_waiting = place.joining is not None and not place.joining.done()
                if not is_waiting and now - place.heard_at >= SESSION_S:
                    self._put_out(name)
            self._finish_joining(now)

    async def reach(self, worker: str) -> None:
        """Be asked by a worker. Raises NotAnsweredError."""
        await asyncio.sleep(0.001 + self.slow_s)
        if self.is_frozen or worker in self.cut_off:
            await asyncio.sleep(ANSWER_S)
            raise NotAnsweredError("no answer in time")
        if not self.is_up:
            raise NotAnsweredError("out of reach")

    async def answer(self, worker: str) -> None:
        """Tell a worker what it has asked for. Raises NotAnsweredError."""
        if self.is_frozen or worker in self.unheard:
            await asyncio.sleep(ANSWER_S)
            raise NotAnsweredError("no answer in time")

    def join(self, name: str, told: Member) -> "asyncio.Future[Joined]":
        """Begin a rebalance, or take part in the one that has begun."""
        loop = asyncio.get_running_loop()
        place = self.places.setdefault(name, Place(told, loop.time()))
        place.told, place.heard_at = told, loop.time()
        if place.joining is not None and not place.joining.done():
            place.joining.cancel()
        place.joining = loop.create_future()
        self._begin(loop.time())
        return place.joining

    def sync(self, name: str, joined: Joined) -> "asyncio.Future[bytes]":
        """Wait for what the leader tells. Raises RejoinError, NotAnsweredError."""
        place = self._place_of(name)
        if joined.generation != self.generation or self._rebalancing_since is not None:
            raise RejoinError
        assert place.share is not None
        if joined.leader == name:
            for other, share in decide(joined, self.lanes, standbys=self.standbys).shares:
                waiting = self.places[other].share if other in self.places else None
                if waiting is not None and not waiting.done():
                    waiting.set_result(share)
        return place.share

    def beat(self, name: str, generation: int) -> None:
        """Hear that a member is there. Raises RejoinError, NotAnsweredError."""
        self._place_of(name).heard_at = asyncio.get_running_loop().time()
        if self._rebalancing_since is not None or generation != self.generation:
            raise RejoinError

    def leave(self, name: str) -> None:
        """Forget a member."""
        if name in self.places:
            self._put_out(name)

    def _place_of(self, name: str) -> Place:
        if name not in self.places:
            raise NotAnsweredError("unknown member")
        return self.places[name]

    def _begin(self, now: float) -> None:
        if self._rebalancing_since is None:
            self._rebalancing_since = now
            self.rebalances += 1
            for place in self.places.values():
                if place.share is not None and not place.share.done():
                    place.share.set_exception(RejoinError())
                    place.share.exception()

    def _put_out(self, name: str) -> None:
        place = self.places.pop(name)
        for waiting in (place.joining, place.share):
            if waiting is not None and not waiting.done():
                waiting.set_exception(NotAnsweredError("put out"))
                waiting.exception()
        self._begin(asyncio.get_running_loop().time())

    def _finish_joining(self, now: float) -> None:
        """End the rebalance once all have joined, or without those who have not."""
        since = self._rebalancing_since
        joined = {
            name: place.joining
            for name, place in self.places.items()
            if place.joining is not None and not place.joining.done()
        }
        if since is None or not joined:
            return
        if self._is_first and now - since < INITIAL_S:
            return
        if len(joined) < len(self.places) and now - since < REBALANCE_S:
            return
        late = self.places.keys() - joined.keys()
        self.cut_short += bool(late)
        for name in late:
            self._put_out(name)
        self._rebalancing_since, self._is_first = None, False
        self.generation += 1
        leader, *_ = joined
        members: list[tuple[str, bytes | None]] = [
            (name, packed(self.places[name].told.encoded())) for name in joined
        ]
        for name, answer in joined.items():
            place = self.places[name]
            place.share, place.heard_at = asyncio.get_running_loop().create_future(), now
            answer.set_result(Joined(0, self.generation, leader, name, members if name == leader else []))


class SimMembership:
    """See Membership: one worker's place, under a name that no other start has."""

    def __init__(self, coordinator: SimCoordinator, worker: str, place: MemberPlace) -> None:
        self.is_alive = True
        """Whether its process is: what was killed does not say goodbye."""
        self._coordinator = coordinator
        self._worker = worker
        self._name, self._told, self._started_ms = place
        self._wish = asyncio.Event()
        self._heard_at = self._joined_at = float("-inf")

    @property
    def silence_s(self) -> float:
        """See Membership."""
        return asyncio.get_running_loop().time() - self._heard_at

    @property
    def joining_s(self) -> float:
        """See Membership; nobody looks at it here."""
        return 0.0

    @property
    def place(self) -> MemberPlace:
        """See Membership."""
        return MemberPlace(self._name, self._told, self._started_ms)

    async def run(self, describe: Describe, take: Take) -> None:
        """See Membership."""
        while True:
            try:
                await self._join(describe, take)
                await self._stay()
            except NotAnsweredError:
                await asyncio.sleep(RETRY_S)
            except (RejoinError, TimeoutError):
                await asyncio.sleep(0.1)

    def rejoin(self) -> None:
        """See Membership."""
        self._wish.set()

    async def leave(self) -> None:
        """See Membership."""
        if not self.is_alive:
            return
        try:
            await self._coordinator.reach(self._worker)
            self._coordinator.leave(self._name)
        except NotAnsweredError:
            return

    async def _join(self, describe: Describe, take: Take) -> None:
        loop, coordinator = asyncio.get_running_loop(), self._coordinator
        self._wish.clear()
        await coordinator.reach(self._worker)
        told = describe()._replace(started_ms=self._started_ms, generation=self._told)
        async with asyncio.timeout(SESSION_S + REBALANCE_S):
            joined = await coordinator.join(self._name, told)
        await coordinator.answer(self._worker)
        await coordinator.reach(self._worker)
        async with asyncio.timeout(REBALANCE_S + ANSWER_S):
            share = await coordinator.sync(self._name, joined)
        await coordinator.answer(self._worker)
        await coordinator.reach(self._worker)
        self._generation, self._joined_at = joined.generation, loop.time()
        self._heard_at = loop.time()
        assignment = read_share(share, told.lanes)
        if assignment.generation > self._told:
            self._told = assignment.generation
            take(assignment.generation, assignment)

    async def _stay(self) -> None:
        loop, coordinator = asyncio.get_running_loop(), self._coordinator
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wish.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(self._joined_at + RETRY_S - loop.time())
                return
            try:
                await coordinator.reach(self._worker)
            except NotAnsweredError:
                continue  # a place is kept until the coordinator says that it knows none
            coordinator.beat(self._name, self._generation)
            try:
                await coordinator.answer(self._worker)
            except NotAnsweredError:
                continue
            self._heard_at = loop.time()
