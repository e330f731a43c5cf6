"""How a topic was divided into more partitions, as `gateway reshard status --output json` says it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import UsageError


class Division(NamedTuple):
    """The partitions that a topic began with, and those that were divided off since."""

    begun_with: int
    first_lane_seqs: Mapping[int, int]
    """The lane_seq of the first record of each partition that was divided off."""


def read_division(path: Path) -> Division:
    """Return what a file says. Raises UsageError."""
    begun_with, first_lane_seqs = 0, {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if lane_seq := int(row["begins"][0]["lane_seq"]):
                first_lane_seqs[int(row["partition"])] = lane_seq
            begun_with = int(row["begun_with"])
    except (OSError, ValueError, LookupError, TypeError) as err:
        raise UsageError(f"{path} is no output of `gateway reshard status --output json`: {err!r}") from None
    if not begun_with:
        raise UsageError(f"{path} names no partition with which a topic began")
    return Division(begun_with, first_lane_seqs)
