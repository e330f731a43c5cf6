"""How a topic was divided into other partitions, as `gateway reshard status --output json` says it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import UsageError


class Jump(NamedTuple):
    """A place in a partition from which on its records have higher numbers, although none is missing."""

    partition: int
    offset: int  # of the first of these records, or before it
    by: int


OFFSET_END = 2**63 - 1
"""Behind all offsets."""
TIME_END_MS = 253_402_300_800_000
"""Behind all times: the year 10000."""


class Inherited(NamedTuple):
    """As what the index of a partition counts the records of a part of a log, itself or another."""

    partition: int  # that has the index
    since: int  # offset of its first record that was written by this index
    until: int  # behind the last one
    source: int  # partition of the records that are counted
    start: int  # offset of the first one
    end: int  # behind the last one
    shift: int  # between their lane_seq and that of the partition
    lane_seq_min: int  # none counts as one before it


class Period(NamedTuple):
    """A time in which so many partitions had slots."""

    since_ms: int
    until_ms: int
    partitions: int


class Division(NamedTuple):
    """The partitions that a topic began with, and how the records of others are numbered."""

    begun_with: int
    first_lane_seqs: Mapping[int, int] = {}
    """The lane_seq of the first record of each partition, as far as it is known."""
    jumps: tuple[Jump, ...] = ()
    ends: Mapping[int, int] = {}
    """Offsets from which on partitions without slots have no records."""
    inherited: tuple[Inherited, ...] = ()
    """What each index counts: a pair of records that is in none of them is counted by none."""
    periods: tuple[Period, ...] = ()
    """Without a gap; the last one goes on. None if that is not known."""

    @classmethod
    def only(cls, begun_with: int) -> "Division":
        """Return a division of which nothing else is known."""
        return cls(begun_with, dict.fromkeys(range(begun_with), 0))


UNDIVIDED = Division(0)
"""Says nothing."""


def read_division(path: Path) -> Division:
    """Return what a file says. Raises UsageError."""
    begun_with, first_lane_seqs, periods = 0, {}, tuple[Period, ...]()
    with_slots = 0
    jumps, ends, inherited = list[Jump](), dict[int, int](), list[Inherited]()
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            partition, begun_with = int(row["partition"]), int(row["begun_with"])
            first, *others = row["begins"]
            if not row["slots"]:
                ends[partition] = int(row["begins"][-1]["offset"])
            first_lane_seqs[partition] = int(first["lane_seq"])
            for start in others:
                if by := int(start["lane_seq"]) - int(start["ended_seq"]):
                    jumps.append(Jump(partition, int(start["offset"]), by))
            inherited += _inherited(row)
            with_slots += row["slots"] > 0
            periods = _periods(row.get("counts"))
    except (OSError, ValueError, LookupError, TypeError) as err:
        raise UsageError(f"{path} is no output of `gateway reshard status --output json`: {err!r}") from None
    if not begun_with:
        raise UsageError(f"{path} names no partition")
    if periods:
        periods = (*periods[:-1], periods[-1]._replace(partitions=with_slots))
    return Division(begun_with, first_lane_seqs, tuple(jumps), ends, tuple(inherited), periods)


def _periods(counts: Sequence[Mapping[str, Any]] | None) -> tuple[Period, ...]:
    """Return the periods that counts end, and one without partitions behind them; none if nothing is told."""
    if counts is None:
        return ()
    ends = [int(count["until_ms"]) for count in counts]
    starts = zip([0, *ends], [*ends, TIME_END_MS], [*(int(c["partitions"]) for c in counts), 0], strict=True)
    return tuple(Period(*period) for period in starts)


def _inherited(row: Mapping[str, Any]) -> Iterator[Inherited]:
    """
    Yield what each index counts that a partition has had.

    What an earlier index has inherited is not said. So as few records are counted as can be: those of the
    partition since it had that index.
    """
    partition, begins = int(row["partition"]), row["begins"]
    # A command of before says nothing of indexes, so each part may have had one of its own.
    lineage = row.get("lineage", {"begins_at": begins[-1]["offset"], "levels": []})
    own_from = 0 if lineage is None else int(lineage["begins_at"])
    starts = [(int(each["offset"]), int(each["lane_seq"])) for each in begins]
    starts = [each for each in starts if each[0] <= own_from] or [(0, 0)]
    ends = [offset for offset, _ in starts[1:]] + [OFFSET_END]
    for (since, lane_seq), until in zip(starts, ends, strict=True):
        yield Inherited(partition, since, until, partition, since, until, 0, 0)
        is_told = bool(lineage and lineage["levels"]) and since == own_from
        if since and not is_told:
            yield Inherited(partition, since, until, partition, 0, since, 0, lane_seq - 1)
    for level in lineage["levels"] if lineage else ():
        part = [int(level[name]) for name in ("partition", "start", "end", "shift", "lane_seq_min")]
        yield Inherited(partition, own_from, OFFSET_END, *part)
