"""
The ledger: what a sink holds, written in the same commit as the rows. Exactly once follows from it.

    a sink holds, of one source, in each partition, the offsets [first, end): all of them, each once

A batch is stored together with the ledger that is true afterwards, in one commit of the sink's, and
only as the successor of the ledger that was there before. So the sink alone says how far it is.
Spark's checkpoint is a plan: where it is behind its sink, what is there is skipped, offset by offset;
where it is ahead, rows are missing, and the job refuses to start.

Some streams have no such offsets: those that read an archive, and those that keep state between
batches, whose rows are nobody's in particular. Their ledger also counts the batches of one checkpoint,
the only place that knows the state; without it, such a sink cannot be continued.

No Spark and no storage here: this module only compares and counts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from pipeline.errors import PipelineError
from pipeline.runtime.checkpoint import Reached
from pipeline.sources.origin import Origin
from pipeline.sources.records import Offsets

VERSION = 1
RETENTION_RUNBOOK = "docs/runbooks/retention-overtook.md"
CHECKPOINT_RUNBOOK = "docs/runbooks/checkpoint-lost.md"

Ranges: TypeAlias = dict[int, tuple[int, int]]
"""By partition: [first, end)."""


class Batch(NamedTuple):
    """A batch by the checkpoint that planned it."""

    query: str
    number: int


@dataclass(frozen=True)
class Ledger:
    """What a sink holds."""

    job: str
    commit: int  # of this sink, from 1 on
    origin: str
    partitions: int
    held: Ranges
    added: Ranges  # with this commit
    lost: tuple[tuple[int, int, int], ...] = ()  # partition, first, end: deleted before they were read
    batch: Batch | None = None  # the last one, where offsets do not say all
    records_end: Offsets = field(default_factory=dict)
    """By partition, what follows its last record, where anybody has looked: markers alone stand behind."""

    @property
    def ends(self) -> Offsets:
        """The next offset of each partition."""
        return {partition: end for partition, (_, end) in self.held.items()}

    @property
    def before_last(self) -> "Ledger":
        """What was held before this commit."""
        held = {
            p: (first, self.added[p][0] if p in self.added else end) for p, (first, end) in self.held.items()
        }
        return replace(self, commit=self.commit - 1, held=held, added={})

    def to_json(self) -> str:
        """Return the document that sinks store."""
        document: dict[str, Any] = {
            "version": VERSION,
            "job": self.job,
            "commit": self.commit,
            "source": self.origin,
            "partitions": self.partitions,
            "held": self.held,
            "added": self.added,
        }
        if self.lost:
            document["lost"] = self.lost
        if self.batch is not None:
            document["batch"] = self.batch._asdict()
        if self.records_end:
            document["records_end"] = self.records_end
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """
        Return what a sink stored.

        Raises:
            PipelineError: it is of a newer version.
        """
        document = json.loads(text)
        if document["version"] > VERSION:
            raise PipelineError(f"the sink's ledger has version {document['version']}: use newer jobs")
        return cls(
            job=document["job"],
            commit=document["commit"],
            origin=document["source"],
            partitions=document["partitions"],
            held=_ranges(document["held"]),
            added=_ranges(document["added"]),
            lost=tuple((partition, first, end) for partition, first, end in document.get("lost", ())),
            batch=Batch(**document["batch"]) if "batch" in document else None,
            records_end={int(p): end for p, end in document.get("records_end", {}).items()},
        )


class Way(Enum):
    """What gets a refused job going again."""

    RECOVER = "--recover"
    ACCEPT_LOSS = "--accept-loss"
    ANOTHER_SINK = "another output"


class Refusal(NamedTuple):
    """Why a job must not start, in one sentence."""

    way: Way
    sentence: str


def refusal(
    ledger: Ledger | None, reached: Reached | None, origin: Origin, *, job: str, by_batch: bool
) -> Refusal | None:
    """
    Compare a sink with its source and its checkpoint; None if the job may start.

    Args:
        ledger: of the sink; None if it is empty.
        reached: what the checkpoint says; None if there is none.
        origin: the source as it is now.
        by_batch: whether batches count, and not offsets alone.
    """
    if ledger is not None and (found := _other_sink(ledger, origin, job)):
        return found
    return _by_batch(ledger, reached) if by_batch else _by_offsets(ledger, reached, origin)


def starting(ledger: Ledger | None, origin: Origin) -> Offsets:
    """Return where a stream without a checkpoint begins: after what the sink holds, or at the log's start."""
    held = {} if ledger is None else ledger.ends
    return {
        p: max(held.get(p, 0), origin.starts.get(p, 0)) for p in sorted(held.keys() | origin.starts.keys())
    }


