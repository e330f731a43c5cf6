"""
Replaces days of an output by what its source has of them, in one commit a table.

A topic's output holds, of each partition, the offsets before the end in its ledger. So a day is computed of
these offsets alone, and the ledger stays as it is: the stream goes on as if nothing had been replaced. What
cannot be known to be whole is refused, since the rows of before are deleted; so are days of before an output
went on with another topic, of which no source has the rows of both.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.streams import StreamPlan
from pipeline.sinks.batch_writer import SinkPlan, run_to_sink
from pipeline.sinks.days import Days
from pipeline.sinks.lake import published_ledger
from pipeline.sinks.ledger import Ledger
from pipeline.sources.extent import CLOCK_SKEW_MAX, OffsetRanges, offsets_at, selection_of
from pipeline.sources.origin import Origin
from pipeline.sources.records import LakeSource, Selection, Source, read_records, with_log_epoch


class DaySink(Protocol):
    """An output of which days can be replaced."""

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger of the last commit; None if the output is empty."""

    def replace(self, rows: DataFrame, ledger: Ledger, days: Days) -> None:
        """Put rows in the place of those days, in one commit that repeats the ledger."""


@dataclass(frozen=True)
class Backfill:
    """A job's output, and the stream that fills it."""

    spark: SparkSession
    plan: StreamPlan
    origin: Origin
    output: SinkPlan
    sink: DaySink
    """Of the output."""
    offsets_per_batch: int
    around: timedelta = timedelta(0)
    """How far before and after a day its rows depend on records."""

    def replace(self, days: Days) -> None:
        """
        Compute days of the sink anew.

        Raises:
            PipelineError: the source does not have all that the sink holds of these days.
        """
        ledger = self.sink.ledger(self.spark)
        if ledger is None:
            raise PipelineError("the output holds nothing to replace: run the job without --since")
        if ledger.held:
            held = self._held_by_offset(ledger, days)
        else:
            held = self._held_of_archive(ledger, days)
            ledger = self.sink.ledger(self.spark) or ledger
        times = days.times_around(self.around)
        if self.around and self._is_empty_from(held, times):
            until = f"{times.until:%Y-%m-%dT%H:%MZ}"
            raise PipelineError(f"the stream may not have stored all of {days}: wait for events of {until}")
        records = read_records(self.spark, held.source, selection_of(held.ranges, times))
        keeps_state = self.output.keeps_state
        if not keeps_state:
            records = with_log_epoch(self.output.erased(records), held.log_epoch)
        rows = self.output.compute(records)
        rows = self.output.erased(rows) if keeps_state else rows
        self.sink.replace(rows.where(days.where) if self.around else rows, ledger, days)

    def _is_empty_from(self, held: "_Held", times: Selection) -> bool:
        later = selection_of(held.ranges, Selection(since=times.until))
        return read_records(self.spark, held.source, later).isEmpty()

    def _held_by_offset(self, ledger: Ledger, days: Days) -> "_Held":
        """Return what the sink holds and the source has: the sink's source, or an archive of that."""
        source, origin = self.plan.source, self.origin
        self._check_logs(ledger, days)
        if isinstance(source, LakeSource):
            archive = published_ledger(self.spark, source)
            if archive is None or archive.origin != ledger.origin:
                raise PipelineError(f"{source} is no archive of {ledger.origin}, which the output holds")
            source = replace(source, log_epoch=archive.log_epoch)
            held, lacks = ledger.held, lacking(ledger.held, archive.held)
        else:
            if origin.id != ledger.origin:
                raise PipelineError(
                    f"the output holds another source, {ledger.origin}, and this is {origin.id}"
                )
            since = days.times_around(self.around).since
            assert since is not None
            held = {p: (max(first, origin.starts.get(p, 0)), end) for p, (first, end) in ledger.held.items()}
            lacks = trimmed(ledger.held, origin.starts, offsets_at(source, since))
        if lacks:
            raise PipelineError(f"{source} does not have all of these days: {lacks}")
        return _Held(held, source, ledger.log_epoch)

    def _held_of_archive(self, ledger: Ledger, days: Days) -> "_Held":
        """
        Return what the sink holds of an archive that it follows batch by batch: all, after one more run.

        Only the archive's ledger has offsets; so it must not grow meanwhile.
        """
        source = self.plan.source
        if ledger.origin != self.origin.id or not isinstance(source, LakeSource):
            raise PipelineError(f"the output follows the archive {ledger.origin}: name that as --source")
        before = published_ledger(self.spark, source)
        if before is None or not before.held:
            raise PipelineError(f"{source} has no ledger with offsets: compute it anew into another --out")
        self._check_logs(before, days)
        plan = replace(self.plan, is_once=True)
        run_to_sink(self.spark, plan, self.origin, self.output, offsets_per_batch=self.offsets_per_batch)
        if published_ledger(self.spark, source) != before:
            raise PipelineError(f"{source} has grown meanwhile: stop its job, and try again")
        return _Held(before.held, replace(source, log_epoch=before.log_epoch), before.log_epoch)

    def _check_logs(self, ledger: Ledger, days: Days) -> None:
        if refused := of_several_logs(ledger, days.times_around(self.around)):
            raise PipelineError(f"{days} {refused}")


class _Held(NamedTuple):
    """The offsets that a sink holds of its newest log, and where they are read."""

    ranges: OffsetRanges
    source: Source
    log_epoch: int


def of_several_logs(ledger: Ledger, times: Selection) -> str | None:
    """Return why days may hold rows of a log that the output has left; None if they cannot."""
    if not ledger.earlier or times.since is None:
        return None
    closed_at = max(log.closed_at for log in ledger.earlier) + CLOCK_SKEW_MAX
    if times.since > closed_at:
        return None
    return (
        f"may hold rows of before the output went on with {ledger.origin}, which would be lost: days after "
        f"{closed_at:%Y-%m-%dT%H:%MZ} can be replaced"
    )


def lacking(held: OffsetRanges, archived: OffsetRanges) -> str | None:
    """Return what an archive lacks of what a sink holds, by offsets; None if nothing."""
    for partition, (first, end) in sorted(held.items()):
        there = archived.get(partition, (end, first))
        if first < end and (there[0] > first or there[1] < end):
            offsets = f"the offsets {first} to {end - 1} of partition {partition}"
            return f"the output holds {offsets}, run `archive` first"
    return None


def trimmed(held: OffsetRanges, starts: dict[int, int], firsts: dict[int, int]) -> str | None:
    """
    Return what retention may have deleted of days; None if nothing.

    Args:
        held: the offsets that the sink holds.
        starts: the first offset that the topic has, by partition.
        firsts: the first offset that is as new as the days; none if all are older.
    """
    for partition, (first, end) in sorted(held.items()):
        start = starts.get(partition, 0)
        if first < start and firsts.get(partition, end) <= start:
            return f"partition {partition} begins at offset {start} now, read an archive instead"
    return None
