"""An audit as text on stdout, as audit.json, and as audit.html (pipeline/audit/report_page.py)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pipeline.audit import verdict
from pipeline.audit.checks import (
    CONFLICT,
    DUPLICATE,
    FOREIGN,
    GAP,
    MISSING,
    NOTICES,
    OPEN_QUESTIONS,
    ORDER,
    REPEATED,
    TIME_ORDER,
    VALUE,
    VERSION,
    VIOLATIONS,
    WRONG_KEY,
    WRONG_PARTITION,
)
from pipeline.audit.reconciliation import AGREES, DIFFERS, NOT_RECONCILED
from pipeline.audit.report_metrics import write_metrics
from pipeline.audit.report_page import page
from pipeline.audit.verdict import Audit, Finding, Named
from pipeline.errors import UsageError

NAMED_ON_TERMINAL_MAX = 10  # the rest is in the report
PASSED, FAILED, OPEN, NOT_MADE = "passed", "failed", "open", "not made"

CHECKED = {
    "records": (FOREIGN, VERSION),
    "values": (VALUE,),
    "partitions": (WRONG_PARTITION,),
    "sequence": (GAP, ORDER, TIME_ORDER),
    "duplicates": (DUPLICATE, CONFLICT, REPEATED),
    "completeness": (MISSING,),
    "identity": (WRONG_KEY,),
}
"""What is checked, by the kinds of what it finds."""


def headline(audit: Audit) -> str:
    """Return the verdict in one sentence."""
    match audit.verdict:
        case verdict.CLEAN:
            return f"CLEAN: each event once, in order, without gaps, in {audit.scope}"
        case verdict.VIOLATED:
            return f"VIOLATED: the promise does not hold in {audit.scope}"
        case _:
            return f"UNDECIDED: nothing wrong was found, but not everything could be judged, in {audit.scope}"


def print_text(audit: Audit) -> None:
    """Print the result for people."""
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
    _print_findings("violations", audit.violations, VIOLATIONS)
    _print_findings("open questions", audit.open_questions, OPEN_QUESTIONS)
    _print_findings("notices", audit.notices, NOTICES)
    _print_client_sessions(audit)
    _print_reconciliation(audit)
    for doubt in audit.doubts:
        print(f"no verdict: {doubt}")
    print(headline(audit))


def checks_of(audit: Audit) -> dict[str, str]:
    """Return of each check whether it passed: passed, failed, open, or not made."""
    results = {name: _result(audit, kinds) for name, kinds in CHECKED.items()}
    if not audit.is_deep:
        results["identity"] = NOT_MADE
    if audit.partition_count is None and results["partitions"] == PASSED:
        results["partitions"] = NOT_MADE
    if not audit.is_scope_known and results["completeness"] == PASSED:
        results["completeness"] = NOT_MADE
    states = {AGREES: PASSED, DIFFERS: FAILED, NOT_RECONCILED: NOT_MADE}
    return results | {"counters": states[audit.reconciliation.state]}


def _result(audit: Audit, kinds: Sequence[str]) -> str:
    if any(kind in audit.violations for kind in kinds):
        return FAILED
    return OPEN if any(kind in audit.open_questions for kind in kinds) else PASSED


def check_folder(folder: Path) -> None:
    """Make sure that a report can be written there, before there is anything to write. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as err:
        raise UsageError(f"--report {folder} cannot be written: {err.strerror}") from err


def write_report(audit: Audit, folder: Path) -> None:
    """Write audit.json, audit.html, which stands alone, and audit.prom."""
    document = as_document(audit)
    (folder / "audit.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "audit.html").write_text(page(document))
    write_metrics(audit, folder / "audit.prom")


def as_document(audit: Audit) -> dict[str, Any]:
    """Return the result as what audit.json holds; docs/pipeline.md lists its fields."""
    return {
        "verdict": audit.verdict,
        "headline": headline(audit),
        "source": audit.source,
        "scope": audit.scope,
        "span": {name: _written(value) for name, value in asdict(audit.span).items()},
        "began": _utc(audit.began),
        "seconds": round(audit.seconds, 3),
        "version": version("idempotent-ingestion-gateway"),
        "window_seconds": audit.promise.window and audit.promise.window.total_seconds(),
        "index_keys_max_of_partition": audit.promise.keys_max,
        "partition_count": audit.partition_count,
        "records": audit.records,
        "deep": audit.is_deep,
        "checks": checks_of(audit),
        "violations": _findings(audit.violations, VIOLATIONS),
        "open_questions": _findings(audit.open_questions, OPEN_QUESTIONS),
        "notices": _findings(audit.notices, NOTICES),
        "client_sessions": asdict(audit.client_sessions)
        | {"worst": [gaps._asdict() for gaps in audit.client_sessions.worst]},
        "reconciliation": asdict(audit.reconciliation),
        "no_verdict_because": audit.doubts,
        "partitions": [
            {
                "partition": p.partition,
                "records": p.records,
                "first_offset": p.first_offset,
                "last_offset": p.last_offset,
                "first_lane_seq": p.first_seq,
                "last_lane_seq": p.last_seq,
                "session_records": p.session_records,
            }
            for p in audit.partitions
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


def _findings(found: Mapping[str, Finding], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {
        kind: {
            "count": finding.count,
            "meaning": meanings[kind],
            "first": [named._asdict() for named in finding.first],
        }
        for kind, finding in found.items()
    }


def finding_lines(title: str, finding: Finding) -> list[str]:
    """Return how many there are, and the first of them by name."""
    named = [f"  {_line(named)}" for named in finding.first[:NAMED_ON_TERMINAL_MAX]]
    more = finding.count - len(named)
    return [f"{finding.count:,} x {title}", *named, *([f"  ... and {more:,} more"] if more else [])]


def _print_findings(title: str, found: Mapping[str, Finding], meanings: Mapping[str, str]) -> None:
    if not found:
        print(f"no {title}")
    for kind, finding in found.items():
        print("\n".join(finding_lines(f"{kind}: {meanings[kind]}", finding)))


def _line(named: Named) -> str:
    place = f"partition {named.partition} offset {named.offset}"
    return f"{place} key {named.message_id!r} source {named.source!r} {named.detail or ''}".rstrip()


def _print_client_sessions(audit: Audit) -> None:
    found = audit.client_sessions
    if not found.sessions:
        return
    gaps = f"{found.with_gaps:,} with gaps, {found.missing:,} sequences missing"
    middle = found.known_from_the_middle
    known = f", {middle:,} known from the middle on" if middle else ""
    print(f"client sessions: {found.sessions:,} of {found.clients:,} clients, {gaps}{known}")


def _print_reconciliation(audit: Audit) -> None:
    found = audit.reconciliation
    numbers = (
        "" if found.accepted is None else f": {found.accepted:,} accepted, {found.committed:,} committed"
    )
    print(f"reconciliation: {found.state}{numbers}")
    for reason in found.reasons:
        print(f"  {reason}")


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
