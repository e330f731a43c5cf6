"""
What an audit remembers for the next one, so that each record is read and judged once: `--since-last`.

    DIR/state-0, DIR/state-1    of the last two runs: where each partition stands, and which keys count
    DIR/keys/<run>              keys that a run judged, 40 bytes a record, until the window has passed them

A run writes its keys first and its state last, over the older of the two: one that is killed leaves the
state of the one before, and the next one overwrites what it left. Everything goes through Spark, so that the
folder may be wherever its executors reach.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import KEY_COLUMNS, Place
from pipeline.audit.verdict import PartitionSummary
from pipeline.errors import PipelineError, UsageError
from pipeline.sources.records import Offsets

VERSION = 1
BROADCAST_RECORDS_MAX = 5_000_000
"""Of new records whose keys go to every executor, 100 bytes each there; more are joined by shuffling."""


@dataclass(frozen=True)
class Remembered:
    """What is known after a run."""

    source: str
    """Which log and topic, or which archive: its keys mean nothing elsewhere."""
    run: int = 0
    began: str | None = None
    next_offsets: Offsets = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)
    """The last record of each partition that has had one."""
    runs: Mapping[int, int] = field(default_factory=dict)
    """Runs whose keys count, with the log time of each one's newest record, microseconds since 1970."""
    records: int = 0
    violations: Mapping[str, int] = field(default_factory=dict)
    """Found by all runs together, by kind."""

    @property
    def is_first(self) -> bool:
        return self.run == 0

    def after(
        self,
        summaries: Sequence[PartitionSummary],
        next_offsets: Offsets,
        violations_ever: Mapping[str, int],
        *,
        began: datetime,
        window: timedelta | None,
    ) -> "Remembered":
        """Return what is known after one run more; without a known window no key is ever forgotten."""
        run = self.run + 1
        runs = dict(self.runs)
        if summaries:
            runs[run] = newest_us = max(summary.last_time_us for summary in summaries)
            if window is not None:
                kept_us = newest_us - int(window.total_seconds() * 1_000_000)
                runs = {number: time_us for number, time_us in runs.items() if time_us >= kept_us}
        return replace(
            self,
            run=run,
            began=began.isoformat(timespec="seconds"),
            next_offsets=self.next_offsets | next_offsets,
            places=dict(self.places) | {s.partition: _place(s) for s in summaries if s.last_seq is not None},
            runs=runs,
            records=self.records + sum(summary.records for summary in summaries),
            violations=violations_ever,
        )


class Memory:
    """The folder of one audit that is run again and again."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, folder.rstrip("/")

    def load(self, source: str) -> Remembered:
        """
        Return what the last run left; what nobody has run yet is empty.

        Raises:
            UsageError: it is the memory of another source.
            PipelineError: it is of a newer version.
        """
        found = [state for slot in range(2) if (state := self._read(slot)) is not None]
        last = max(found, key=lambda state: state.run, default=Remembered(source))
        if last.source != source:
            raise UsageError(f"--since-last {self._folder} remembers {last.source}, and this is {source}")
        return last

    def save(self, before: Remembered, after: Remembered, examined: DataFrame) -> None:
        """Keep the keys of a run, then its state; then forget what the window has passed."""
        if after.run in after.runs:
            keys = examined.where(F.col("event_key").isNotNull()).select(*KEY_COLUMNS)
            keys.write.mode("overwrite").parquet(self._keys(after.run))
        state = self._spark.createDataFrame([(_encoded(after),)], "value string").coalesce(1)
        state.write.mode("overwrite").text(f"{self._folder}/state-{after.run % 2}")
        for run in before.runs.keys() - after.runs.keys():
            self._spark.createDataFrame([], examined.select(*KEY_COLUMNS).schema).write.mode(
                "overwrite"
            ).parquet(self._keys(run))

    def keys_like(self, remembered: Remembered, examined: DataFrame, records: int) -> DataFrame | None:
        """Return the remembered keys that stand in these records, too; None where none are remembered."""
        if not remembered.runs or not records:
            return None
        known = self._spark.read.parquet(*(self._keys(run) for run in sorted(remembered.runs)))
        new = examined.where(F.col("event_key").isNotNull()).select("hash")
        if records <= BROADCAST_RECORDS_MAX:
            new = F.broadcast(new)
        return known.join(new, "hash", "left_semi")

    def _keys(self, run: int) -> str:
        return f"{self._folder}/keys/{run:08}"

    def _read(self, slot: int) -> Remembered | None:
        try:
            row = self._spark.read.text(f"{self._folder}/state-{slot}").first()
        except AnalysisException as err:
            if err.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        return None if row is None else _decoded(json.loads(row["value"]))


def _place(summary: PartitionSummary) -> Place:
    assert summary.last_seq is not None
    moment = datetime.fromtimestamp(summary.last_time_us // 1_000_000, UTC)
    moment += timedelta(microseconds=summary.last_time_us % 1_000_000)
    return Place(summary.last_offset, summary.last_seq, moment)


def _encoded(state: Remembered) -> str:
    places = {p: [place.offset, place.lane_seq, _text(place)] for p, place in state.places.items()}
    return json.dumps({"version": VERSION} | asdict(replace(state, places={})) | {"places": places})


def _text(place: Place) -> str | None:
    return None if place.timestamp is None else place.timestamp.isoformat()


def _decoded(document: dict[str, Any]) -> Remembered:
    if document.pop("version") > VERSION:
        raise PipelineError("the memory of --since-last is of a newer version: use newer jobs")
    places = {
        int(p): Place(offset, lane_seq, moment and datetime.fromisoformat(moment))
        for p, (offset, lane_seq, moment) in document["places"].items()
    }
    by_number = {name: {int(n): v for n, v in document[name].items()} for name in ("next_offsets", "runs")}
    return Remembered(**document | by_number | {"places": places})
