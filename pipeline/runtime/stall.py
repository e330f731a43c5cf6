"""
Stalls: an open transaction holds back every reader of committed records, silently.

A gateway's transaction takes milliseconds. One that stays open hides all that was written behind
it, and a job would see "no new rows" for as long as it lasts; so jobs look, and say so.
"""

import math
import queue
import threading
import time

from pipeline.errors import PipelineError
from pipeline.sources.kafka import Standing, standings
from pipeline.sources.records import KafkaSource, Offsets, Source

STALL_AFTER_S = 10.0
"""How long a transaction may stay open before it is called a stall: a hundred times a gateway's."""

POLL_INTERVAL_S = 0.25
LOOK_INTERVAL_S = 60.0


def stalled_partitions(
    source: Source, *, patience_s: float = STALL_AFTER_S, ends: Offsets | None = None
) -> list[str]:
    """
    Wait until all that is written now can be read, and return a sentence a partition where it cannot.

    Only Kafka has transactions that stay open.

    Args:
        source: what is to be read.
        patience_s: how long a transaction may be at work.
        ends: offsets of partitions from which on nothing is to be read.
    """
    if not isinstance(source, KafkaSource):
        return []
    deadline = time.monotonic() + patience_s
    now = standings(source.brokers, source.topic)
    wanted = {p: min(s.high_watermark, (ends or {}).get(p, s.high_watermark)) for p, s in now.items()}
    while True:
        stalled = {p: s for p, s in now.items() if s.last_stable_offset < wanted.get(p, 0)}
        if not stalled or time.monotonic() > deadline:
            return [_sentence(partition, standing) for partition, standing in sorted(stalled.items())]
        time.sleep(POLL_INTERVAL_S)
        now = standings(source.brokers, source.topic)


class StallLooks:
    """
    Looks for stalls now and then, beside a stream that does not wait for the answer.

    A broker that does not answer is no reason to end a stream that works, so it is only told of.
    """

    def __init__(self, source: Source, *, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Look for the first time after one interval."""
        self._source, self._interval_s = source, interval_s
        self._answers: queue.SimpleQueue[list[str] | PipelineError] = queue.SimpleQueue()
        self._next_s = time.monotonic() + interval_s

    def found(self) -> list[str] | PipelineError | None:
        """Return what a look has found since the last call, or why not; None without news."""
        if time.monotonic() >= self._next_s:
            self._next_s = math.inf  # until this look is answered
            threading.Thread(target=self._look, daemon=True).start()
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        self._next_s = time.monotonic() + self._interval_s
        return answer

    def _look(self) -> None:
        try:
            self._answers.put(stalled_partitions(self._source))
        except PipelineError as err:
            self._answers.put(err)


def _sentence(partition: int, standing: Standing) -> str:
    return (
        f"partition {partition} is stalled: an open transaction at offset {standing.last_stable_offset} "
        f"holds back {standing.undecided} offsets up to {standing.high_watermark}"
    )
