"""
An audit in Spark: of any number of records, with every fault named.

Most records are clean, so one pass proves them (pipeline/audit/proof.py). Where it does not, the checks
in SQL read all records once more and name what is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pipeline.audit import checks, evaluation, scope
from pipeline.audit.columns import differing, read_with_changes, read_with_stored, unerased
from pipeline.audit.deep import wrong_keys
from pipeline.audit.division import UNDIVIDED
from pipeline.audit.logs import ArchiveLogs
from pipeline.audit.places import places
from pipeline.audit.prepared import AuditedRecords, PreparedAudit
from pipeline.audit.proof import prove
from pipeline.audit.saved_state import AuditState, StateFolder
from pipeline.audit.verdict import UNDECIDED, AuditResult, ClientSessions, Finding, PartitionSummary, Timeline
from pipeline.runtime.erasures import apply_erasures
from pipeline.runtime.progress import Progress
from pipeline.sources.extent import selection_of
from pipeline.sources.records import LakeSource, Selection, read_records, within


class _Read(NamedTuple):
    """The records of an audit, read once."""

    all: DataFrame
    checked: DataFrame | None
    """Of checks.check_records, on disk; None if the records are proven to have no fault."""
    summaries: list[PartitionSummary]
    timeline: Timeline

    @property
    def record_count(self) -> int:
        return sum(summary.records for summary in self.summaries)

    @property
    def has_sessions(self) -> bool:
        return any(summary.session_records for summary in self.summaries)


@dataclass(frozen=True)
class SparkAudit:
    """One audit, and the session that reads its records."""

    spark: SparkSession
    prepared: PreparedAudit
    log_progress: Progress
    logs: ArchiveLogs | None
    """Of an archive."""

    def run(self) -> AuditResult:
        """Read, judge, and save the state of an audit that goes on where the last one ended."""
        place = self.prepared.request.since_last
        if place is None:
            result, read = self._judged(None)
        else:
            request, expected = self.prepared.request, self.prepared.expected
            folder = StateFolder(self.spark, place)
            past = folder.load(str(request.source) if request.is_of_archive else str(expected.scope.origin))
            later = replace(self, prepared=self.prepared.since(past))
            result, read = later._judged(folder)
            if result.verdict != UNDECIDED and read.checked is not None:
                folder.save(past, later._next_state(result), read.checked)
        if read.checked is not None:
            read.checked.unpersist()
        return result

    def _judged(self, folder: StateFolder | None) -> tuple[AuditResult, _Read]:
        request = self.prepared.request
        read = (self._prove() if request.is_provable else None) or self._read()
        findings, client_sessions = dict[str, Finding](), ClientSessions()
        if read.checked is not None:
            findings = self._faults(read, read.checked, folder)
        findings |= self.prepared.expected.unjudged | evaluation.count_notices(read.summaries)
        if request.secret is not None and self.prepared.begun_with is not None:
            self.log_progress("recomputing every key")
            wrong = wrong_keys(read.all, secret=request.secret, partitions=self.prepared.begun_with)
            findings |= evaluation.collect_findings(wrong)
        if request.is_of_archive and request.erasures is not None:
            persons = request.erasures.persons(self.spark)
            findings |= evaluation.collect_findings(unerased(read.all, persons))
        missing, open_ends = self._completeness(read.summaries)
        _add(findings, self._differing(read))
        _add(findings, self._of_other_logs(read))
        findings |= missing
        if read.checked is not None:
            if read.has_sessions:
                self.log_progress("looking for gaps of client sessions")
            client_sessions, gaps = evaluation.find_client_gaps(read.checked, read.summaries)
            findings |= gaps
        records = AuditedRecords(read.summaries, read.timeline, findings, client_sessions, open_ends)
        return self.prepared.result(records), read

    @property
    def _selection(self) -> Selection:
        selection = self.prepared.request.selection
        if not self.prepared.request.is_of_archive:
            return selection_of(self.prepared.expected.scope.ranges, selection)
        next_offsets = self.prepared.past.next_offsets
        return Selection(from_offsets=next_offsets) if next_offsets else selection

    def _prove(self) -> _Read | None:
        """Read all records once; None unless they have no fault."""
        request, known = self.prepared.request, self.prepared.known
        if known is None:
            return None
        self._log_reading()
        records = read_records(self.spark, request.source, self._selection)
        if isinstance(request.source, LakeSource) and not request.is_shallow:
            proof = prove(read_with_stored(self.spark, request.source, self._selection), known)
        else:
            proof = prove(records, known)
        if proof is None:
            self.log_progress("some records need a closer look")
            return None
        return _Read(records, None, *proof)

    def _read(self) -> _Read:
        """Read all records once; their checked columns stay on disk for the later checks."""
        request = self.prepared.request
        self._log_reading()
        if isinstance(request.source, LakeSource) and not request.is_shallow:
            later_from = self.prepared.expected.scope.later_from
            records = read_with_changes(self.spark, request.source, self._selection, later_from)
        else:
            records = read_records(self.spark, request.source, self._selection)
        checked = checks.check_records(records, self.prepared.begun_with).persist(StorageLevel.DISK_ONLY)
        counted_ranges = self.prepared.counted_ranges
        summaries, timeline = evaluation.summarize(checked, self.prepared.preceding, counted_ranges)
        return _Read(records, checked, summaries, timeline)

    def _log_reading(self) -> None:
        ranges = self.prepared.expected.scope.ranges
        offsets = f"{sum(end - start for start, end in ranges.values()):,} offsets"
        self.log_progress(f"reading {'the archive' if self.prepared.request.is_of_archive else offsets}")

    def _faults(self, read: _Read, checked: DataFrame, folder: StateFolder | None) -> dict[str, Finding]:
        """Return the findings by kind of the records themselves."""
        request, past = self.prepared.request, self.prepared.past
        self.log_progress(f"comparing the keys of {read.record_count:,} records")
        earlier = folder.matching_keys(past, checked, read.record_count) if folder else None
        division = request.division or UNDIVIDED
        findings = evaluation.find_faults(
            checked,
            read.summaries,
            self.prepared.preceding,
            division,
            outlives_retention=request.is_of_archive,
        )
        linked = None
        if read.has_sessions:
            linked = places(checked)
            earlier_links = folder.matching_links(past, linked) if folder else None
            linked = checks.with_earlier_keys(linked, earlier_links)
        own = checks.with_earlier_keys(checked, earlier)
        findings |= evaluation.find_repeats(own, linked, self.prepared.bounds, division)
        if request.retention is not None:
            findings |= evaluation.collect_findings(checks.outside_retention(checked, request.retention))
        return findings

    def _differing(self, read: _Read) -> dict[str, Finding]:
        """Compare the content of an archive with what its topic still holds."""
        request, ranges = self.prepared.request, self.prepared.expected.topic_ranges
        topic, is_held = request.against, any(start < end for start, end in ranges.values())
        if topic is None or request.is_shallow or not is_held:
            return {}
        self.log_progress(f"comparing its content with {topic}")
        held = within(read.all, selection_of(ranges))
        if read.checked is not None:
            named = read.checked.where("faults != 0").select("partition", "offset")
            held = held.join(named, ["partition", "offset"], "left_anti")
        stored = read_records(self.spark, topic, selection_of(ranges, self.prepared.request.selection))
        theirs = apply_erasures(stored)
        return evaluation.collect_findings(differing(held, theirs))

    def _of_other_logs(self, read: _Read) -> dict[str, Finding]:
        """Return what an archive has of other logs, and which events of this one they have, too."""
        if self.logs is None:
            return {}
        repeats = self.logs.repeats(self.spark, read.all, self.prepared.bounds)
        return self.logs.others | ({} if repeats is None else evaluation.collect_findings(repeats))

    def _completeness(self, summaries: Sequence[PartitionSummary]) -> tuple[dict[str, Finding], list[str]]:
        """Compare an archive with its topic if --against names it, else with its ledger."""
        if not self.prepared.request.is_of_archive or not summaries:
            return {}, []
        selection, expected = self.prepared.request.selection, self.prepared.expected
        if self.prepared.request.against is None:
            return scope.compare_with_ledger(expected.scope, selection, summaries, self.prepared.preceding)
        self.log_progress(f"comparing its ends with {self.prepared.request.against}")
        topic, now = self.prepared.request.against, expected.topic_ranges
        return scope.compare_with_topic(self.spark, expected.scope, summaries, topic, now, selection)

    def _next_state(self, result: AuditResult) -> AuditState:
        """Return the state for the next audit."""
        ends = {p: end for p, (_, end) in self.prepared.expected.scope.ranges.items()}
        if self.prepared.request.is_of_archive:
            ends = {summary.partition: summary.last_offset + 1 for summary in result.partitions}
        past, window = self.prepared.past, self.prepared.bounds.window
        return past.after(result.partitions, ends, result.violations_ever, began=result.began, window=window)


def _add(findings: dict[str, Finding], more: dict[str, Finding]) -> None:
    """Add findings of other records, some of kinds that are there."""
    for kind, finding in more.items():
        before = findings.get(kind, Finding(0, []))
        first = [*before.first, *finding.first][: evaluation.NAMED_MAX]
        findings[kind] = Finding(before.count + finding.count, first)
