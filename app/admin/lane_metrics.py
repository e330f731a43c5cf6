"""Metrics of lanes, collected at each scrape."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from app.admin.reshard import inherited_lag
from app.admin.scraped import ScrapedCollector
from app.admin.stats import bytes_of, files_of, oldest_use_ms, wal_of
from app.http.refusal_counts import SOURCES_MAX
from app.http.sdk_library import OTHER
from app.settings.version import VERSION
from app.telemetry.logging_setup import lines_left_out
from app.telemetry.stderr import lines_lost
from dedupe.model.inherited import offset_in_log
from dedupe.partition.lane import Lane
from dedupe.partition.metrics import Histogram, LaneMetrics
from dedupe.partition.partition_index import PartitionIndex
from dedupe.partition.state import LaneState
from dedupe.router import Router

LANE_LABELS = ("topic", "partition")

Table: TypeAlias = Sequence[tuple[str, str, Callable[[Lane], float | None]]]
"""Name, help text and value of metrics with one sample for each lane."""


class LaneCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("gateway_build_info", "1 for the running version", labels=["version"])
        build.add_metric([VERSION], 1)
        yield build
        yield CounterMetricFamily(
            "gateway_log_lines_lost", "Log lines that could not be written to stderr", lines_lost()
        )
        yield CounterMetricFamily(
            "gateway_log_lines_left_out",
            "Log lines dropped by the limit of repeated lines",
            lines_left_out(),
        )
        outage = "1 if no event can be stored: no partition serves, or their log does not answer"
        yield GaugeMetricFamily("gateway_outage", outage, self._router.outage is not None)
        yield from self._events()
        lanes = self._router.all_lanes
        yield _states(lanes)
        yield from _by_lane(GaugeMetricFamily, GAUGES, lanes)
        yield from _histograms(lanes)
        yield from _by_lane(CounterMetricFamily, COUNTERS, lanes)
        yield _proofs(lanes)
        yield from _by_lane(GaugeMetricFamily, INDEX_GAUGES, lanes)
        yield _session_states(self._router.lanes)
        yield _session_evictions(self._router.lanes)
        yield from _by_lane(GaugeMetricFamily, SESSION_GAUGES, self._router.lanes)

    def _events(self) -> Iterator[Metric]:
        answers = self._router.answers
        events = CounterMetricFamily(
            "gateway_events",
            "Events by verdict; rejected ones have no partition of the clean topic",
            labels=["partition", "result"],
        )
        for lane in self._router.lanes:
            tally = lane.metrics.earlier + lane.metrics.tally
            partition = str(lane.partition)
            events.add_metric([partition, "accepted"], tally.accepted)
            events.add_metric([partition, "duplicate"], tally.duplicates)
            events.add_metric([partition, "conflict"], tally.conflicts)
        events.add_metric(["", "rejected"], answers.totals.rejected)
        yield events
        yield _by(
            "gateway_rejected_events",
            "Rejected events by the reason of their quarantine record",
            "reason",
            answers.reasons,
        )
        yield _by(
            "gateway_refused_events",
            "Events of requests refused without any effect, by error code",
            "code",
            answers.refused,
        )
        yield _by(
            "gateway_unknown_events",
            "Events answered with an unknown outcome, by error code; a retry resolves it",
            "code",
            answers.unknown,
        )
        yield from self._sources()
        in_flight = self._router.in_flight
        yield GaugeMetricFamily("gateway_in_flight_events", "Events without a verdict yet", in_flight)
        yield GaugeMetricFamily("gateway_ready", "1 if /readyz answers 200", int(self._router.is_ready))

    def _sources(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "gateway_source_events", "Events by verdict and source", labels=["source", "result"]
        )
        reasons = CounterMetricFamily(
            "gateway_source_rejected_events",
            "Rejected and conflicting events by source and the reason of their quarantine record",
            labels=["source", "reason"],
        )
        first, others = self._router.answers.sources.first(SOURCES_MAX)
        for source, counts in [*first, (OTHER, others)] if others.tally.received else first:
            for result, count in asdict(counts.tally).items():
                events.add_metric([source, result], count)
            for reason, count in counts.reasons.items():
                reasons.add_metric([source, reason], count)
        yield from (events, reasons)


def _by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


HISTOGRAMS: Sequence[tuple[str, str, Callable[[LaneMetrics], Histogram]]] = (
    ("gateway_commit_seconds", "Append, commit and apply of one batch", lambda of: of.commit_s),
    ("gateway_batch_events", "Events of one batch", lambda of: of.batch_events),
    (
        "gateway_queue_wait_seconds",
        "Queue time of the oldest event of a batch",
        lambda of: of.queue_wait_s,
    ),
    (
        "gateway_duplicate_age_seconds",
        "Age of duplicates; exact to an hour if the original is older than an hour, or than the process",
        lambda of: of.duplicate_age_s,
    ),
)
"""Summed over the lanes of a topic: a histogram of each partition would be too many series."""


def _histograms(lanes: Sequence[Lane]) -> Iterator[Metric]:
    for name, text, of in HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=["topic"])
        for topic in dict.fromkeys(lane.topic for lane in lanes):
            histograms = [of(lane.metrics) for lane in lanes if lane.topic == topic]
            histogram = sum(histograms[1:], histograms[0])
            edges = [*map(floatToGoString, histogram.edges), "+Inf"]
            buckets = list(zip(edges, map(float, accumulate(histogram.counts)), strict=True))
            family.add_metric([topic], buckets, histogram.total)
        yield family


def _states(lanes: Sequence[Lane]) -> Metric:
    states = GaugeMetricFamily(
        "gateway_lane_state", "1 for the lane's current state", labels=[*LANE_LABELS, "state"]
    )
    for lane in lanes:
        for state in LaneState:
            states.add_metric([*_labels(lane), state.value], int(lane.state is state))
    return states


def _proofs(lanes: Sequence[Lane]) -> Metric:
    proofs = CounterMetricFamily(
        "gateway_duplicate_proofs",
        "Duplicates whose original was asked of the log, by what it said; a disproved index is rebuilt",
        labels=[*LANE_LABELS, "outcome"],
    )
    for lane in lanes:
        for outcome, count in asdict(lane.metrics.proofs).items():
            proofs.add_metric([*_labels(lane), outcome], count)
    return proofs


def _session_states(lanes: Sequence[Lane]) -> Metric:
    rows = GaugeMetricFamily(
        "gateway_sessions",
        "Remembered client sessions, and one more for each client that uses epochs",
        labels=[*LANE_LABELS, "state"],
    )
    for lane in lanes:
        if lane.open_index is not None:
            counts = lane.open_index.index.session_counts
            rows.add_metric([*_labels(lane), "live"], counts.live)
            rows.add_metric([*_labels(lane), "evicted"], counts.evicted)
    return rows


def _session_evictions(lanes: Sequence[Lane]) -> Metric:
    evictions = CounterMetricFamily(
        "gateway_session_evictions",
        "Client sessions evicted at the limit by this worker, ended by their clients or not",
        labels=[*LANE_LABELS, "reason"],
    )
    for lane in lanes:
        evictions.add_metric([*_labels(lane), "ended"], lane.metrics.ended_sessions_evicted)
        evictions.add_metric([*_labels(lane), "limit"], lane.metrics.other_sessions_evicted)
    return evictions


def _by_lane(
    kind: type[GaugeMetricFamily | CounterMetricFamily], table: Table, lanes: Sequence[Lane]
) -> Iterator[Metric]:
    """Yield a family for each row of a table; a lane whose value is None has no sample."""
    for name, text, value_of in table:
        family = kind(name, text, labels=LANE_LABELS)
        for lane in lanes:
            value = value_of(lane)
            if value is not None:
                family.add_metric(_labels(lane), value)
        yield family


def _labels(lane: Lane) -> list[str]:
    return [lane.topic, str(lane.partition)]


def _restore_ratio(lane: Lane) -> float:
    restoring = lane.recovery.restoring
    return restoring.ratio if restoring else float(lane.state is LaneState.ACTIVE)


def _of_index(value_of: Callable[[PartitionIndex], float | None]) -> Callable[[Lane], float | None]:
    """Return the value of a lane's open index, None without one."""
    return lambda lane: None if lane.open_index is None else value_of(lane.open_index)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


