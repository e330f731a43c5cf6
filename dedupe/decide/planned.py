"""
Planned: how a topic will be divided once all partitions of an open plan are cut. Pure.

Nobody knows where. So each log counts as cut where no record can be: what a lane reads of it grows until it
is cut in fact, and is the same below that. With marks everything below them is as it will be.
"""

from dataclasses import replace
from typing import NamedTuple

from dedupe.decide.lineage import Lineage
from dedupe.decide.resharding import Decision, Routing
from dedupe.model.inherited import OFFSETS_MAX
from dedupe.model.types import Offset

END = Decision(0, 0, OFFSETS_MAX, timestamp_ms=1 << 62, lane_seq=1 << 62)
END_BEHIND_MARKS = END._replace(lane_seq=0)
"""Numbers behind marks do not matter, as long as they are below the lane's own."""


class Heir(NamedTuple):
    """A partition whose index can be prepared before its sources are cut."""

    partition: int
    host: int  # whose owner will have it, and prepares it: itself if it is there now, or else a source
    lineage: Lineage
    end: Offset | None  # of the lane: where it can be read to; None: to the end of its last log, which grows


def as_if_cut(routing: Routing) -> Routing:
    """Return the routing as it will be if all that have not decided of its plan are cut."""
    end = END_BEHIND_MARKS if routing.plan is not None and routing.plan.marks else END
    ends = [end._replace(plan=routing.version.plan, partition=each) for each in sorted(routing.undecided)]
    return replace(routing, takes_marks=False).with_all(ends)


def heirs_of(routing: Routing) -> list[Heir]:
    """
    Return whose indexes can be prepared for an open plan.

    With several sources that grow, what is read of the later ones would have to wait for the ends of the
    others; so it would if the partition has had records of its own, since its sequence goes on behind them.
    With marks all is read that lies below the last ones.
    """
    planned = as_if_cut(routing)
    heirs = []
    for partition, lineage in sorted(planned.lineages.items()):
        if lineage.plan != routing.version.plan or not lineage.levels:
            continue
        host = partition if partition <= max(routing.homes) else lineage.levels[-1].partition
        are_closed = [level.end < OFFSETS_MAX for level in lineage.levels]
        if not lineage.digest:
            if are_closed.count(False) == 1 and not are_closed[-1] and not routing.pieces.get(partition):
                heirs.append(Heir(partition, host, lineage, None))
        elif closed := sum(are_closed):
            heirs.append(Heir(partition, host, lineage, lineage.parts[closed - 1][1]))
    return heirs


def hosts_of(routing: Routing) -> frozenset[int]:
    """Return the partitions whose owners say how far the heirs are: all that decide of an open plan, too."""
    return routing.undecided.union(heir.host for heir in heirs_of(routing))
