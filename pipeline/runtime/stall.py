"""
Stalls: an open transaction hides all records behind it from readers of committed records.

A gateway's transaction takes milliseconds. While another one stays open, a job sees "no new rows", so
jobs look for stalls and report them.
"""

import math
import queue
import threading
import time

from pipeline.errors import PipelineError
from pipeline.sources.kafka import PartitionPositions, topic_positions
from pipeline.sources.records import KafkaSource, Offsets, Source

STALL_AFTER_S = 10.0
"""A transaction that stays open for longer is a stall; a gateway's takes a hundredth of it."""

POLL_INTERVAL_S = 0.25
CHECK_INTERVAL_S = 60.0


def stalled_partitions(
    source: Source, *, timeout_s: float = STALL_AFTER_S, ends: Offsets | None = None
) -> list[str]:
    """
    Wait until all that is written now can be read; return a sentence for each partition where it cannot.

    Args:
        source: only Kafka has transactions that stay open.
        timeout_s: how long to wait.
        ends: offsets of partitions from which on nothing will be read.
    """
    if not isinstance(source, KafkaSource):
        return []
    deadline = time.monotonic() + timeout_s
    now = topic_positions(source.brokers, source.topic)
    targets = {p: min(at.high_watermark, (ends or {}).get(p, at.high_watermark)) for p, at in now.items()}
    while True:
        stalled = {p: at for p, at in now.items() if at.last_stable_offset < targets.get(p, 0)}
        if not stalled or time.monotonic() > deadline:
            return [_sentence(partition, position) for partition, position in sorted(stalled.items())]
        time.sleep(POLL_INTERVAL_S)
        now = topic_positions(source.brokers, source.topic)


class StallMonitor:
    """Looks for stalls in a thread beside the stream, which continues if the broker does not answer."""

    def __init__(self, source: Source, *, interval_s: float = CHECK_INTERVAL_S) -> None:
        self._source, self._interval_s = source, interval_s
        self._results: queue.SimpleQueue[list[str] | PipelineError] = queue.SimpleQueue()
        self._next_s = time.monotonic() + interval_s

    def poll(self) -> list[str] | PipelineError | None:
        """Return the sentences of a check that has ended since the last call, or its error; else None."""
        if time.monotonic() >= self._next_s:
            self._next_s = math.inf  # until this check has ended
            threading.Thread(target=self._check, daemon=True).start()
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        self._next_s = time.monotonic() + self._interval_s
        return result

    def _check(self) -> None:
        try:
            self._results.put(stalled_partitions(self._source))
        except PipelineError as err:
            self._results.put(err)


def _sentence(partition: int, position: PartitionPositions) -> str:
    held_back = position.high_watermark - position.last_stable_offset
    return (
        f"partition {partition} is stalled: an open transaction at offset {position.last_stable_offset} "
        f"holds back {held_back} offsets up to {position.high_watermark}"
    )
