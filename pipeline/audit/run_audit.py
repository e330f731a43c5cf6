"""
Runs an audit: finds out what the source should hold, reads it, judges it, and reports each step.

Everything that needs no Spark comes first, so that wrong usage fails before a session starts; also the whole
audit of records on this machine, if they are few and have nothing to name.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.audit import evaluation, scope
from pipeline.audit.expected import Expected, expect_topic
from pipeline.audit.in_spark import SparkAudit
from pipeline.audit.logs import find_logs
from pipeline.audit.prepared import AuditedRecords, AuditRequest, Engine, PreparedAudit, check_partitions
from pipeline.audit.proof import prove_locally
from pipeline.audit.verdict import AuditResult
from pipeline.errors import PipelineError
from pipeline.runtime.progress import Progress
from pipeline.sources.local import LocalRecords, open_locally
from pipeline.sources.records import LakeSource

NO_LOCAL_PROOF = (
    "there is no proof without Spark: a record may be wrong, or this audit needs Spark (docs/pipeline.md); "
    "--engine spark finds out, and names what is wrong"
)


def run_audit(
    start: Callable[[], SparkSession], request: AuditRequest, log_progress: Progress
) -> AuditResult:
    """
    Run an audit and return its result.

    Args:
        start: creates the session; called when it is needed.
        request: what to audit.

    Raises:
        PipelineError: the audit cannot be made.
    """
    began, clock = datetime.now(UTC), time.monotonic()
    request.check()
    topic = request.against or request.source
    log_progress(f"asking {topic}")
    expected = expect_topic(topic, request.selection, may_be_empty=request.since_last is not None)
    check_partitions(request, expected)
    if (local := _local_records(request, expected)) is not None:
        what = "records" if request.is_of_archive else "offsets"
        log_progress(f"reading {local.size:,} {what} without Spark")
        scopes = request.read_local_ledger(local)
        ledger = scopes[0] if scopes else None
        prepared = PreparedAudit.of(request, expected, ledger, began, clock)
        if len(scopes) < 2 and (records := _proven(prepared, local)) is not None:
            return prepared.result(records)
        log_progress("some records need a closer look")
    if request.engine is Engine.LOCAL:
        raise PipelineError(NO_LOCAL_PROOF)
    log_progress("starting Spark")
    spark = start()
    logs = None
    if isinstance(request.source, LakeSource):
        logs = find_logs(spark, request.source, request.read_ledger(spark), request.log_epoch)
        request = replace(request, source=logs.source)
    prepared = PreparedAudit.of(request, expected, None if logs is None else logs.scope, began, clock)
    return SparkAudit(spark, prepared, log_progress, logs).run()


def _local_records(request: AuditRequest, expected: Expected) -> LocalRecords | None:
    """Return the records of an audit without Spark; None if it needs Spark."""
    if request.engine is Engine.SPARK or not request.is_provable or request.against is not None:
        return None
    if request.log_epoch:
        return None
    if request.erasures is not None and "://" in request.erasures.path:
        return None
    try:
        local = open_locally(request.source, expected.scope.ranges)
    except (OSError, pa.ArrowException):
        return None  # Spark tells what is wrong with a file
    return local if local is None or local.is_small or request.engine is Engine.LOCAL else None


def _proven(prepared: PreparedAudit, local: LocalRecords) -> AuditedRecords | None:
    """Return the records of an audit without Spark; None unless they are proven to have no fault."""
    request, expected, known = prepared.request, prepared.expected, prepared.known
    if known is None:
        return None
    batches = local.batches(expected.scope.ranges, request.selection, compares=not request.is_shallow)
    try:
        persons = request.erasures.local_persons() if request.is_of_archive and request.erasures else None
        proof = prove_locally(batches, known, secret=request.secret, persons=persons)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return None
    if proof is None:
        return None
    findings, open_ends = evaluation.count_notices(proof.summaries), list[str]()
    if request.is_of_archive and proof.summaries:
        missing, open_ends = scope.compare_with_ledger(
            expected.scope, request.selection, proof.summaries, known.preceding
        )
        findings |= missing
    return AuditedRecords(*proof, findings, undecided_reasons=open_ends)
