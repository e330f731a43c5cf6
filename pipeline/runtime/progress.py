"""
The progress of a job: lines (or a bar on a terminal) on stderr, and Prometheus metrics of a stream.

Spark commits no offsets to Kafka, so a stream's lag is computed from the progress of its batches.
"""

import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    start_http_server,
    write_to_textfile,
)
from pyspark.sql.streaming.listener import StreamingQueryProgress
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from pipeline.runtime.checkpoint import parse_offsets
from pipeline.sources.records import Offsets

_JOB = ("job",)
FIRST_WATERMARK = "1970-01-01T00:00:00.000Z"
"""Of a stream that has not read anything yet."""

Progress: TypeAlias = Callable[[str], None]
"""Reports the step that a job begins, in a few words."""


def progress_logger(job: str) -> Progress:
    """Return a function that prints each step of a job to stderr, with the time since the start."""
    began = time.monotonic()

    def log_progress(step: str) -> None:
        print(f"{job}: {time.monotonic() - began:5.1f} s  {step}", file=sys.stderr, flush=True)

    return log_progress


class StreamProgress:
    """Reports each batch of a stream once. A context manager, which ends the bar and the metrics' port."""

    def __init__(self, job: str, metrics_port: int | None, metrics_file: Path | None = None) -> None:
        """
        Serve metrics on a port, if one is given; 0 takes a free one.

        With a file they are also written there, after each batch and at the end, for the textfile collector.
        """
        self._job, self._file = job, metrics_file
        self._next_batch = 0
        self.read_to: Offsets | None = None
        """Where the last batch ended, by partition; empty if the source has no offsets, None if unknown."""
        self.rows = 0
        self.state_rows = 0
        self.watermark: datetime | None = None
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(name, meaning, _JOB, registry=registry).labels(job)

        def counter(name: str, meaning: str) -> Counter:
            return Counter(name, meaning, _JOB, registry=registry).labels(job)

        self._rows_total = counter("pipeline_rows_total", "Rows read.")
        self._batches = counter("pipeline_batches_total", "Batches with rows.")
        self._late = counter("pipeline_late_rows_total", "Rows dropped as too late.")
        self._lag = gauge("pipeline_lag_offsets", "Offsets still to read.")
        self._partition_lags = Gauge(
            "pipeline_partition_lag_offsets",
            "Offsets still to read of a partition.",
            (*_JOB, "partition"),
            registry=registry,
        )
        self._heartbeat = gauge("pipeline_heartbeat_timestamp_seconds", "When the job last was at work.")
        self._seconds = gauge("pipeline_batch_seconds", "Time of the last batch.")
        self._time = gauge("pipeline_last_batch_timestamp_seconds", "When it ended.")
        self._state = gauge("pipeline_state_rows", "Rows of state.")
        self._stalled = gauge("pipeline_stalled_partitions", "Held back by an open transaction.")
        self._server = None if metrics_port is None else start_http_server(metrics_port, registry=registry)
        self._bar: ProgressBar | None = None
        self._console = Console(stderr=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            text = TextColumn("{task.description} {task.completed:,.0f} rows")
            self._bar = ProgressBar(text, BarColumn(), TimeRemainingColumn(), console=self._console)
            self._bar.start()
            self._bar.add_task(self._job, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._write()
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()

    def report_batches(self, batches: list[StreamingQueryProgress]) -> None:
        """Report those of the batches that are new."""
        if batches:
            # Also of one without rows, which moves the watermark.
            self.state_rows = sum(state.numRowsTotal for state in batches[-1].stateOperators)
            watermark = batches[-1].eventTime.get("watermark")
            if watermark is not None and watermark != FIRST_WATERMARK:
                self.watermark = datetime.fromisoformat(watermark)
        for batch in batches:
            if batch.batchId >= self._next_batch and batch.numInputRows > 0:
                self._next_batch = batch.batchId + 1
                self._report(batch)

    def report_lag(self, lag: Offsets) -> None:
        """Report the offsets still to read of each partition; nothing of a source without offsets."""
        for partition, offsets in lag.items():
            self._partition_lags.labels(self._job, partition).set(offsets)
        if lag:
            self._lag.set(sum(lag.values()))

    def beat(self) -> None:
        """Report that the job is at work."""
        self._heartbeat.set_to_current_time()

    def report_stalls(self, sentences: list[str]) -> None:
        """Report the partitions that an open transaction holds back, one sentence each."""
        self._stalled.set(len(sentences))
        for sentence in sentences:
            self.log(sentence)

    def log(self, sentence: str) -> None:
        """Print a sentence to stderr, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(f"{self._job}: {sentence}")
        else:
            print(f"{self._job}: {sentence}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        if self._file is not None:
            write_to_textfile(str(self._file), self._registry)

    def _report(self, batch: StreamingQueryProgress) -> None:
        self.read_to, lags = position_of(batch)
        lag = sum(lags.values()) if lags else None
        late = sum(state.numRowsDroppedByWatermark for state in batch.stateOperators)
        seconds = batch.batchDuration / 1000
        self.rows += batch.numInputRows
        self._rows_total.inc(batch.numInputRows)
        self._batches.inc()
        self._late.inc(late)
        self._seconds.set(seconds)
        self._time.set_to_current_time()
        self._state.set(sum(state.numRowsTotal for state in batch.stateOperators))
        self.report_lag(lags)
        self._write()
        if late:
            self.log(f"batch {batch.batchId} dropped {late:,} rows as too late")
        if self._bar is not None:
            total = None if lag is None else self.rows + lag
            self._bar.update(self._bar.task_ids[0], completed=self.rows, total=total)
        else:
            behind = "" if lag is None else f", {lag:,} behind"
            rate = batch.numInputRows / seconds if seconds else 0.0
            self.log(f"batch {batch.batchId}: {batch.numInputRows:,} rows, {rate:,.0f} a second{behind}")


def position_of(batch: StreamingQueryProgress) -> tuple[Offsets, Offsets]:
    """Return where a batch ends and how far that is behind, by partition; empty without offsets."""
    # The fields of the progress object hold offsets as Python's text of a dict, which is no JSON.
    (source,) = json.loads(batch.json)["sources"]
    end, latest = (parse_offsets(source.get(name))[1] for name in ("endOffset", "latestOffset"))
    if not latest or not end:
        return end, {}
    return end, {partition: offset - end.get(partition, 0) for partition, offset in latest.items()}
