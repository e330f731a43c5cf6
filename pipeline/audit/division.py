"""How a topic was divided into other partitions, as `gateway reshard status --output json` says it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import UsageError


class Jump(NamedTuple):
    """A place in a partition from which on its records have higher numbers, although none is missing."""

    partition: int
    offset: int  # of the first of these records, or before it
    by: int


class Division(NamedTuple):
    """The partitions that a topic began with, and how the records of others are numbered."""

    begun_with: int
    first_lane_seqs: Mapping[int, int] = {}
    """The lane_seq of the first record of each partition, as far as it is known."""
    jumps: tuple[Jump, ...] = ()
    ends: Mapping[int, int] = {}
    """Offsets from which on partitions without slots have no records."""

    @classmethod
    def only(cls, begun_with: int) -> "Division":
        """Return a division of which nothing else is known."""
        return cls(begun_with, dict.fromkeys(range(begun_with), 0))


UNDIVIDED = Division(0)
"""Says nothing."""


def read_division(path: Path) -> Division:
    """Return what a file says. Raises UsageError."""
    begun_with, first_lane_seqs = 0, {}
    jumps, ends = list[Jump](), dict[int, int]()
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
    except (OSError, ValueError, LookupError, TypeError) as err:
        raise UsageError(f"{path} is no output of `gateway reshard status --output json`: {err!r}") from None
    if not begun_with:
        raise UsageError(f"{path} names no partition")
    return Division(begun_with, first_lane_seqs, tuple(jumps), ends)
