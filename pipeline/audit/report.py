"""An audit as text on stdout, as audit.json, and as audit.html (pipeline/audit/report_page.py)."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.audit.checks import NOTICES, VIOLATIONS
from pipeline.audit.report_page import page
from pipeline.audit.verdict import CLEAN, VIOLATED, Audit, Finding, Named

NAMED_ON_TERMINAL_MAX = 10  # the rest is in the report

HEADLINES = {
    CLEAN: "CLEAN: every event is stored once, in order, without gaps",
    VIOLATED: "VIOLATED: the promise does not hold",
}


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
    _print_findings("notices", audit.notices, NOTICES)
    _print_reconciliation(audit)
    for doubt in audit.doubts:
        print(f"no verdict: {doubt}")
    print(
        HEADLINES.get(audit.verdict, "UNDECIDED: nothing wrong was found, but not everything could be judged")
    )


def write_report(audit: Audit, folder: Path) -> None:
    """Write audit.json and audit.html, which stands alone."""
    folder.mkdir(parents=True, exist_ok=True)
    document = as_document(audit)
    (folder / "audit.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "audit.html").write_text(page(document))


def as_document(audit: Audit) -> dict[str, Any]:
    """Return the result as what audit.json holds; docs/pipeline.md lists its fields."""
    return {
        "verdict": audit.verdict,
        "source": audit.source,
        "span": {name: None if value is None else str(value) for name, value in asdict(audit.span).items()},
        "records": audit.records,
        "seconds": round(audit.seconds, 3),
        "deep": audit.is_deep,
        "violations": _findings(audit.violations, VIOLATIONS),
        "notices": _findings(audit.notices, NOTICES),
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
        "minutes": [{"minute": minute.isoformat(), "records": n} for minute, n in audit.minutes.items()],
    }


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