GAUGES: Table = (
    (
        "gateway_lane_without_task",
        "1 for a lane that should run and does not; its supervisor restarts it within a second",
        lambda lane: int(lane.should_run and not lane.is_running),
    ),
    (
        "gateway_lane_standby",
        "1 for a lane whose index is kept near the log's end here, while another worker owns it",
        lambda lane: int(lane.state is LaneState.FOLLOWING and lane.follower.is_caught_up),
    ),
    ("gateway_queue_events", "Events in the lane's queue", lambda lane: lane.queue.events),
    ("gateway_queue_bytes", "Bytes in the lane's queue", lambda lane: lane.queue.size_bytes),
    (
        "gateway_in_doubt_events",
        "Events with an unknown outcome; 0 once the lane has read its log again",
        lambda lane: lane.counts.in_doubt,
    ),
    (
        "gateway_restore_lag_records",
        "Offsets to replay before the lane serves",
        lambda lane: lane.metrics.restore_lag,
    ),
    (
        "gateway_inherited_lag_records",
        "Offsets of other logs that a partition which was given slots has yet to read",
        inherited_lag,
    ),
    (
        "gateway_restore_progress_ratio",
        "Completed part of the replay, 1 while the lane serves",
        _restore_ratio,
    ),
    (
        "gateway_restore_remaining_seconds",
        "Remaining time of the replay at its rate so far",
        lambda lane: lane.recovery.restoring and lane.recovery.restoring.remaining_s,
    ),
    (
        "gateway_last_commit_timestamp_seconds",
        "Log time of the lane's newest commit",
        lambda lane: _seconds(lane.metrics.last_commit_ms),
    ),
)