def successor(
    ledger: Ledger | None, origin: Origin, ends: Mapping[int, int], *, job: str, batch: Batch | None
) -> Ledger | None:
    """
    Return the ledger that is true once a batch is stored; None if the sink holds the batch already.

    Args:
        ledger: what the sink holds now.
        ends: where the batch ends, by partition.
        batch: which one it is, where offsets do not say all; then the stored one and those before it
            are held already.
    """
    begins = starting(ledger, origin)
    added = {p: (begins.get(p, 0), end) for p, end in ends.items() if end > begins.get(p, 0)}
    if batch is not None and ledger is not None and ledger.batch is not None:
        if batch.number <= ledger.batch.number:
            return None
    elif batch is None and not added:
        return None
    before = {} if ledger is None else ledger.held
    # Of a partition without records, too: that nothing of it was read is known only so.
    reached = begins | {p: end for p, (_, end) in added.items()}
    held = {p: (before[p][0] if p in before else begins.get(p, 0), end) for p, end in reached.items()}
    return Ledger(
        job=job,
        commit=1 if ledger is None else ledger.commit + 1,
        origin=origin.id,
        partitions=origin.partitions,
        held=held,
        added=added,
        lost=_losses(ledger, origin),
        batch=batch,
    )


def with_records_end(ledger: Ledger, before: Ledger | None, found: Offsets) -> Ledger:
    """
    Return the ledger with what is known of the ends of its records.

    Args:
        ledger: of this commit.
        before: its predecessor.
        found: of what was added, behind its last record, or its beginning if it has none; nothing of
            partitions of which nobody knows.
    """
    known = {} if before is None else before.records_end
    ends = {p: end for p, end in known.items() if p not in ledger.added}
    for partition, (start, _) in ledger.added.items():
        if (end := found.get(partition, -1)) > start:
            ends[partition] = end
        elif end == start and (partition in known or ledger.held[partition][0] == start):
            ends[partition] = known.get(partition, start)
    return replace(ledger, records_end=ends)


def _other_sink(ledger: Ledger, origin: Origin, job: str) -> Refusal | None:
    if ledger.job != job:
        what = f"is the output of {ledger.job}, and this is {job}"
    elif ledger.origin != origin.id:
        what = f"holds another source, {ledger.origin}, and this one is {origin.id}"
    elif ledger.partitions > origin.partitions:
        what = f"knows {ledger.partitions} partitions of its source, which has {origin.partitions} now"
    else:
        return None
    return Refusal(Way.ANOTHER_SINK, f"the output {what}: name another output")


def _by_offsets(ledger: Ledger | None, reached: Reached | None, origin: Origin) -> Refusal | None:
    held = {} if ledger is None else ledger.ends
    if reached is not None:
        if reached.topic not in (None, origin.topic):
            return Refusal(
                Way.RECOVER,
                f"the checkpoint is one of topic {reached.topic!r}, not of {origin.topic!r}: name the right "
                "--checkpoint, or go on from what the output holds with --recover",
            )
        for partition, offset in sorted(reached.offsets.items()):
            has = held.get(partition, origin.starts.get(partition, 0))
            if offset > has:
                return Refusal(
                    Way.RECOVER,
                    f"the checkpoint is at offset {offset} of partition {partition} and the output at {has}, "
                    "so it is another output's, or rows are gone: name the right --checkpoint, "
                    "or go on from what the output holds with --recover",
                )
    for partition, start in sorted(origin.starts.items()):
        if held.get(partition, start) < start:
            return Refusal(
                Way.ACCEPT_LOSS,
                f"retention deleted the offsets {held[partition]} to {start - 1} of partition {partition} "
                f"before this job read them: see {RETENTION_RUNBOOK}, "
                "or go on behind them with --accept-loss",
            )
        if reached is not None and reached.offsets.get(partition, start) < start:
            return Refusal(
                Way.RECOVER,
                f"the checkpoint is at offset {reached.offsets[partition]} of partition {partition}, which "
                f"begins at {start} now, and the output lacks nothing before it: go on with --recover",
            )
    return None


def _by_batch(ledger: Ledger | None, reached: Reached | None) -> Refusal | None:
    stored = None if ledger is None else ledger.batch
    if stored is None:
        if reached is not None and reached.committed >= 0:
            return Refusal(
                Way.RECOVER,
                f"the checkpoint has finished {reached.committed + 1} batches and the output holds none: "
                "name another --checkpoint, or begin anew with --recover",
            )
        return None
    if reached is None or reached.query != stored.query:
        return Refusal(
            Way.ANOTHER_SINK,
            "the output was made with another checkpoint, whose state this job needs: name that "
            f"--checkpoint, or another output to begin anew; see {CHECKPOINT_RUNBOOK}",
        )
    # Ahead of its checkpoint by a batch is a job that was killed, if that batch is planned: it is made again,
    # and skipped. In a checkpoint from a backup it would be planned anew, over more records.
    if not reached.committed <= stored.number <= reached.planned:
        return Refusal(
            Way.ANOTHER_SINK,
            f"the checkpoint has finished batch {reached.committed} and the output batch {stored.number}, "
            f"so their states differ: name another output to begin anew; see {CHECKPOINT_RUNBOOK}",
        )
    return None


def _losses(ledger: Ledger | None, origin: Origin) -> tuple[tuple[int, int, int], ...]:
    """What is lost for good: the job was told to go on nevertheless, or it would not have come here."""
    if ledger is None:
        return ()
    gaps = ((p, ledger.ends.get(p, start), start) for p, start in sorted(origin.starts.items()))
    return ledger.lost + tuple(gap for gap in gaps if gap[1] < gap[2])


def _ranges(document: Mapping[str, Any]) -> Ranges:
    return {int(partition): (first, end) for partition, (first, end) in document.items()}
