"""Judges a range of records: checks, the reconciliation with the gateways, the verdict, its report."""

from pipeline.audit.conduct import Order, conduct
from pipeline.audit.deep import identity_secret
from pipeline.audit.judge import collected
from pipeline.audit.reconciliation import load_stats
from pipeline.audit.report import check_folder, finding_lines, print_text, write_report
from pipeline.audit.scope import Scope

__all__ = [
    "Order",
    "Scope",
    "check_folder",
    "collected",
    "conduct",
    "finding_lines",
    "identity_secret",
    "load_stats",
    "print_text",
    "write_report",
]
