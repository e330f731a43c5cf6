"""
The ledger: the offsets that a sink holds, written in the same commit as the rows. It gives exactly once.

    a sink holds, of one source and each partition, the offsets [first, end): all of them, each once

A sink commits a batch together with the ledger that includes it, and only as the successor of its last
ledger. So the sink alone determines the job's position. Where Spark's checkpoint is behind its sink, the
job skips what is there, offset by offset; where it is ahead, rows are missing, and the job does not start
(pipeline/sinks/refusal.py).

Two kinds of streams have no such offsets: those that read an archive, and those that keep state between
batches, whose rows belong to no offset. Their ledger also counts the batches of one checkpoint, which
alone holds the state; without it, such a sink cannot be continued.

If a topic was made again, or moved to another cluster, its offsets begin anew. On demand (--next-topic) a
sink goes on with the new log: the commit of its first batch also closes the log before, which the ledger
keeps among `earlier`. So there is no moment between the two.

This module only compares and counts; it uses no Spark and no storage.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from pipeline.errors import PipelineError
from pipeline.sources.extent import OffsetRanges
from pipeline.sources.origin import Origin
from pipeline.sources.records import Offsets

VERSION = 2
"""Of a ledger with earlier logs; others are written as version 1, which older jobs read."""


class CheckpointBatch(NamedTuple):
    """A batch, and the query of the checkpoint that planned it."""

    query: str
    number: int


class EarlierLog(NamedTuple):
    """A log that a sink has left for another one, and the offsets that it holds of it."""

    origin: str
    topic: str  # "" in ledgers that did not note it
    partitions: int
    held: OffsetRanges
    records_end: Offsets
    lost: tuple[tuple[int, int, int], ...]
    closed_at: datetime
    """When the sink left it, in whole seconds: by then its records had been written."""
    columns_from: Mapping[int, Offsets]
    """See Ledger."""

    def to_document(self) -> dict[str, Any]:
        """Return it as the ledger's JSON has it."""
        return {
            "source": self.origin,
            "topic": self.topic,
            "partitions": self.partitions,
            "held": self.held,
            "records_end": self.records_end,
            "lost": self.lost,
            "closed_at": self.closed_at.isoformat(timespec="seconds"),
            "columns_from": self.columns_from,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "EarlierLog":
        """Return what `to_document` wrote."""
        return cls(
            document["source"],
            document["topic"],
            document["partitions"],
            _ranges(document["held"]),
            _offsets(document["records_end"]),
            _losses_of(document["lost"]),
            datetime.fromisoformat(document["closed_at"]),
            _columns_from(document),
        )


@dataclass(frozen=True)
class Ledger:
    """The offsets that a sink holds."""

    job: str
    commit: int  # of this sink, from 1 on
    origin: str
    partitions: int
    held: OffsetRanges
    added: OffsetRanges  # with this commit
    lost: tuple[tuple[int, int, int], ...] = ()  # partition, first, end: deleted before they were read
    batch: CheckpointBatch | None = None  # the last one, where offsets do not determine the rows
    records_end: Offsets = field(default_factory=dict)
    """The offset after the last record of each partition, where known; only markers follow it."""
    topic: str = ""
    """The name of the source's topic; "" in ledgers that did not note it."""
    earlier: tuple[EarlierLog, ...] = ()
    """The logs before this one, oldest first."""

    columns_from: Mapping[int, Offsets] = field(default_factory=dict)
    """
    By version of an archive's columns the first offset of each partition whose row has these columns; a
    partition that is left out has no rows without them. A version that is left out is unknown.
    """

    @property
    def log_epoch(self) -> int:
        """The number of the log among all that the sink has held; the first one is 0."""
        return len(self.earlier)

    @property
    def ends(self) -> Offsets:
        """The next offset of each partition."""
        return {partition: end for partition, (_, end) in self.held.items()}

    @property
    def before_last(self) -> "Ledger":
        """The offsets before this commit, under its predecessor's number."""
        held = {
            p: (first, self.added[p][0] if p in self.added else end) for p, (first, end) in self.held.items()
        }
        return replace(self, commit=self.commit - 1, held=held, added={})

    def to_json(self) -> str:
        """Return the JSON document that sinks store."""
        document: dict[str, Any] = {
            "version": VERSION if self.earlier else 1,
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
        if self.topic:
            document["topic"] = self.topic
        if self.earlier:
            document["earlier"] = [log.to_document() for log in self.earlier]
        if self.columns_from:
            document["columns_from"] = self.columns_from
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """
        Return the ledger of a JSON document.

        Raises:
            PipelineError: its version is newer than VERSION.
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
            lost=_losses_of(document.get("lost", ())),
            batch=CheckpointBatch(**document["batch"]) if "batch" in document else None,
            records_end=_offsets(document.get("records_end", {})),
            topic=document.get("topic", ""),
            earlier=tuple(EarlierLog.from_document(log) for log in document.get("earlier", ())),
            columns_from=_columns_from(document),
        )


def next_log(ledger: Ledger, origin: Origin, closed_at: datetime) -> Ledger:
    """Return the ledger of a sink that goes on with another log, of which it holds nothing yet."""
    left = EarlierLog(
        ledger.origin,
        ledger.topic,
        ledger.partitions,
        ledger.held,
        ledger.records_end,
        ledger.lost,
        closed_at,
        ledger.columns_from,
    )
    return Ledger(
        ledger.job,
        ledger.commit,
        origin.id,
        origin.partitions,
        held={},
        added={},
        topic=origin.topic,
        earlier=(*ledger.earlier, left),
    )


def start_offsets(ledger: Ledger | None, origin: Origin) -> Offsets:
    """Return the first offsets of a stream without a checkpoint: after the sink's, or at the log's start."""
    held = {} if ledger is None else ledger.ends
    return {
        p: max(held.get(p, 0), origin.starts.get(p, 0)) for p in sorted(held.keys() | origin.starts.keys())
    }


def next_ledger(
    ledger: Ledger | None, origin: Origin, ends: Mapping[int, int], *, job: str, batch: CheckpointBatch | None
) -> Ledger | None:
    """
    Return the ledger that includes a batch; None if the sink holds the batch already.

    Args:
        ledger: of the sink now.
        origin: the source.
        ends: the end offsets of the batch, by partition.
        batch: its number, where offsets do not determine the rows; the sink holds every batch up to its own.
    """
    begins = start_offsets(ledger, origin)
    added = {p: (begins.get(p, 0), end) for p, end in ends.items() if end > begins.get(p, 0)}
    if batch is not None and ledger is not None and ledger.batch is not None:
        if batch.number <= ledger.batch.number:
            return None
    elif batch is None and not added:
        return None
    before = {} if ledger is None else ledger.held
    # Also of partitions without records, so that the ledger lists every partition.
    read_to = begins | {p: end for p, (_, end) in added.items()}
    held = {p: (before[p][0] if p in before else begins.get(p, 0), end) for p, end in read_to.items()}
    return Ledger(
        job=job,
        commit=1 if ledger is None else ledger.commit + 1,
        origin=origin.id,
        partitions=origin.partitions,
        held=held,
        added=added,
        lost=_losses(ledger, origin),
        batch=batch,
        topic=origin.topic,
        earlier=() if ledger is None else ledger.earlier,
    )


def with_records_end(ledger: Ledger, before: Ledger | None, ends_added: Offsets) -> Ledger:
    """
    Return the ledger with the ends of its records, where they are known.

    Args:
        ledger: of this commit.
        before: its predecessor.
        ends_added: by partition, the offset after the last record of the added range, or the range's
            start if it holds no record; partitions without an answer are left out.
    """
    known = {} if before is None else before.records_end
    ends = {p: end for p, end in known.items() if p not in ledger.added}
    for partition, (start, _) in ledger.added.items():
        if (end := ends_added.get(partition, -1)) > start:
            ends[partition] = end
        elif end == start and (partition in known or ledger.held[partition][0] == start):
            ends[partition] = known.get(partition, start)
    return replace(ledger, records_end=ends)


def with_columns(ledger: Ledger, before: Ledger | None, version: int) -> Ledger:
    """
    Return the ledger of an archive whose rows have the columns of a version from now on.

    Args:
        ledger: of this commit.
        before: its predecessor.
        version: of the columns.
    """
    known = {} if before is None else before.columns_from
    if version in known or (before is not None and before.partitions == 0):
        return replace(ledger, columns_from=known)
    began = {} if before is None else {p: end for p, (first, end) in before.held.items() if first < end}
    return replace(ledger, columns_from={**known, version: began})


def _losses(ledger: Ledger | None, origin: Origin) -> tuple[tuple[int, int, int], ...]:
    """Return the offsets that retention deleted unread, which --accept-loss has allowed."""
    if ledger is None:
        return ()
    gaps = ((p, ledger.ends.get(p, start), start) for p, start in sorted(origin.starts.items()))
    return ledger.lost + tuple(gap for gap in gaps if gap[1] < gap[2])


def _losses_of(document: Iterable[Any]) -> tuple[tuple[int, int, int], ...]:
    return tuple((partition, first, end) for partition, first, end in document)


def _columns_from(document: Mapping[str, Any]) -> dict[int, Offsets]:
    return {int(version): _offsets(offsets) for version, offsets in document.get("columns_from", {}).items()}


def _offsets(document: Mapping[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in document.items()}


def _ranges(document: Mapping[str, Any]) -> OffsetRanges:
    return {int(partition): (first, end) for partition, (first, end) in document.items()}
