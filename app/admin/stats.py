"""
Statistics of lanes and answers, as plain data.

stats.schema.json in this folder is their contract: a field may be added at any time; a removed or changed
field increments SCHEMA_VERSION.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

from app.http.refusal_counts import RefusalCounts
from dedupe.decide.sessions import LIVE
from dedupe.metrics import AnswerCounts, Tally
from dedupe.model.errors import GatewayError
from dedupe.model.inherited import offset_in_log
from dedupe.partition.lane import Lane
from dedupe.partition.metrics import LaneMetrics
from dedupe.partition.state import LaneState
from dedupe.storage.index import DedupeIndex, WalFiles

SCHEMA_VERSION = 1

SOURCES_TOLD = 50
"""The sources with the most events; all others are one sum."""


def totals_of(tally: Tally) -> dict[str, int]:
    """Return a tally with its sum."""
    return {"received": tally.received, **asdict(tally)}


def answers_of(counts: AnswerCounts) -> dict[str, Any]:
    """Return the verdicts of answers: in total, by source, and by reason."""
    top, others = counts.sources.top(SOURCES_TOLD)
    return {
        "totals": totals_of(counts.totals),
        "sources": [
            {
                "source": source,
                **totals_of(tally),
                "rejected_reasons": dict(counts.sources.reasons_of(source)),
            }
            for source, tally in top
        ],
        "other_sources": totals_of(others),
        "rejected_reasons": dict(counts.reasons),
        "refused_codes": dict(counts.refused),
        "unknown_codes": dict(counts.unknown),
    }


def refusals_of(counts: RefusalCounts) -> dict[str, Any]:
    """Return the refused requests: in total, by code, and by source (None: not known yet)."""
    sources: dict[str, dict[str, Counter[str]]] = {}
    for sender, count in counts.by_sender.items():
        own = sources.setdefault(sender.source, {"codes": Counter(), "libraries": Counter()})
        own["codes"][sender.code] += count
        own["libraries"][sender.library] += count
    ranked = sorted(sources.items(), key=lambda entry: entry[1]["codes"].total(), reverse=True)
    return {
        "requests": counts.by_code.total(),
        "before_events": counts.before_events,
        "codes": dict(counts.by_code),
        "sources": [
            {"source": source or None, "requests": own["codes"].total(), **own}
            for source, own in ranked[:SOURCES_TOLD]
        ],
    }


def progress_of(lane: Lane) -> dict[str, Any]:
    """Return the progress of a lane towards serving."""
    opened, restore = lane.open_index, restore_of(lane)
    return {
        "topic": lane.topic,
        "partition": lane.partition,
        "state": lane.state.value,
        "applied_offset": offset_in_log(opened.index.state.applied_offset) if opened else None,
        "restore_end_offset": offset_in_log(lane.restore_end_offset),
        "progress": restore["progress"] if restore else float(lane.state is LaneState.ACTIVE),
        "remaining_seconds": restore and restore["remaining_seconds"],
        "opening": opening_of(lane),
        "last_error": lane.health.last_error,
        "failing_since_ms": lane.health.failing_since_ms,
    }


def restore_of(lane: Lane) -> dict[str, Any] | None:
    """Return progress and remaining time of a lane's replay; None without one."""
    restoring = lane.recovery.restoring
    if restoring is None:
        return None
    remaining_s = restoring.remaining_s
    return {
        "start_offset": offset_in_log(restoring.start),
        "end_offset": offset_in_log(restoring.end),
        "applied_offset": offset_in_log(restoring.applied),
        "progress": round(restoring.ratio, 4),
        "seconds": round(restoring.seconds, 3),
        "remaining_seconds": None if remaining_s is None else round(remaining_s, 1),
    }


def opening_of(lane: Lane) -> dict[str, Any] | None:
    """Return the progress with an index that was not closed; None without one."""
    opening = lane.recovery.opening
    return opening and {"bytes": opening.size_bytes, "progress": round(opening.ratio, 4)}


