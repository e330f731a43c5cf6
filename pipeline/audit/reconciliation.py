"""
Whether the log holds what the gateways say they accepted: their /admin/v1/stats against a survey.

A gateway counts `accepted` from `since_offset`, and has counted exactly the records below
`applied_offset`. So the two may be compared while it goes on serving.
"""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

STATS_PATH = "/admin/v1/stats"
STATS_TIMEOUT_S = 10.0
PARTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")

AGREES, DIFFERS, NOT_RECONCILED = "agrees", "differs", "not reconciled"


@dataclass(frozen=True)
class Reconciliation:
    """What the comparison says."""

    state: str = NOT_RECONCILED
    reasons: list[str] = field(default_factory=list)
    accepted: int | None = None
    committed: int | None = None
    totals: dict[str, int] | None = None


@dataclass(frozen=True)
class Stats:
    """What a gateway says of itself."""

    document: dict[str, Any]

    @property
    def partitions(self) -> list[dict[str, Any]]:
        return list(self.document["partitions"])

    @property
    def counted_ranges(self) -> dict[int, tuple[int, int]]:
        """Offsets [start, end) that each serving partition has counted."""
        return {
            p["partition"]: (p["since_offset"], p["applied_offset"])
            for p in self.partitions
            if p["applied_offset"] is not None
        }


def load_stats(place: str) -> Stats:
    """
    Return the statistics at a URL (of the admin port, or of the document itself) or in a file.

    Raises:
        PipelineError: there are none.
    """
    try:
        if place.startswith(("http://", "https://")):
            url = place if place.rstrip("/").endswith(STATS_PATH) else place.rstrip("/") + STATS_PATH
            with urllib.request.urlopen(url, timeout=STATS_TIMEOUT_S) as answer:
                document = json.load(answer)
        else:
            document = json.loads(Path(place).read_text())
        stats = Stats(document)
        _ = (stats.counted_ranges, document["totals"], document["topic"])
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as err:
        raise PipelineError(f"no statistics of a gateway at {place}: {err!r}") from err
    return stats


@dataclass(frozen=True)
class Reading:
    """What was read of one partition."""

    counted: int  # records in the range that the gateway counts
    first_offset: int  # where reading could begin; earlier records are not there to be counted
    last_seq: int | None  # None if there was no record


def reconcile(
    stats: Stats, readings: dict[int, Reading], *, is_archive: bool, is_partial: bool
) -> Reconciliation:
    """
    Compare.

    Args:
        stats: of one gateway that owns the whole topic.
        readings: by partition.
        is_archive: whether records may be missing at the end because they are not archived yet.
        is_partial: whether only a span was read.
    """
    excuses: list[str] = []
    differences: list[str] = []
    for partition in stats.partitions:
        reading = readings.get(partition["partition"], Reading(0, 0, None))
        if partition["applied_offset"] is None:
            excuses.append(f"partition {partition['partition']} is {partition['state']}")
        elif reading.counted != partition["accepted"]:
            excuse = _excuse(partition, reading, is_archive=is_archive, is_partial=is_partial)
            (excuses if excuse else differences).append(excuse or _difference(partition, reading))
    totals = {name: int(stats.document["totals"][name]) for name in ("received", *PARTS)}
    if totals["received"] != sum(totals[part] for part in PARTS):
        differences.append(f"the totals do not add up: {totals}")
    return Reconciliation(
        DIFFERS if differences else NOT_RECONCILED if excuses else AGREES,
        differences + excuses,
        accepted=sum(p["accepted"] for p in stats.partitions),
        committed=sum(reading.counted for reading in readings.values()),
        totals=totals,
    )


def _excuse(partition: dict[str, Any], reading: Reading, *, is_archive: bool, is_partial: bool) -> str | None:
    name = f"partition {partition['partition']}"
    if is_partial:
        return f"{name}: only a span was read"
    if reading.first_offset > partition["since_offset"]:
        counted_from = partition["since_offset"]
        return f"{name} begins at offset {reading.first_offset}, the gateway counts from {counted_from}"
    if is_archive and (reading.last_seq is None or reading.last_seq + 1 < partition["next_lane_seq"]):
        return f"{name} is not archived to its end yet"
    return None


def _difference(partition: dict[str, Any], reading: Reading) -> str:
    return (
        f"partition {partition['partition']}: {partition['accepted']} accepted since offset "
        f"{partition['since_offset']}, {reading.counted} committed"
    )
