"""
The progress of a job: lines (or a bar on a terminal) on stderr, and Prometheus metrics of a stream.

Spark commits no offsets to Kafka, so a stream's lag is computed from the progress of its batches.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Self, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryProgress
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from pipeline.runtime.checkpoint import parse_offsets

_JOB = ("job",)

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

    def __init__(self, job: str, metrics_port: int | None) -> None:
        """Serve metrics on a port, if one is given; 0 takes a free one."""
        self._job = job
        self._next_batch = 0
        self.rows = 0
        registry = CollectorRegistry()

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(name, meaning, _JOB, registry=registry).labels(job)

        def counter(name: str, meaning: str) -> Counter:
            return Counter(name, meaning, _JOB, registry=registry).labels(job)

        self._rows_total = counter("pipeline_rows_total", "Rows read.")
        self._batches = counter("pipeline_batches_total", "Batches with rows.")
        self._late = counter("pipeline_late_rows_total", "Rows dropped as too late.")
        self._lag = gauge("pipeline_lag_offsets", "Offsets still to read.")
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
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()

    def report_batches(self, batches: list[StreamingQueryProgress]) -> None:
        """Report those of the batches that are new."""
        for batch in batches:
            if batch.batchId >= self._next_batch and batch.numInputRows > 0:
                self._next_batch = batch.batchId + 1
                self._report(batch)

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

    def _report(self, batch: StreamingQueryProgress) -> None:
        lag, late = lag_of(batch), sum(state.numRowsDroppedByWatermark for state in batch.stateOperators)
        seconds = batch.batchDuration / 1000
        self.rows += batch.numInputRows
        self._rows_total.inc(batch.numInputRows)
        self._batches.inc()
        self._late.inc(late)
        self._seconds.set(seconds)
        self._time.set_to_current_time()
        self._state.set(sum(state.numRowsTotal for state in batch.stateOperators))
        if lag is not None:
            self._lag.set(lag)
        if late:
            self.log(f"batch {batch.batchId} dropped {late:,} rows as too late")
        if self._bar is not None:
            total = None if lag is None else self.rows + lag
            self._bar.update(self._bar.task_ids[0], completed=self.rows, total=total)
        else:
            behind = "" if lag is None else f", {lag:,} behind"
            rate = batch.numInputRows / seconds if seconds else 0.0
            self.log(f"batch {batch.batchId}: {batch.numInputRows:,} rows, {rate:,.0f} a second{behind}")


def lag_of(batch: StreamingQueryProgress) -> int | None:
    """Return how many offsets the sources hold beyond a batch; None if a source has no offsets."""
    lag = 0
    # The fields of the progress object hold offsets as Python's text of a dict, which is no JSON.
    for source in json.loads(batch.json)["sources"]:
        end, latest = (parse_offsets(source.get(name))[1] for name in ("endOffset", "latestOffset"))
        if not latest or not end:
            return None
        lag += sum(latest.values()) - sum(end.get(partition, 0) for partition in latest)
    return lag
