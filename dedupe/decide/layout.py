"""Layout: how a topic is divided into partitions, for the whole life of a process. Pure."""

from collections import Counter

from dedupe.decide.lineage import Lineage
from dedupe.decide.resharding import Routing
from dedupe.model.slots import PartitionMap, slots_of


class Layout:
    """The partitions of one topic."""

    def __init__(self, partitions: int, routing: Routing | None = None) -> None:
        """
        Take what is known of a topic.

        Args:
            partitions: those that it began with.
            routing: how it was divided since; what is not decided yet does not count. None: never.
        """
        assert routing is None or routing.base == partitions, routing
        self.base = partitions
        self.open = routing if routing is not None and routing.undecided else None
        """The same with an open plan, which does not count; None without one."""
        self.routing = routing if routing is not None and routing.pieces else None
        """None if the partitions are those of the beginning."""
        self.plan = 0 if routing is None else routing.decided_plan
        """The number of the last plan; 0 without any."""
        self.partitions = partitions if routing is None else 1 + max(routing.homes)
        """One more than the highest number of a partition with slots."""
        self.partitions_of_log = partitions if routing is None else routing.partitions
        """Those that Kafka has; some may have no slots, or none any more."""
        self.map = PartitionMap(partitions)
        self._slots = Counter({partition: self.slots // partitions for partition in range(partitions)})
        if self.routing is not None:
            self.map = PartitionMap.of_homes(self.routing.homes, partitions)
            self._slots = Counter(self.routing.homes)

    def lineage_of(self, partition: int) -> Lineage | None:
        """Return the lineage of a partition; None if it was never given slots."""
        return None if self.routing is None else self.routing.lineages.get(partition)

    def index_plan_of(self, partition: int) -> int:
        """Return the number of the plan by which the index of a partition begins, see IndexIdentity."""
        lineage = self.lineage_of(partition)
        return 0 if lineage is None else lineage.plan

    def index_digest_of(self, partition: int) -> str:
        """Return what else the index of a partition depends on, see Lineage.digest."""
        lineage = self.lineage_of(partition)
        return "" if lineage is None else lineage.digest

    @property
    def slots(self) -> int:
        """Of all partitions together."""
        return slots_of(self.base)

    def slots_of(self, partition: int) -> int:
        """Return how many slots a partition has; 0: it rests."""
        return self._slots[partition]

    def partitions_since(self, timestamp_ms: int) -> int:
        """Return the smallest number of partitions that had slots at a time or later."""
        before = () if self.routing is None else self.routing.counts
        now = sum(count > 0 for count in self._slots.values())
        return min([now, *(count.partitions for count in before if count.until_ms >= timestamp_ms)])
