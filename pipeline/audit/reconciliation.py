"""
Compares the log with the counters of its gateway, /admin/v1/stats.

`accepted` of a partition counts exactly the records from `since_offset` up to `applied_offset`, so the
comparison works while the gateway serves.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.audit.forgotten import DedupeBounds
from pipeline.errors import PipelineError

STATS_PATH = "/admin/v1/stats"
STATS_TIMEOUT_S = 10.0
PARTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")

AGREES, DIFFERS, NOT_RECONCILED = "agrees", "differs", "not reconciled"


@dataclass(frozen=True)
class Reconciliation:
    """The result of the comparison."""

    state: str = NOT_RECONCILED
    reasons: list[str] = field(default_factory=list)
    accepted: int | None = None
    committed: int | None = None
    totals: dict[str, int] | None = None


@dataclass(frozen=True)
class Stats:
    """The statistics of a gateway, and which of its two topics they are used for."""

    document: dict[str, Any]
    is_of_quarantine: bool = False

    def about(self, topic: str | None, log_id: str | None) -> "Stats":
        """
        Return the statistics for a topic; for the clean one if the topic is unknown.

        Raises:
            PipelineError: the gateway serves another topic, or another log.
        """
        own, own_topic = self.document.get("log_id"), self.document["topic"]
        if None not in (own, log_id) and own != log_id:
            raise PipelineError(f"--stats are of a gateway of another log, {own}, and this one is {log_id}")
        if topic not in (None, own_topic, self.document.get("quarantine_topic")):
            raise PipelineError(f"--stats are of a gateway of another topic, {own_topic!r}, not of {topic!r}")
        return Stats(self.document, topic not in (None, own_topic))

    @property
    def partitions(self) -> list[dict[str, Any]]:
        return list(self.document["quarantine" if self.is_of_quarantine else "partitions"])

    @property
    def dedupe_bounds(self) -> DedupeBounds:
        """How far back the gateway remembers ids, by its current settings."""
        window_s, keys_max = self.document.get("window_seconds"), self.document.get("index_keys_max")
        return DedupeBounds(
            None if window_s is None else timedelta(seconds=window_s),
            None if keys_max is None else keys_max // len(self.document["partitions"]),
        )

    @property
    def counted_ranges(self) -> dict[int, tuple[int, int]]:
        """Offsets [start, end) that `accepted` of each serving partition covers."""
        return {
            p["partition"]: (p["since_offset"], p["applied_offset"])
            for p in self.partitions
            if p["applied_offset"] is not None and p["since_offset"] is not None
        }


def load_stats(place: str, token: str | None) -> Stats:
    """
    Return the statistics at a URL (of the admin port, or of the document itself) or in a file.

    Args:
        place: the URL or the file.
        token: of the admin port, if it needs one.

    Raises:
        PipelineError: there are no statistics.
    """
    try:
        if place.startswith(("http://", "https://")):
            url = place if place.rstrip("/").endswith(STATS_PATH) else place.rstrip("/") + STATS_PATH
            request = urllib.request.Request(url)
            if token:
                request.add_unredirected_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=STATS_TIMEOUT_S) as answer:
                document = json.load(answer)
        else:
            document = json.loads(Path(place).read_text())
        stats = Stats(document)
        _ = (stats.counted_ranges, document["totals"], document["topic"])
    except urllib.error.HTTPError as err:
        hint = ": set GATEWAY_ADMIN_TOKEN" if err.code == HTTPStatus.UNAUTHORIZED else ""
        raise PipelineError(f"the gateway at {place} answered {err.code}{hint}") from err
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as err:
        raise PipelineError(f"no statistics of a gateway at {place}: {err!r}") from err
    return stats


class Reading(NamedTuple):
    """The records read of one partition."""

    counted: int  # records in the range that the gateway counts
    start: int  # offsets [start, end) were read
    end: int | None  # None for an archive without a ledger
    last_seq: int | None  # None if there was no record


def reconcile(stats: Stats, readings: Mapping[int, Reading]) -> Reconciliation:
    """
    Compare the counters of a gateway with the records read.

    Args:
        stats: of a gateway or group that owns the whole topic.
        readings: by partition; one that is left out has no records.
    """
    excuses: list[str] = []
    differences: list[str] = []
    for partition in stats.partitions:
        reading = readings.get(partition["partition"], Reading(0, 0, None, None))
        if excuse := _excuse(partition, reading):
            excuses.append(f"partition {partition['partition']} {excuse}")
        elif difference := _difference(partition, reading):
            differences.append(f"partition {partition['partition']}: {difference}")
    totals = {name: int(stats.document["totals"][name]) for name in ("received", *PARTS)}
    if stats.document.get("log_id") is None:
        excuses.append("--stats do not name their log: they are of an older gateway")
    if totals["received"] != sum(totals[part] for part in PARTS):
        differences.append(f"the totals do not add up: {totals}")
    return Reconciliation(
        DIFFERS if differences else NOT_RECONCILED if excuses else AGREES,
        differences + excuses,
        accepted=sum(p["accepted"] for p in stats.partitions),
        committed=sum(reading.counted for reading in readings.values()),
        totals=totals,
    )


def _excuse(partition: dict[str, Any], reading: Reading) -> str | None:
    """Return why a partition cannot be compared; None if it can, or agrees anyway."""
    since, applied = partition["since_offset"], partition["applied_offset"]
    if since is None or applied is None:
        return f"is {partition['state']}"
    if reading.start > since:
        return f"was read from offset {reading.start} on, the gateway counts from {since}"
    if reading.end is not None and reading.end < applied:
        return f"was read up to offset {reading.end}, the gateway counts up to {applied}"
    is_behind = reading.last_seq is None or reading.last_seq + 1 < partition["next_lane_seq"]
    if reading.end is None and is_behind and reading.counted < partition["accepted"]:
        return "is not archived to its end yet"
    return None


def _difference(partition: dict[str, Any], reading: Reading) -> str | None:
    if reading.counted != partition["accepted"]:
        since = f"accepted since offset {partition['since_offset']}"
        return f"{partition['accepted']} {since}, {reading.counted} committed"
    if partition.get("inherits") and not partition["accepted"]:
        return None  # its number may be that of a record which it inherits
    next_seq = partition["next_lane_seq"]
    if reading.end is not None and reading.last_seq is not None and reading.last_seq + 1 < next_seq:
        return f"lane_seq {reading.last_seq} is the last, and the gateway gave up to {next_seq - 1}"
    return None
