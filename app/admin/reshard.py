"""How the topic is divided, in statistics and metrics."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from app.admin.scraped import ScrapedCollector
from app.process.plan_progress import PlanProgress
from dedupe.decide.layout import Layout
from dedupe.decide.lineage import distance
from dedupe.partition.lane import Lane
from dedupe.partition.state import LaneState


def reshard_document(progress: PlanProgress, layout: Layout) -> dict[str, Any]:
    """
    Return the plan that a worker follows, how far it has prepared the next one, and for how long its requests
    have waited for that.
    """
    waiting_s = progress.waiting_s
    return {
        "plan": progress.number,
        "partitions_begun": layout.base,
        "slots": layout.slots,
        "preparing": [
            {"partition": partition, "lag": lag} for partition, lag in sorted(progress.preparing.items())
        ],
        "waiting_seconds": None if waiting_s is None else round(waiting_s, 3),
    }


def inheritance_of(lane: Lane, layout: Layout | None) -> dict[str, Any]:
    """
    Return how many slots a partition has, and the pieces of logs behind which its own one stands.

    Quarantine has no layout, and is not divided.
    """
    levels = () if lane.lineage is None else lane.lineage.levels
    return {
        "slots": layout and layout.slots_of(lane.partition),
        "inherits": [
            {"partition": each.partition, "start_offset": each.start, "end_offset": each.end}
            for each in levels
        ],
        "inherited_lag": inherited_lag(lane),
    }


def inherited_lag(lane: Lane) -> int | None:
    """Return the inherited offsets that a lane has yet to read; None if there are none, or not known."""
    if lane.lineage is None:
        return None
    if lane.state is LaneState.ACTIVE:
        return 0
    opened = lane.open_index
    if opened is None:
        return None
    return distance(lane.lineage, opened.index.state.applied_offset, lane.lineage.own_start)


class ReshardCollector(ScrapedCollector):
    """The plan that a gateway follows, and how long it waits for the next one."""

    def __init__(self, progress: PlanProgress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_reshard_plan",
            "Number of the plan by which the gateway spreads events; 0 if the topic was never divided",
            self._progress.number,
        )
        lags = GaugeMetricFamily(
            "gateway_prepared_lag_records",
            "Offsets that a new partition of an open plan has yet to read, where it is prepared",
            labels=["partition"],
        )
        for partition, lag in self._progress.preparing.items():
            if lag is not None:
                lags.add_metric([str(partition)], lag)
        yield lags
        yield GaugeMetricFamily(
            "gateway_reshard_waiting_seconds",
            "How long requests have waited for the topic to be divided; 0 while the gateway serves",
            self._progress.waiting_s or 0.0,
        )
