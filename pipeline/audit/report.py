"""Renders an audit as text, as audit.json, and as audit.html (pipeline/audit/report_page.py)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pipeline.audit import checks, verdict
from pipeline.audit.reconciliation import AGREES, DIFFERS, NOT_RECONCILED
from pipeline.audit.report_metrics import write_metrics
from pipeline.audit.report_page import page
from pipeline.audit.verdict import AffectedRecord, AuditResult, Finding
from pipeline.errors import UsageError

PRINTED_MAX = 10  # the rest is in the report
PASSED, FAILED, OPEN, NOT_MADE = "passed", "failed", "open", "not made"

CHECKED = {
    "records": (checks.FOREIGN, checks.VERSION),
    "values": (checks.VALUE, checks.ALTERED),
    "partitions": (checks.WRONG_PARTITION,),
    "sequence": (checks.GAP, checks.ORDER, checks.TIME_ORDER),
    "duplicates": (checks.DUPLICATE, checks.CONFLICT, checks.REPEATED),
    "completeness": (checks.MISSING, checks.LOST, checks.LOST_OR_EXPIRED),
    "identity": (checks.WRONG_KEY,),
}
"""The checks, and the kinds of their findings."""


_PARTITION_FIELDS = {
    **{name: name for name in ("partition", "records", "first_offset", "last_offset")},
    **{"first_lane_seq": "first_seq", "last_lane_seq": "last_seq", "session_records": "session_records"},
}


def headline(audit: AuditResult) -> str:
    """Return the verdict in one sentence."""
    match audit.verdict:
        case verdict.CLEAN:
            return f"CLEAN: each event once, in order, without gaps, in {audit.scope}"
        case verdict.VIOLATED:
            return f"VIOLATED: the promise does not hold in {audit.scope}"
        case _:
            return f"UNDECIDED: no violation was found, but not everything could be checked, in {audit.scope}"


def print_text(audit: AuditResult) -> None:
    """Print the result to stdout."""
    print(f"Audit of {audit.source}")
    rate = audit.records / audit.seconds
    print(f"{audit.records:,} records in {len(audit.partitions)} partitions")
    print(f"{audit.seconds:.1f} s, {rate:,.0f} records a second\n")
    print("  partition     records     first offset      last offset   first lane_seq    last lane_seq")
    for p in audit.partitions:
        print(
            f"  {p.partition:9} {p.records:11,} {p.first_offset:16} {p.last_offset:16}"
            f" {_or_dash(p.first_seq):>16} {_or_dash(p.last_seq):>16}"
        )
    print()
    _print_findings("violations", audit.violations, checks.VIOLATIONS)
    _print_findings("open questions", audit.open_questions, checks.OPEN_QUESTIONS)
    _print_findings("notices", audit.notices, checks.NOTICES)
    _print_client_sessions(audit)
    _print_reconciliation(audit)
    for reason in audit.undecided_reasons:
        print(f"no verdict: {reason}")
    print(headline(audit))


def checks_of(audit: AuditResult) -> dict[str, str]:
    """Return the state of each check: passed, failed, open, or not made."""
    results = {name: _result(audit, kinds) for name, kinds in CHECKED.items()}
    if not audit.is_deep:
        results["identity"] = NOT_MADE
    if audit.partition_count is None and results["partitions"] == PASSED:
        results["partitions"] = NOT_MADE
    if not audit.is_scope_known and results["completeness"] == PASSED:
        results["completeness"] = NOT_MADE
    states = {AGREES: PASSED, DIFFERS: FAILED, NOT_RECONCILED: NOT_MADE}
    return results | {"counters": states[audit.reconciliation.state]}


def _result(audit: AuditResult, kinds: Sequence[str]) -> str:
    if any(kind in audit.violations for kind in kinds):
        return FAILED
    return OPEN if any(kind in audit.open_questions for kind in kinds) else PASSED


def check_folder(folder: Path) -> None:
    """Refuse a folder in which no report can be written. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as err:
        raise UsageError(f"--report {folder} cannot be written: {err.strerror}") from err