COUNTERS: Table = (
    (
        "gateway_lane_failures",
        "Failures after which the lane recovered from the log",
        lambda lane: lane.metrics.failures,
    ),
    (
        "gateway_lane_refused_batches",
        "Batches that the log refused for the size or content of their records",
        lambda lane: lane.metrics.refused_batches,
    ),
    (
        "gateway_lane_appends_failed",
        "Appends without an answer of the log, in time or before the connection broke",
        lambda lane: lane.metrics.unanswered,
    ),
    ("gateway_lane_restarts", "Restarts of the lane's task after a bug", lambda lane: lane.metrics.restarts),
    (
        "gateway_lane_fenced",
        "Fencings of the lane by another writer",
        lambda lane: lane.metrics.fenced,
    ),
    (
        "gateway_log_throttled_seconds",
        "Time for which a quota of Kafka's brokers made the lane pause",
        lambda lane: lane.throttled_s,
    ),
    ("gateway_index_rebuilds", "Indexes rebuilt from the log", lambda lane: lane.metrics.rebuilds),
    (
        "gateway_index_begun_empty",
        "Missing indexes of a log with records: lost, or of a new standby",
        lambda lane: lane.metrics.begun_empty,
    ),
    ("gateway_sequence_gaps", "Gaps in lane_seq", lambda lane: lane.metrics.sequence_gaps),
    (
        "gateway_skipped_records",
        "Records that recovery skipped, as an operator decided",
        lambda lane: lane.metrics.skipped_records,
    ),
    ("gateway_restored_records", "Records replayed", lambda lane: lane.metrics.restored_records),
    (
        "gateway_session_fenced_events",
        "Quarantined events of client sessions whose client uses a newer epoch",
        lambda lane: lane.metrics.sessions_fenced,
    ),
    (
        "gateway_session_expired_events",
        "Quarantined events of expired client sessions",
        lambda lane: lane.metrics.sessions_expired,
    ),
)

INDEX_GAUGES: Table = (
    (
        "gateway_index_window_seconds",
        "How long ids are remembered",
        lambda lane: lane.window_seconds if lane.open_index else None,
    ),
    (
        "gateway_index_keys",
        "Remembered ids",
        _of_index(lambda opened: opened.window.keys),
    ),
    (
        "gateway_index_size_bytes",
        "Size of the index's entries, on disk and in memtables",
        _of_index(lambda opened: bytes_of(opened.index)),
    ),
    (
        "gateway_index_files",
        "Files of the index's entries",
        _of_index(lambda opened: files_of(opened.index)),
    ),
    (
        "gateway_index_wal_files",
        "Write-ahead files of the index",
        _of_index(lambda opened: (wal := wal_of(opened.index)) and wal.number),
    ),
    (
        "gateway_index_wal_size_bytes",
        "Size of the index's write-ahead files, which an unclean stop leaves to be replayed",
        _of_index(lambda opened: (wal := wal_of(opened.index)) and wal.size_bytes),
    ),
    (
        "gateway_index_oldest_timestamp_seconds",
        "Arrival of the oldest remembered id, exact to a step of the window",
        _of_index(lambda opened: _seconds(opened.window.oldest_ms(log_start=opened.log_start))),
    ),
    (
        "gateway_applied_offset",
        "The index's position in the log",
        _of_index(lambda opened: offset_in_log(opened.index.state.applied_offset) or 0),
    ),
)

SESSION_GAUGES: Table = (
    (
        "gateway_sessions_with_gaps",
        "Live sessions that lack a sequence below their highest",
        _of_index(lambda opened: opened.index.session_counts.with_gaps),
    ),
    (
        "gateway_session_oldest_use_timestamp_seconds",
        "Log time of the last use of the least recently used live session",
        _of_index(lambda opened: _seconds(oldest_use_ms(opened.index))),
    ),
)
