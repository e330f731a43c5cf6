"""audit.prom: metrics of an audit, for the textfile collector of Prometheus' node exporter."""

from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile

from pipeline.audit.checks import VIOLATIONS
from pipeline.audit.verdict import CLEAN, UNDECIDED, VIOLATED, AuditResult


def write_metrics(audit: AuditResult, path: Path) -> None:
    """Write the file atomically."""
    registry = CollectorRegistry()
    verdict = Gauge(
        "pipeline_audit_verdict", "Of the last audit: 1 for the one it is.", ["verdict"], registry=registry
    )
    for name in (CLEAN, VIOLATED, UNDECIDED):
        verdict.labels(name).set(audit.verdict == name)
    violations = Counter(
        "pipeline_audit_violations",
        "By kind: of all audits with the same --since-last, else of this one.",
        ["kind"],
        registry=registry,
    )
    for kind in VIOLATIONS:
        violations.labels(kind).inc(audit.violations_ever.get(kind, 0))
    numbers = {
        "pipeline_audit_timestamp_seconds": ("When the last audit began.", audit.began.timestamp()),
        "pipeline_audit_seconds": ("How long it took.", audit.seconds),
        "pipeline_audit_records": ("How many records it read.", audit.records),
        "pipeline_audit_client_sessions": ("Client sessions of its records.", audit.client_sessions.sessions),
        "pipeline_audit_client_sessions_with_gaps": (
            "Those that lack sequences below their highest.",
            audit.client_sessions.with_gaps,
        ),
        "pipeline_audit_client_sequences_missing": (
            "How many sequences they lack.",
            audit.client_sessions.missing,
        ),
    }
    for name, (meaning, number) in numbers.items():
        Gauge(name, meaning, registry=registry).set(number)
    write_to_textfile(str(path), registry)