def write_report(audit: AuditResult, folder: Path) -> None:
    """Write audit.json, audit.html and audit.prom."""
    document = as_document(audit)
    (folder / "audit.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "audit.html").write_text(page(document))
    write_metrics(audit, folder / "audit.prom")


def as_document(audit: AuditResult) -> dict[str, Any]:
    """Return the content of audit.json; docs/pipeline.md lists its fields."""
    return {
        "verdict": audit.verdict,
        "headline": headline(audit),
        "source": audit.source,
        "scope": audit.scope,
        "span": {name: _written(value) for name, value in asdict(audit.selection).items()},
        "began": _utc(audit.began),
        "seconds": round(audit.seconds, 3),
        "version": version("idempotent-ingestion-gateway"),
        "window_seconds": audit.dedupe_bounds.window and audit.dedupe_bounds.window.total_seconds(),
        "index_keys_max_of_partition": audit.dedupe_bounds.keys_max_of_partition,
        "partition_count": audit.partition_count,
        "records": audit.records,
        "deep": audit.is_deep,
        "checks": checks_of(audit),
        "violations": _findings(audit.violations, checks.VIOLATIONS),
        "open_questions": _findings(audit.open_questions, checks.OPEN_QUESTIONS),
        "notices": _findings(audit.notices, checks.NOTICES),
        "client_sessions": asdict(audit.client_sessions)
        | {"worst": [gaps._asdict() for gaps in audit.client_sessions.worst]},
        "reconciliation": asdict(audit.reconciliation),
        "no_verdict_because": audit.undecided_reasons,
        "partitions": [
            {name: getattr(summary, attribute) for name, attribute in _PARTITION_FIELDS.items()}
            for summary in audit.partitions
        ],
        "timeline": {
            "step_seconds": audit.timeline.step_s,
            "steps": [{"begins": _utc(begins), "records": n} for begins, n in audit.timeline.records.items()],
        },
    }


def _written(value: object) -> str | None:
    if isinstance(value, datetime):
        return _utc(value)
    return None if value is None else str(value)


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _findings(findings: Mapping[str, Finding], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {
        kind: {
            "count": finding.count,
            "meaning": meanings[kind],
            "first": [record._asdict() for record in finding.first],
        }
        for kind, finding in findings.items()
    }


def finding_lines(title: str, finding: Finding) -> list[str]:
    """Return the count of a finding and its first records, a line each."""
    records = [f"  {_line(record)}" for record in finding.first[:PRINTED_MAX]]
    more = finding.count - len(records)
    return [f"{finding.count:,} x {title}", *records, *([f"  ... and {more:,} more"] if more else [])]


def _print_findings(title: str, findings: Mapping[str, Finding], meanings: Mapping[str, str]) -> None:
    if not findings:
        print(f"no {title}")
    for kind, finding in findings.items():
        print("\n".join(finding_lines(f"{kind}: {meanings[kind]}", finding)))


def _line(record: AffectedRecord) -> str:
    place = f"partition {record.partition} offset {record.offset}"
    return f"{place} key {record.message_id!r} source {record.source!r} {record.detail or ''}".rstrip()


def _print_client_sessions(audit: AuditResult) -> None:
    totals = audit.client_sessions
    if not totals.sessions:
        return
    gaps = f"{totals.with_gaps:,} with gaps, {totals.missing:,} sequences missing"
    middle = totals.known_from_the_middle
    partly_known = f", {middle:,} known from the middle on" if middle else ""
    print(f"client sessions: {totals.sessions:,} of {totals.clients:,} clients, {gaps}{partly_known}")


def _print_reconciliation(audit: AuditResult) -> None:
    result = audit.reconciliation
    numbers = ""
    if result.accepted is not None:
        numbers = f": {result.accepted:,} accepted, {result.committed:,} committed"
    print(f"reconciliation: {result.state}{numbers}")
    for reason in result.reasons:
        print(f"  {reason}")


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