def partition_of(lane: Lane) -> dict[str, Any]:
    """Return the statistics of one partition; those of its index are None unless it is open."""
    tally, metrics = lane.metrics.tally, lane.metrics
    return {
        "partition": lane.partition,
        "state": lane.state.value,
        "running": lane.is_running,
        "since_offset": offset_in_log(lane.counts.since_offset),
        "accepted": tally.accepted,
        "duplicates": tally.duplicates,
        "conflicts": tally.conflicts,
        "unknown": tally.unknown,
        "refused": tally.refused,
        "in_doubt": lane.counts.in_doubt,
        **_index_fields(lane),
        **_session_fields(lane),
        "opening": opening_of(lane),
        "restore": restore_of(lane),
        "restore_end_offset": offset_in_log(lane.restore_end_offset),
        "restore_lag": metrics.restore_lag,
        "restored_records": metrics.restored_records,
        "queue_events": lane.queue.events,
        "queue_bytes": lane.queue.size_bytes,
        "commits": metrics.commits,
        "commit_seconds": round(metrics.commit_seconds, 6),
        "last_commit_ms": metrics.last_commit_ms,
        "failures": metrics.failures,
        "restarts": metrics.restarts,
        "fenced": metrics.fenced,
        "throttled": lane.is_throttled,
        "throttled_seconds": round(lane.throttled_s, 3),
        "rebuilds": metrics.rebuilds,
        "duplicate_proofs": asdict(metrics.proofs),
        "snapshots": _snapshots_of(metrics),
        "sequence_gaps": metrics.sequence_gaps,
        "skipped_records": metrics.skipped_records,
        "last_error": lane.health.last_error,
        "failing_since_ms": lane.health.failing_since_ms,
    }


def _snapshots_of(metrics: LaneMetrics) -> dict[str, Any]:
    newest = metrics.snapshot
    return {
        "made": metrics.snapshots_made,
        "sent_bytes": metrics.snapshot_bytes,
        "restored": metrics.restored_snapshots,
        "failed": dict(metrics.snapshots_failed),
        "newest_ms": newest and newest.made_ms,
        "newest_offset": newest and offset_in_log(newest.state.applied_offset),
    }


def files_of(index: DedupeIndex) -> int | None:
    """Return the number of an index's files, None if it cannot be read."""
    try:
        return index.files
    except GatewayError:
        return None


def bytes_of(index: DedupeIndex) -> int | None:
    """Return the size of an index, None if it cannot be read."""
    try:
        return index.size_bytes
    except GatewayError:
        return None


def wal_of(index: DedupeIndex) -> WalFiles | None:
    """Return an index's write-ahead files, None if they cannot be read."""
    try:
        return index.wal
    except GatewayError:
        return None


def oldest_use_ms(index: DedupeIndex) -> int | None:
    """Return the last use of the least recently used live session, None if none can be read."""
    try:
        oldest = index.oldest_sessions(1, LIVE)
    except GatewayError:
        return None
    return oldest[0][1].last_used_ms if oldest else None


def _session_fields(lane: Lane) -> dict[str, Any]:
    opened = lane.open_index
    counts = opened.index.session_counts if opened else None
    return {
        "sessions_live": counts and counts.live,
        "sessions_evicted": counts and counts.evicted,
        "sessions_with_gaps": counts and counts.with_gaps,
        "session_oldest_use_ms": opened and oldest_use_ms(opened.index),
        "sessions_fenced": lane.metrics.sessions_fenced,
        "sessions_expired": lane.metrics.sessions_expired,
    }


def _index_fields(lane: Lane) -> dict[str, Any]:
    opened = lane.open_index
    if opened is None:
        return dict.fromkeys(_INDEX_FIELDS)
    index = opened.index
    state = index.state
    values = (
        offset_in_log(state.applied_offset),
        state.next_lane_seq,
        round(lane.window_seconds, 3),
        offset_in_log(opened.known_from),
        opened.window.oldest_ms(log_start=opened.log_start),
        opened.window.keys,
        bytes_of(index),
        files_of(index),
    )
    return dict(zip(_INDEX_FIELDS, values, strict=True))


_INDEX_FIELDS = (
    "applied_offset",
    "next_lane_seq",
    "window_seconds",
    "window_start_offset",
    "oldest_ms",
    "keys",
    "bytes",
    "files",
)
