"""
Whether a job may start: sink, checkpoint and source belong together, and nothing would be lost or mixed.

This module only compares; it uses no Spark and no storage.
"""

from enum import Enum
from typing import NamedTuple

from pipeline.runtime.checkpoint import CheckpointState
from pipeline.sinks.ledger import Ledger
from pipeline.sources.origin import Origin

RETENTION_RUNBOOK = "docs/runbooks/retention-overtook.md"
CHECKPOINT_RUNBOOK = "docs/runbooks/checkpoint-lost.md"


class Remedy(Enum):
    """What lets a refused job start."""

    RECOVER = "--recover"
    ACCEPT_LOSS = "--accept-loss"
    NEXT_TOPIC = "--next-topic"
    ANOTHER_SINK = "another output"


class Refusal(NamedTuple):
    """Why a job does not start, in one sentence."""

    remedy: Remedy
    sentence: str


def refusal(
    ledger: Ledger | None,
    state: CheckpointState | None,
    origin: Origin,
    *,
    job: str,
    by_batch: bool,
    may_follow: bool = False,
) -> Refusal | None:
    """
    Compare a sink with its source and its checkpoint; None if the job may start.

    Args:
        ledger: of the sink; None if it is empty.
        state: of the checkpoint; None if there is none.
        origin: the source as it is now.
        by_batch: whether the ledger counts batches.
        may_follow: whether the job can go on with another log.
    """
    if ledger is not None and (refused := _other_sink(ledger, origin, job, may_follow)):
        return refused
    return _by_batch(ledger, state) if by_batch else _by_offsets(ledger, state, origin)


def _other_sink(ledger: Ledger, origin: Origin, job: str, may_follow: bool) -> Refusal | None:
    if ledger.job != job:
        what = f"is the output of {ledger.job}, and this is {job}"
    elif any(log.origin == origin.id for log in ledger.earlier):
        what = f"has left {origin.id} for {ledger.origin}"
    elif ledger.origin != origin.id:
        what = f"holds another source, {ledger.origin}, and this one is {origin.id}"
        if may_follow and ledger.batch is None:
            return Refusal(
                Remedy.NEXT_TOPIC,
                f"the output {what}: name another output, or, if the topic was made again or moved to "
                f"another cluster, go on with it by --next-topic; see {CHECKPOINT_RUNBOOK}",
            )
    elif ledger.partitions > origin.partitions:
        what = f"knows {ledger.partitions} partitions of its source, which has {origin.partitions} now"
    else:
        return None
    return Refusal(Remedy.ANOTHER_SINK, f"the output {what}: name another output")


def _by_offsets(ledger: Ledger | None, state: CheckpointState | None, origin: Origin) -> Refusal | None:
    held = {} if ledger is None else ledger.ends
    if state is not None:
        if state.topic not in (None, origin.topic):
            return Refusal(
                Remedy.RECOVER,
                f"the checkpoint is one of topic {state.topic!r}, not of {origin.topic!r}: name the right "
                "--checkpoint, or go on from what the output holds with --recover",
            )
        for partition, offset in sorted(state.offsets.items()):
            has = held.get(partition, origin.starts.get(partition, 0))
            if offset > has:
                return Refusal(
                    Remedy.RECOVER,
                    f"the checkpoint is at offset {offset} of partition {partition} and the output at {has}, "
                    "so it is another output's, or rows are gone: name the right --checkpoint, "
                    "or go on from what the output holds with --recover",
                )
    for partition, start in sorted(origin.starts.items()):
        if held.get(partition, start) < start:
            return Refusal(
                Remedy.ACCEPT_LOSS,
                f"retention deleted the offsets {held[partition]} to {start - 1} of partition {partition} "
                f"before this job read them: see {RETENTION_RUNBOOK}, "
                "or go on behind them with --accept-loss",
            )
        if state is not None and state.offsets.get(partition, start) < start:
            return Refusal(
                Remedy.RECOVER,
                f"the checkpoint is at offset {state.offsets[partition]} of partition {partition}, which "
                f"begins at {start} now, and the output lacks nothing before it: go on with --recover",
            )
    return None


def _by_batch(ledger: Ledger | None, state: CheckpointState | None) -> Refusal | None:
    stored = None if ledger is None else ledger.batch
    if stored is None:
        if state is not None and state.committed >= 0:
            return Refusal(
                Remedy.RECOVER,
                f"the checkpoint has finished {state.committed + 1} batches and the output holds none: "
                "name another --checkpoint, or begin anew with --recover",
            )
        return None
    if state is None or state.query != stored.query:
        return Refusal(
            Remedy.ANOTHER_SINK,
            "the output was made with another checkpoint, whose state this job needs: name that "
            f"--checkpoint, or another output to begin anew; see {CHECKPOINT_RUNBOOK}",
        )
    # A killed job leaves its sink one batch ahead, and that batch is planned: Spark runs it again and the
    # sink skips it. A checkpoint from a backup would plan that batch anew, over more records.
    if not state.committed <= stored.number <= state.planned:
        return Refusal(
            Remedy.ANOTHER_SINK,
            f"the checkpoint has finished batch {state.committed} and the output batch {stored.number}, "
            f"so their states differ: name another output to begin anew; see {CHECKPOINT_RUNBOOK}",
        )
    return None
