"""
The logs of an archive that went on with another topic (--next-topic): each is audited by itself.

    log_epoch 0, 1, ...    rows of one log, whose offsets and lane_seq begin anew

A row counts for the log that it names, so a row that names another one is missing there, and is told of here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.checks import FOREIGN, IN_EARLIER_LOG, OTHER_LOG
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.scope import Scope
from pipeline.audit.verdict import AffectedRecord, Finding
from pipeline.errors import UsageError
from pipeline.schema import LOG_EPOCH
from pipeline.sources.records import LakeSource, log_epoch_of, read_lake
from pipeline.transforms.clean_topic import BASE_HEADER_BYTES

_EVENT_KEY = (3, 16)
"""The place of the event key in `gw`, from 1 on, and its bytes."""


@dataclass(frozen=True)
class ArchiveLogs:
    """The log that an audit reads, and what it leaves out."""

    source: LakeSource
    """With the number of the log."""
    scope: Scope | None
    """Of its ledger, if that is known."""
    others: dict[str, Finding] = field(default_factory=dict)
    """The rows of other logs."""

    @property
    def log_epoch(self) -> int:
        return self.source.log_epoch or 0

    def repeats(self, spark: SparkSession, records: DataFrame, bounds: DedupeBounds) -> DataFrame | None:
        """
        Return the records whose event is in an earlier log, too; None if there is no earlier log.

        Args:
            spark: the session.
            records: schema.RECORD, of this log.
            bounds: events further apart than its window are none; without one all are.
        """
        if not self.log_epoch:
            return None
        place = ("partition", "offset")
        key = F.when(F.length("gw") >= BASE_HEADER_BYTES, F.substring("gw", *_EVENT_KEY)).alias("event_key")
        rows = read_lake(spark, LakeSource(self.source.format, self.source.path))
        first = F.struct(log_epoch_of(rows), *place).alias("first")
        earlier = rows.where(log_epoch_of(rows) < self.log_epoch)
        earlier = earlier.select(key, F.col("timestamp").alias("earlier_time"), first)
        both = records.select(*place, "timestamp", "key", "source", key).join(earlier, "event_key")
        if bounds.window is not None:
            apart = F.col("timestamp") - F.col("earlier_time")
            both = both.where((apart < F.lit(bounds.window)) & (-apart < F.lit(bounds.window)))
        found = both.groupBy(*place).agg(*(F.min(name).alias(name) for name in ("key", "source", "first")))
        text = ("log_epoch ", "first.log_epoch", " has it in partition ", "first.partition", " at offset ")
        told = [F.lit(part) if " " in part else F.col(part) for part in text]
        return found.select(
            F.lit(IN_EARLIER_LOG).alias("kind"),
            *place,
            F.make_valid_utf8(F.col("key").cast("string")).alias("message_id"),
            F.make_valid_utf8("source").alias("source"),
            F.concat(*told, "first.offset").alias("detail"),
        )


def find_logs(
    spark: SparkSession, source: LakeSource, scopes: Sequence[Scope], wanted: int | None
) -> ArchiveLogs:
    """
    Return the log of an archive to audit, and what is left out.

    Args:
        spark: the session.
        source: the archive.
        scopes: of its ledger, one for each log; empty if it has none.
        wanted: the number of the log; None for the newest.

    Raises:
        UsageError: the archive has no such log.
    """
    rows = _rows(spark, source)
    # That of a copy lists no logs, and says only which rows have which columns.
    is_listed = any(scope.listed_by is not None for scope in scopes)
    known = set(range(len(scopes))) if is_listed else {*rows, 0}
    log_epoch = max(known) if wanted is None else wanted
    if log_epoch not in known:
        raise UsageError(f"--epoch {wanted}: the archive's newest log_epoch is {max(known)}")
    others: dict[str, Finding] = {}
    for kind, is_known in ((OTHER_LOG, True), (FOREIGN, False)):
        epochs = [epoch for epoch in rows if epoch != log_epoch and (epoch in known) == is_known]
        if epochs:
            unlisted = "" if is_known else ", which its ledger does not list"
            first = [
                AffectedRecord(place[0], place[1], None, None, f"{count:,} of log_epoch {epoch}{unlisted}")
                for epoch, (count, place) in sorted(rows.items())
                if epoch in epochs
            ]
            others[kind] = Finding(sum(rows[epoch][0] for epoch in epochs), first)
    scope = scopes[log_epoch if is_listed else 0] if scopes else None
    return ArchiveLogs(LakeSource(source.format, source.path, log_epoch), scope, others)


def _rows(spark: SparkSession, source: LakeSource) -> dict[int, tuple[int, tuple[int, int]]]:
    """Return by log how many rows there are, and the place of the first; nothing without that column."""
    rows = read_lake(spark, source)
    if LOG_EPOCH not in rows.columns:
        return {}
    first = F.min(F.struct("partition", "offset")).alias("first")
    found = rows.groupBy(log_epoch_of(rows)).agg(F.count(F.lit(1)).alias("rows"), first).collect()
    return {row[LOG_EPOCH]: (row["rows"], tuple(row["first"])) for row in found}
