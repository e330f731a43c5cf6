"""
Stalls: an open transaction holds back every reader of committed records, silently.

A gateway's transaction takes milliseconds. One that stays open hides all that was written behind
it, and a job would see "no new rows" for as long as it lasts; so jobs look, and say so.
"""

import time

from pipeline.sources import KafkaSource, Source, Standing, standings

STALL_AFTER_S = 10.0
"""How long a transaction may stay open before it is called a stall: a hundred times a gateway's."""

POLL_INTERVAL_S = 0.25


def stalled_partitions(source: Source, *, patience_s: float = STALL_AFTER_S) -> list[str]:
    """
    Wait until all that is written now can be read, and return a sentence a partition where it cannot.

    Only Kafka has transactions that stay open.
    """
    if not isinstance(source, KafkaSource):
        return []
    deadline = time.monotonic() + patience_s
    wanted = {p: s.high_watermark for p, s in standings(source.brokers, source.topic).items()}
    while True:
        now = standings(source.brokers, source.topic)
        stalled = {p: s for p, s in now.items() if s.last_stable_offset < wanted.get(p, 0)}
        if not stalled or time.monotonic() > deadline:
            return [_sentence(partition, standing) for partition, standing in sorted(stalled.items())]
        time.sleep(POLL_INTERVAL_S)


def _sentence(partition: int, standing: Standing) -> str:
    return (
        f"partition {partition} is stalled: an open transaction at offset {standing.last_stable_offset} "
        f"holds back {standing.undecided} offsets up to {standing.high_watermark}"
    )
