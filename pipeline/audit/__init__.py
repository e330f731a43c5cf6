"""Judges a range of records: checks, the reconciliation with the gateways, the verdict, its report."""

from pipeline.audit.deep import identity_secret, wrong_keys
from pipeline.audit.reconciliation import load_stats
from pipeline.audit.report import finding_lines, print_text, write_report
from pipeline.audit.verdict import Audit

__all__ = [
    "Audit",
    "finding_lines",
    "identity_secret",
    "load_stats",
    "print_text",
    "write_report",
    "wrong_keys",
]
