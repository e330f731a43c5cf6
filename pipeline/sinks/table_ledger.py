"""
The ledgers of many tables that one job writes: each table's own, and the one that all of them have reached.

A batch is stored table by table, each in one commit with the table's ledger, and last in the table `loads`,
whose ledger is the job's. A job that is killed in between finds some tables ahead of it, each by its ledger,
and gives to each what it lacks. A table without events of a batch has no commit of it. Uses no Spark.
"""

from dataclasses import replace

from pipeline.errors import PipelineError
from pipeline.sinks.ledger import Ledger
from pipeline.sources.records import Offsets


def table_ledger(before: Ledger | None, batch: Ledger, *, table: str) -> Ledger | None:
    """
    Return the ledger of a table that includes a batch; None if the table holds it already.

    Args:
        before: of the table now.
        batch: of the job, including the batch.
        table: its name.

    Raises:
        PipelineError: another job, source or checkpoint wrote the table.
    """
    if before is None:
        return replace(batch, commit=1)
    if not is_of(before, batch):
        raise PipelineError(
            f"the table {table} is of {before.job} and {before.origin}, not of {batch.job} and "
            f"{batch.origin}: name another output"
        )
    if before.origin != batch.origin:
        return replace(batch, commit=before.commit + 1)
    if batch.batch is not None:
        if before.batch is None or before.batch.query != batch.batch.query:
            raise PipelineError(f"the table {table} was made with another checkpoint: name another output")
        if before.batch.number >= batch.batch.number:
            return None
    elif all(before.ends.get(p, 0) >= end for p, (_, end) in batch.added.items()):
        return None
    ends = {p: max(end, before.ends.get(p, 0)) for p, end in batch.ends.items()}
    held = {p: (before.held.get(p, span)[0], ends[p]) for p, span in batch.held.items()}
    return replace(batch, commit=before.commit + 1, held=held)


def is_of(before: Ledger, batch: Ledger) -> bool:
    """Whether a table is of this job and its source, or of a log that the job has left."""
    origins = {batch.origin, *(log.origin for log in batch.earlier)}
    return before.job == batch.job and before.origin in origins


def is_ahead(before: Ledger, job: Ledger) -> bool:
    """Whether a table has offsets that the others lack, since a batch was cut off."""
    is_same_log = before.origin == job.origin
    return is_same_log and any(before.ends.get(p, 0) > end for p, end in job.ends.items())


def held_ahead(before: Ledger | None, batch: Ledger) -> Offsets:
    """Return the offsets at which a table goes on with a batch, of partitions in which it holds a part."""
    if before is None or batch.batch is not None or before.origin != batch.origin:
        return {}
    return {p: before.ends[p] for p, (start, _) in batch.added.items() if before.ends.get(p, 0) > start}
