"""Levels: whether partitions can have their new indexes prepared for a plan, or in which steps. Pure."""

from dataclasses import replace

from dedupe.decide.lineage import Mark
from dedupe.decide.planned import as_if_cut
from dedupe.decide.resharding import Decision, Plan, Routing, spread_over
from dedupe.model.inherited import LEVELS_MAX

_WRITTEN = 1
"""Offsets, and numbers, that each partition is thought to get between cut, mark and cut; any will do."""


def has_levels(planned: Routing) -> bool:
    """Whether lanes behind an open plan have a level for each part of a log that they inherit."""
    lineages = as_if_cut(planned).lineages.values()
    return max(len(lineage.levels) for lineage in lineages) < LEVELS_MAX


def steps_to(routing: Routing, partitions: int) -> tuple[int, int] | None:
    """Return two numbers of partitions, the last as wanted, that can be prepared one after the other."""
    between = 2 * partitions
    while between < len(set(routing.homes)):
        after = _after(routing, between)
        if after is not None and _after(after, partitions) is not None:
            return between, partitions
        between *= 2
    return None


def _after(routing: Routing, partitions: int) -> Routing | None:
    """Return the routing behind a plan with marks; None if its indexes cannot be prepared."""
    starts = {partition: routing.starts_of(partition)[-1] for partition in set(routing.homes)}
    marks = tuple(
        Mark(partition, start.offset + _WRITTEN, start.lane_seq + _WRITTEN, 0)
        for partition, start in sorted(starts.items())
    )
    before = tuple(routing.decisions[each] for each in sorted(routing.decisions))
    number, moves = routing.version.plan + 1, spread_over(routing, partitions)
    planned = routing.with_plan(Plan(number, routing.partitions, moves, before, 0, marks))
    if not has_levels(planned):
        return None
    return replace(planned, takes_marks=False).with_all(
        Decision(number, mark.partition, mark.offset + _WRITTEN, 0, mark.lane_seq + _WRITTEN)
        for mark in marks
    )
