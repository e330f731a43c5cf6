"""Metrics of lanes: rendered from their plain integers when somebody scrapes, and at no other time."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from app.admin.stats import bytes_of, oldest_use_ms
from app.config import VERSION
from app.process import lines_lost
from dedupe.lane import Lane, LaneState
from dedupe.router import Router

LANE_LABELS = ("topic", "partition")


class LaneCollector(Collector):
    """Reads router and lanes at each scrape, in their own event loop."""

    def __init__(self, router: Router) -> None:
        """Take what is read."""
        self._router = router

    def describe(self) -> Iterator[Metric]:
        """Name nothing in advance, so that registering reads nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        build = GaugeMetricFamily("gateway_build_info", "1 for the running version", labels=["version"])
        build.add_metric([VERSION], 1)
        yield build
        yield CounterMetricFamily(
            "gateway_log_lines_lost", "Lines that could not be written to stderr", lines_lost()
        )
        yield from self._events()
        lanes = self._router.all_lanes
        yield from _states(lanes)
        yield from _counters(lanes)
        yield from _indexes(lanes)
        yield from _sessions(self._router.lanes)

    def _events(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "gateway_events",
            "Events by verdict; rejected ones never reached a partition of the clean topic",
            labels=["partition", "result"],
        )
        for lane in self._router.lanes:
            tally = lane.metrics.earlier + lane.metrics.tally
            partition = str(lane.partition)
            events.add_metric([partition, "accepted"], tally.accepted)
            events.add_metric([partition, "duplicate"], tally.duplicates)
            events.add_metric([partition, "conflict"], tally.conflicts)
        totals = self._router.totals
        events.add_metric(["", "rejected"], totals.rejected)
        yield events
        yield CounterMetricFamily(
            "gateway_refused_events", "Events of requests that were refused before any effect", totals.refused
        )
        yield CounterMetricFamily(
            "gateway_unknown_events", "Events whose client was told that nobody knows", totals.unknown
        )
        yield GaugeMetricFamily("gateway_in_flight_events", "Events without verdict", self._router.in_flight)
        yield GaugeMetricFamily("gateway_ready", "Whether /readyz says 200", int(self._router.is_ready))


def _states(lanes: Sequence[Lane]) -> Iterator[Metric]:
    states = GaugeMetricFamily("lane_state", "1 for the state a lane is in", labels=[*LANE_LABELS, "state"])
    for lane in lanes:
        for state in LaneState:
            states.add_metric([lane.topic, str(lane.partition), state.value], int(lane.state is state))
    yield states
    yield _gauge(
        lanes,
        "lane_without_task",
        "1 for a lane that should run and does not: only its supervisor may see that, and not for long",
        lambda lane: int(lane.should_run and not lane.is_running),
    )
    yield _gauge(
        lanes, "gateway_queue_events", "Events waiting for their lane", lambda lane: lane.queue.events
    )
    yield _gauge(
        lanes,
        "dedupe_restore_lag_records",
        "Offsets still to replay before the lane serves",
        lambda lane: lane.metrics.restore_lag,
    )


def _counters(lanes: Sequence[Lane]) -> Iterator[Metric]:
    commits = SummaryMetricFamily("gateway_commit_seconds", "Append, commit and apply", labels=LANE_LABELS)
    for lane in lanes:
        commits.add_metric(_labels(lane), lane.metrics.commits, lane.metrics.commit_seconds)
    yield commits
    counted: list[tuple[str, str, Callable[[Lane], float]]] = [
        ("lane_failures", "Failures that sent a lane back to its log", lambda lane: lane.metrics.failures),
        ("lane_restarts", "Lanes that ended by themselves", lambda lane: lane.metrics.restarts),
        ("lane_fenced", "How often another writer took a lane over", lambda lane: lane.metrics.fenced),
        ("dedupe_index_rebuilds", "Indexes rebuilt from the log", lambda lane: lane.metrics.rebuilds),
        ("dedupe_sequence_gaps", "Gaps in lane_seq found", lambda lane: lane.metrics.sequence_gaps),
        (
            "dedupe_skipped_records",
            "Records passed over while restoring, as an operator decided",
            lambda lane: lane.metrics.skipped_records,
        ),
        ("dedupe_restored_records", "Records replayed", lambda lane: lane.metrics.restored_records),
        (
            "dedupe_session_fenced_events",
            "Events of client sessions kept apart: their client uses a newer epoch",
            lambda lane: lane.metrics.sessions_fenced,
        ),
        (
            "dedupe_session_expired_events",
            "Events of client sessions kept apart: nobody can tell whether they are stored",
            lambda lane: lane.metrics.sessions_expired,
        ),
    ]
    for name, text, value in counted:
        family = CounterMetricFamily(name, text, labels=LANE_LABELS)
        for lane in lanes:
            family.add_metric(_labels(lane), value(lane))
        yield family


def _indexes(lanes: Sequence[Lane]) -> Iterator[Metric]:
    """Yield what only open indexes know; a lane without one has no sample."""
    window = GaugeMetricFamily(
        "dedupe_index_window_seconds", "How long ids are remembered now", labels=LANE_LABELS
    )
    keys = GaugeMetricFamily("dedupe_index_keys", "Ids remembered now", labels=LANE_LABELS)
    sizes = GaugeMetricFamily("dedupe_index_size_bytes", "Disk that the entries take", labels=LANE_LABELS)
    applied = GaugeMetricFamily(
        "dedupe_applied_offset", "The index follows the log up to here", labels=LANE_LABELS
    )
    for lane in lanes:
        index = lane.open_index
        if index is None:
            continue
        labels = _labels(lane)
        window.add_metric(labels, lane.restorer.window_seconds)
        applied.add_metric(labels, index.state.applied_offset)
        keys.add_metric(labels, lane.restorer.window.keys)
        if (size_bytes := bytes_of(index)) is not None:
            sizes.add_metric(labels, size_bytes)
    yield from (window, keys, sizes, applied)


def _sessions(lanes: Sequence[Lane]) -> Iterator[Metric]:
    """Yield what open indexes know of client sessions."""
    rows = GaugeMetricFamily(
        "dedupe_sessions",
        "Client sessions remembered now, and one more for each client that uses epochs",
        labels=[*LANE_LABELS, "state"],
    )
    gaps = GaugeMetricFamily(
        "dedupe_sessions_with_gaps",
        "Live sessions that lack a sequence below their highest",
        labels=LANE_LABELS,
    )
    oldest = GaugeMetricFamily(
        "dedupe_session_oldest_use_timestamp_seconds",
        "When the live session used longest ago was used, by log time",
        labels=LANE_LABELS,
    )
    for lane in lanes:
        index = lane.open_index
        if index is None:
            continue
        labels, counts = _labels(lane), index.session_counts
        rows.add_metric([*labels, "live"], counts.live)
        rows.add_metric([*labels, "evicted"], counts.evicted)
        gaps.add_metric(labels, counts.with_gaps)
        if (used_ms := oldest_use_ms(index)) is not None:
            oldest.add_metric(labels, used_ms / 1000)
    yield from (rows, gaps, oldest)


def _gauge(lanes: Sequence[Lane], name: str, text: str, value: Callable[[Lane], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=LANE_LABELS)
    for lane in lanes:
        family.add_metric(_labels(lane), value(lane))
    return family


def _labels(lane: Lane) -> list[str]:
    return [lane.topic, str(lane.partition)]
