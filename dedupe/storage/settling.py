"""
Settles a plan: has each partition with slots decided, by its owner, or by whoever waits for it too long.

Whoever decides is a partition's owner for a moment, so several may try at once: the first decision counts
(dedupe/storage/dividing.py).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from dedupe.decide.layout import Layout
from dedupe.decide.planned import hosts_of
from dedupe.decide.resharding import Decision, Marking, Plan, Routing
from dedupe.model.clock import Clock
from dedupe.model.errors import RetriableError
from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.dividing import decide
from dedupe.storage.log import DecidingLog, PartitionLog
from dedupe.storage.routing_records import Note, Seal
from dedupe.storage.signs import Signs

PATIENCE_S = 120.0
"""How long a partition may refuse to be fenced, or gateways that run may fence it in between."""
OTHERS_S = 5.0
"""How long a partition is left to its owner. Gateways that run see a plan within a second."""
POLL_S = 0.05
RETRY_S = 0.5
AT_ONCE_MAX = 16
"""Partitions that one process decides at the same time, each with connections of its own."""

Tell: TypeAlias = Callable[[str], None]


class Plans(Protocol):
    """The plans of a topic; see RoutingTopic."""

    async def routing(self, partitions: int) -> tuple[Routing, bool]:
        """See RoutingTopic."""

    async def seal(self) -> Seal:
        """See RoutingTopic."""

    async def signs(self, plan: int) -> Signs:
        """See RoutingTopic."""

    async def has_new_plan(self) -> bool:
        """See RoutingTopic."""

    async def note(self, note: Note) -> None:
        """See RoutingTopic."""

    async def write_plan(self, plan: Plan) -> None:
        """See RoutingTopic."""

    async def write_marking(self, marking: Marking) -> None:
        """See RoutingTopic."""

    async def close_plan(self, number: int) -> None:
        """See RoutingTopic."""


class DividedStore(Protocol):
    """A log whose partitions can be divided; see KafkaStore."""

    @property
    def routing_topic(self) -> Plans:
        """Its plans."""

    def partition_log(self, topic: str, partition: int) -> PartitionLog:
        """See LogStore."""

    def deciding_log(self, topic: str, partition: int) -> DecidingLog:
        """See LogStore."""

    def release_fence(self, topic: str, partition: int) -> None:
        """Forget the fence that is kept of a partition, if one is; see KeptFences."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Settles the open plan of one topic, if there is one."""

    store: DividedStore
    topic: Topic  # with the partitions that it began with
    identity: Identity
    clock: Clock
    tell: Tell

    async def is_due(self) -> bool:
        """
        Whether a plan is open, and to be carried out or closed now; until then its indexes are prepared.

        Raises as `settle` does.
        """
        routing, _ = await self.store.routing_topic.routing(self.topic.partitions)
        if routing.decisions or not routing.undecided:
            return bool(routing.undecided)
        signs = await self.store.routing_topic.signs(routing.version.plan)
        return signs.are_due(routing, hosts_of(routing))

    async def settle(self, own: Collection[int] = ()) -> bool:
        """
        Wait until no partition is undecided, and tell what was decided.

        Args:
            own: partitions that this process owned last: it decides them at once. It leaves all others to
                their owners for OTHERS_S, then decides them, too.

        Returns:
            Whether any was undecided; else it tells nothing.

        Raises:
            RetriableError: the log does not answer; call again.
            ConfigurationError: a partition cannot be divided.
            IdentityMismatchError: somebody else has decided.
        """
        others_at = self.clock.monotonic() + OTHERS_S
        routing, is_closing = await self._routing_of_others(own)
        if not routing.undecided:
            return False
        while routing.undecided:
            if routing.takes_marks:
                marking = Marking(routing.version.plan, (), is_last=True)
                await self.store.routing_topic.write_marking(marking)
                routing, is_closing = await self._routing_of_others(own)
                continue
            is_patient = self.clock.monotonic() < others_at
            due = routing.undecided & frozenset(own) if is_patient else routing.undecided
            await self._decide_each(routing, due, keeps=is_closing and not routing.version.cut)
            await asyncio.sleep(0 if due else POLL_S)
            routing, is_closing = await self.store.routing_topic.routing(self.topic.partitions)
        self.tell_decisions(routing)
        return True

    async def _routing_of_others(self, own: Collection[int]) -> tuple[Routing, bool]:
        """Return the routing before this process decides; whoever decided what it owned has fenced it."""
        routing, is_closing = await self.store.routing_topic.routing(self.topic.partitions)
        for partition in routing.decisions.keys() & frozenset(own):
            self.store.release_fence(self.topic.name, partition)
        return routing, is_closing

    def tell_decisions(self, routing: Routing) -> None:
        """Tell what is decided of the last plan."""
        for partition, decision in sorted(routing.decisions.items()):
            cut = f"is divided at offset {decision.offset}"
            self.tell(f"partition {partition} {cut if decision.is_cut else 'keeps its slots'}")

    async def _decide_each(self, routing: Routing, partitions: Collection[int], *, keeps: bool) -> None:
        assert routing.plan is not None
        seal = await self.store.routing_topic.seal()
        before = Layout(routing.base, routing)
        slots = asyncio.Semaphore(AT_ONCE_MAX)
        decided = partial(self._decide, routing.plan, before=before, seal=seal, slots=slots, keeps=keeps)
        results = await asyncio.gather(*map(decided, sorted(partitions)), return_exceptions=True)
        for err in filter(None, results):
            raise err

    async def _decide(
        self,
        plan: Plan,
        partition: int,
        *,
        before: Layout,
        seal: Seal,
        slots: asyncio.Semaphore,
        keeps: bool,
    ) -> None:
        """Decide of one partition; again while gateways that run take it over in between."""
        async with slots:
            await self._decided(plan, partition, before, seal, keeps=keeps)

    async def _decided(
        self, plan: Plan, partition: int, before: Layout, seal: Seal, *, keeps: bool
    ) -> Decision:
        give_up_at = self.clock.monotonic() + PATIENCE_S
        log = self.store.deciding_log(self.topic.name, partition)
        now_ms, identity = self.clock.now_ms(), self.identity
        try:
            while True:
                try:
                    return await decide(
                        log, seal, plan, partition, before, identity, keeps=keeps, now_ms=now_ms
                    )
                except RetriableError as err:
                    if self.clock.monotonic() > give_up_at:
                        raise
                    self.tell(f"partition {partition} is tried again: {err}")
                await asyncio.sleep(RETRY_S)
        finally:
            await log.close()
