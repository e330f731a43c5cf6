"""
The state that an audit saves for the next one, so that each record is read once: `--since-last`.

    DIR/state-0, DIR/state-1    of the last two runs: the position of each partition, which runs' keys count
    DIR/keys/<run>              keys of a run's records, 40 to 58 bytes each, until the window has passed them

A run writes its keys first and its state last, over the older one: a killed run leaves the state of the run
before, and the next run overwrites its keys. Spark reads and writes the folder, so it may be on any storage
of the executors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import KEY_COLUMNS, PrecedingRecord
from pipeline.audit.places import places
from pipeline.audit.verdict import PartitionSummary
from pipeline.errors import PipelineError, UsageError
from pipeline.runtime.folder import read_if_there
from pipeline.sources.records import Offsets

VERSION = 1
BROADCAST_RECORDS_MAX = 5_000_000
"""Largest number of new keys to broadcast, 100 bytes each; more are joined by a shuffle."""


@dataclass(frozen=True)
class AuditState:
    """The state after a run."""

    source: str
    """The log and topic, or the archive, that the keys belong to."""
    run: int = 0
    began: str | None = None
    next_offsets: Offsets = field(default_factory=dict)
    last_records: Mapping[int, PrecedingRecord] = field(default_factory=dict)
    """The last record of each partition with records."""
    runs: Mapping[int, int] = field(default_factory=dict)
    """Runs whose keys count, with the log time of their newest record, microseconds since 1970."""
    records: int = 0
    violations: Mapping[str, int] = field(default_factory=dict)
    """Of all runs, by kind."""

    def after(
        self,
        summaries: Sequence[PartitionSummary],
        next_offsets: Offsets,
        violations_ever: Mapping[str, int],
        *,
        began: datetime,
        window: timedelta | None,
    ) -> "AuditState":
        """Return the state after the next run; without a known window it keeps every key."""
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
            last_records=dict(self.last_records)
            | {s.partition: _last_record(s) for s in summaries if s.last_seq is not None},
            runs=runs,
            records=self.records + sum(summary.records for summary in summaries),
            violations=violations_ever,
        )


class StateFolder:
    """The state folder of an audit that runs again and again."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, folder.rstrip("/")

    def load(self, source: str) -> AuditState:
        """
        Return the state of the last run; an empty one before the first run.

        Raises:
            UsageError: it is of another source.
            PipelineError: its version is newer than VERSION.
        """
        states = [state for slot in range(2) if (state := self._read(slot)) is not None]
        last = max(states, key=lambda state: state.run, default=AuditState(source))
        if last.source != source:
            raise UsageError(f"--since-last {self._folder} remembers {last.source}, and this is {source}")
        return last

    def save(self, before: AuditState, after: AuditState, checked: DataFrame) -> None:
        """Save the keys of a run, then its state; then empty the keys that the window has passed."""
        if after.run in after.runs:
            keys = checked.where(F.col("event_key").isNotNull()).select(*KEY_COLUMNS)
            keys.write.mode("overwrite").parquet(self._keys(after.run))
        state = self._spark.createDataFrame([(_encoded(after),)], "value string").coalesce(1)
        state.write.mode("overwrite").text(f"{self._folder}/state-{after.run % 2}")
        for run in before.runs.keys() - after.runs.keys():
            self._spark.createDataFrame([], checked.select(*KEY_COLUMNS).schema).write.mode(
                "overwrite"
            ).parquet(self._keys(run))

    def matching_keys(self, state: AuditState, checked: DataFrame, records: int) -> DataFrame | None:
        """Return the saved keys that these records have, too; None if no keys are saved."""
        if not state.runs or not records:
            return None
        saved = self._saved(state)
        new = checked.where(F.col("event_key").isNotNull()).select("hash")
        if records <= BROADCAST_RECORDS_MAX:
            new = F.broadcast(new)
        return saved.join(new, "hash", "left_semi")

    def matching_links(self, state: AuditState, linked: DataFrame) -> DataFrame | None:
        """Return those of the saved records that have a link of these; both as places.places returns."""
        if not state.runs:
            return None
        saved = self._saved(state)
        if "links" not in saved.columns:  # all runs are older than it
            return None
        return places(saved).join(linked.select("link"), "link", "left_semi")

    def _saved(self, state: AuditState) -> DataFrame:
        keys = [self._keys(run) for run in sorted(state.runs)]
        return self._spark.read.option("mergeSchema", "true").parquet(*keys)

    def _keys(self, run: int) -> str:
        return f"{self._folder}/keys/{run:08}"

    def _read(self, slot: int) -> AuditState | None:
        rows = read_if_there(self._spark.read.format("text"), f"{self._folder}/state-{slot}")
        return _decoded(json.loads(rows[0]["value"])) if rows else None


def _last_record(summary: PartitionSummary) -> PrecedingRecord:
    assert summary.last_seq is not None
    moment = datetime.fromtimestamp(summary.last_time_us // 1_000_000, UTC)
    moment += timedelta(microseconds=summary.last_time_us % 1_000_000)
    return PrecedingRecord(summary.last_offset, summary.last_seq, moment)


def _encoded(state: AuditState) -> str:
    document = asdict(replace(state, last_records={}))
    del document["last_records"]
    places = {
        p: [last.offset, last.lane_seq, last.timestamp and last.timestamp.isoformat()]
        for p, last in state.last_records.items()
    }
    return json.dumps({"version": VERSION} | document | {"places": places})


def _decoded(document: dict[str, Any]) -> AuditState:
    if document.pop("version") > VERSION:
        raise PipelineError("the state of --since-last has a newer version: use newer jobs")
    last_records = {
        int(p): PrecedingRecord(offset, lane_seq, moment and datetime.fromisoformat(moment))
        for p, (offset, lane_seq, moment) in document.pop("places").items()
    }
    by_number = {name: {int(n): v for n, v in document[name].items()} for name in ("next_offsets", "runs")}
    return AuditState(**document | by_number | {"last_records": last_records})
