"""
Runs a streaming query: once over what the source holds, or until a signal.

SIGTERM and Ctrl-C let the running batch finish; a second one ends the process at once.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline.errors import PipelineError
from pipeline.runtime.lag import LagMonitor
from pipeline.runtime.progress import StreamProgress
from pipeline.runtime.stall import StallMonitor, stalled_partitions
from pipeline.sources.records import Offsets, Source

POLL_INTERVAL_S = 0.5
FINISH_TIMEOUT_S = 600.0
"""How long a stop waits for the running batch."""


@dataclass(frozen=True)
class StreamPlan:
    """How a job's query runs."""

    job: str
    source: Source
    checkpoint: str
    is_once: bool
    interval: timedelta
    metrics_port: int | None
    metrics_file: Path | None = None


class StreamTotals(NamedTuple):
    """What a stream has read, and the state it leaves."""

    rows: int
    state_rows: int
    watermark: datetime | None
    """Of a stream with state: it expects no rows of before."""


def run_stream(writer: DataStreamWriter, plan: StreamPlan, *, read_to: Offsets | None = None) -> StreamTotals:
    """
    Run the query and return its totals.

    Args:
        writer: of the query.
        plan: how it runs.
        read_to: where it continues; None if that is unknown until its first batch.

    Raises:
        PipelineError: an open transaction held back records from a job with --once.
        StreamingQueryException: the query failed.
    """
    writer = writer.option("checkpointLocation", plan.checkpoint).queryName(f"gateway-{plan.job}")
    if plan.is_once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(plan.interval.total_seconds())} seconds")
    progress = StreamProgress(plan.job, plan.metrics_port, plan.metrics_file)
    if read_to is not None:
        progress.read_to = read_to
    with progress, _stop_signals() as stop:
        query = writer.start()
        try:
            _watch(query, plan, progress, stop)
        finally:
            query.stop()
        if plan.is_once and not stop.is_set() and (stalled := stalled_partitions(plan.source)):
            progress.report_stalls(stalled)
            raise PipelineError(f"{plan.job} read all it could, and {len(stalled)} partitions are stalled")
        return StreamTotals(progress.rows, progress.state_rows, progress.watermark)


def _watch(query: StreamingQuery, plan: StreamPlan, progress: StreamProgress, stop: threading.Event) -> None:
    monitor, lag = StallMonitor(plan.source), LagMonitor(plan.source)
    while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]  # fractions are fine
        progress.report_batches(query.recentProgress)
        progress.beat()
        if progress.read_to is not None and (behind := lag.poll(progress.read_to)) is not None:
            progress.report_lag(behind)
        if stop.is_set():
            _finish_batch(query)
            break
        match monitor.poll():
            case list() as stalled:
                progress.report_stalls(stalled)
            case PipelineError() as err:
                progress.log(f"stalls are unknown: {err}")
    progress.report_batches(query.recentProgress)


def _finish_batch(query: StreamingQuery) -> None:
    """Wait until no batch runs, or until another one follows it."""
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    before = _last_batch(query)
    while time.monotonic() < deadline and query.isActive:
        if not query.status["isTriggerActive"] or _last_batch(query) != before:
            return
        time.sleep(POLL_INTERVAL_S / 10)


def _last_batch(query: StreamingQuery) -> tuple[int, str] | None:
    # Spark keeps only the last hundred reports, so their number is no measure.
    last = query.lastProgress
    return None if last is None else (last.batchId, last.timestamp)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or Ctrl-C sets; the second one has its usual effect."""
    stop = threading.Event()
    previous = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for signum, handler in previous.items():
            signal.signal(signum, handler)

    def handle(_signum: int, _frame: FrameType | None) -> None:
        stop.set()
        restore()

    for signum in previous:
        signal.signal(signum, handle)
    try:
        yield stop
    finally:
        restore()
