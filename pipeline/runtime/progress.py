"""
How far a stream is: a line a batch (a bar on a terminal) on stderr, and Prometheus metrics.

Spark commits no offsets to Kafka, so lag is not to be seen there: it is what a batch's progress says.
"""

import json
import sys
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryProgress
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.runtime.checkpoint import parse_offsets

_JOB = ("job",)


class JobProgress:
    """Tells of every batch once; a context, because the terminal's bar and the metrics' port end with it."""

    def __init__(self, job: str, metrics_port: int | None) -> None:
        """Serve metrics if there is a port for them; 0 takes a free one."""
        self._job = job
        self._next_batch = 0
        self._rows = 0
        registry = CollectorRegistry()
        self._rows_total = Counter("pipeline_rows_total", "Rows read.", _JOB, registry=registry)
        self._batches = Counter("pipeline_batches_total", "Batches with rows.", _JOB, registry=registry)
        self._late = Counter("pipeline_late_rows_total", "Rows dropped as too late.", _JOB, registry=registry)
        self._lag = Gauge("pipeline_lag_offsets", "Offsets still to read.", _JOB, registry=registry)
        self._seconds = Gauge("pipeline_batch_seconds", "Time of the last batch.", _JOB, registry=registry)
        self._time = Gauge("pipeline_last_batch_timestamp_seconds", "When it ended.", _JOB, registry=registry)
        self._state = Gauge("pipeline_state_rows", "Rows of state.", _JOB, registry=registry)
        self._stalled = Gauge(
            "pipeline_stalled_partitions", "Held back by an open transaction.", _JOB, registry=registry
        )
        self._server = None if metrics_port is None else start_http_server(metrics_port, registry=registry)
        self._bar: Progress | None = None
        self._console = Console(stderr=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            words = TextColumn("{task.description} {task.completed:,.0f} rows")
            self._bar = Progress(words, BarColumn(), TimeRemainingColumn(), console=self._console)
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

    @property
    def rows(self) -> int:
        """Rows read so far by this process."""
        return self._rows

    def show(self, batches: list[StreamingQueryProgress]) -> None:
        """Tell of those batches that are new."""
        for batch in batches:
            if batch.batchId >= self._next_batch and batch.numInputRows > 0:
                self._next_batch = batch.batchId + 1
                self._show(batch)

    def show_stalled(self, sentences: list[str]) -> None:
        """Tell of partitions that nobody can read further."""
        self._stalled.labels(self._job).set(len(sentences))
        for sentence in sentences:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """Tell something in the job's name."""
        if self._bar is not None:
            self._bar.console.print(f"{self._job}: {sentence}")
        else:
            print(f"{self._job}: {sentence}", file=sys.stderr, flush=True)

    def _show(self, batch: StreamingQueryProgress) -> None:
        lag, late = lag_of(batch), sum(state.numRowsDroppedByWatermark for state in batch.stateOperators)
        seconds = batch.batchDuration / 1000
        self._rows += batch.numInputRows
        self._rows_total.labels(self._job).inc(batch.numInputRows)
        self._batches.labels(self._job).inc()
        self._late.labels(self._job).inc(late)
        self._seconds.labels(self._job).set(seconds)
        self._time.labels(self._job).set_to_current_time()
        self._state.labels(self._job).set(sum(state.numRowsTotal for state in batch.stateOperators))
        if lag is not None:
            self._lag.labels(self._job).set(lag)
        if late:
            self.say(f"batch {batch.batchId} dropped {late:,} rows as too late")
        if self._bar is not None:
            total = None if lag is None else self._rows + lag
            self._bar.update(self._bar.task_ids[0], completed=self._rows, total=total)
        else:
            behind = "" if lag is None else f", {lag:,} behind"
            rate = batch.numInputRows / seconds if seconds else 0.0
            counted = f"{batch.numInputRows:,} rows, {rate:,.0f} a second{behind}"
            self.say(f"batch {batch.batchId}: {counted}")


def lag_of(batch: StreamingQueryProgress) -> int | None:
    """Return how many offsets the sources had beyond this batch; None if they do not say."""
    lag = 0
    # The progress object's own fields hold offsets as Python's text of them, which is no JSON.
    for source in json.loads(batch.json)["sources"]:
        end, latest = (parse_offsets(source.get(name))[1] for name in ("endOffset", "latestOffset"))
        if not latest or not end:
            return None
        lag += sum(latest.values()) - sum(end.get(partition, 0) for partition in latest)
    return lag
