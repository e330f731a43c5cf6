"""
Planned: how a topic will be divided once all partitions of an open plan are cut. Pure.

Nobody knows where. So each log counts as cut where no record can be: what a lane reads of it grows until it
is cut in fact, and is the same below that.
"""

from typing import NamedTuple

from dedupe.decide.lineage import Lineage
from dedupe.decide.resharding import Decision, Routing
from dedupe.model.inherited import OFFSETS_MAX

END = Decision(0, 0, OFFSETS_MAX, timestamp_ms=1 << 62, lane_seq=1 << 62)


class Heir(NamedTuple):
    """A partition whose index can be prepared before its source is cut."""

    partition: int
    source: int  # the last log of those that it reads, and the only one that still grows
    lineage: Lineage


def as_if_cut(routing: Routing) -> Routing:
    """Return the routing as it will be if all that have not decided of its plan are cut."""
    ends = [END._replace(plan=routing.version.plan, partition=each) for each in sorted(routing.undecided)]
    return routing.with_all(ends)


def heirs_of(routing: Routing) -> list[Heir]:
    """
    Return whose indexes can be prepared for an open plan.

    With several sources that grow, what is read of the later ones would have to wait for the ends of the
    others; so it would if the partition has had records of its own, since its sequence goes on behind them.
    """
    planned = as_if_cut(routing)
    heirs = []
    for partition, lineage in sorted(planned.lineages.items()):
        if lineage.plan != routing.version.plan or routing.pieces.get(partition):
            continue
        growing = [level for level in lineage.levels if level.end == OFFSETS_MAX]
        if growing and growing == list(lineage.levels[-1:]):
            heirs.append(Heir(partition, growing[0].partition, lineage))
    return heirs
