"""What the operator sees of lanes, as plain data. Reads only; nothing here waits or writes."""

from dataclasses import asdict
from typing import Any

from dedupe.errors import GatewayError
from dedupe.index import DedupeIndex
from dedupe.lane import Lane, LaneState
from dedupe.metrics import Tally


def totals_of(tally: Tally) -> dict[str, int]:
    """Return a tally with its sum."""
    return {"received": tally.received, **asdict(tally)}


def progress_of(lane: Lane) -> dict[str, Any]:
    """Return how far a lane is on its way to serving."""
    index = lane.open_index
    applied_offset = index.state.applied_offset if index else None
    end = lane.restore_end_offset
    restored = 1.0 if lane.state is LaneState.ACTIVE or end == 0 else min(1.0, (applied_offset or 0) / end)
    return {
        "topic": lane.topic,
        "partition": lane.partition,
        "state": lane.state.value,
        "applied_offset": applied_offset,
        "restore_end_offset": end,
        "progress": round(restored, 4) if index else 0.0,
        "last_error": lane.health.last_error,
        "failing_since_ms": lane.health.failing_since_ms,
    }


def partition_of(lane: Lane) -> dict[str, Any]:
    """Return everything about one partition; what only an open index knows is null without one."""
    tally, metrics = lane.metrics.tally, lane.metrics
    return {
        "partition": lane.partition,
        "state": lane.state.value,
        "running": lane.is_running,
        "since_offset": lane.counts.since_offset,
        "accepted": tally.accepted,
        "duplicates": tally.duplicates,
        "conflicts": tally.conflicts,
        "unknown": tally.unknown,
        "refused": tally.refused,
        **_index_fields(lane),
        **_session_fields(lane),
        "restore_end_offset": lane.restore_end_offset,
        "restore_lag": metrics.restore_lag,
        "restored_records": metrics.restored_records,
        "queue_events": lane.queue.events,
        "commits": metrics.commits,
        "commit_seconds": round(metrics.commit_seconds, 6),
        "failures": metrics.failures,
        "restarts": metrics.restarts,
        "fenced": metrics.fenced,
        "rebuilds": metrics.rebuilds,
        "sequence_gaps": metrics.sequence_gaps,
        "skipped_records": metrics.skipped_records,
        "last_error": lane.health.last_error,
        "failing_since_ms": lane.health.failing_since_ms,
    }


def bytes_of(index: DedupeIndex) -> int | None:
    """Return what an index takes on disk, if it can tell now."""
    try:
        return index.size_bytes
    except GatewayError:
        return None


def oldest_use_ms(index: DedupeIndex) -> int | None:
    """Return when the live session used longest ago was used, if there is one that can be read now."""
    try:
        oldest = index.oldest_sessions(1, evicted=False)
    except GatewayError:
        return None
    return oldest[0][1].last_used_ms if oldest else None


def _session_fields(lane: Lane) -> dict[str, Any]:
    index = lane.open_index
    counts = index.session_counts if index else None
    return {
        "sessions_live": counts and counts.live,
        "sessions_evicted": counts and counts.evicted,
        "sessions_with_gaps": counts and counts.with_gaps,
        "session_oldest_use_ms": index and oldest_use_ms(index),
        "sessions_fenced": lane.metrics.sessions_fenced,
        "sessions_expired": lane.metrics.sessions_expired,
    }


def _index_fields(lane: Lane) -> dict[str, Any]:
    index = lane.open_index
    if index is None:
        names = ("applied_offset", "next_lane_seq", "window_seconds", "window_start_offset", "keys", "bytes")
        return dict.fromkeys(names)
    state, window = index.state, lane.restorer.window
    return {
        "applied_offset": state.applied_offset,
        "next_lane_seq": state.next_lane_seq,
        "window_seconds": round(lane.restorer.window_seconds, 3),
        "window_start_offset": lane.restorer.known_from,
        "keys": window.keys,
        "bytes": bytes_of(index),
    }
