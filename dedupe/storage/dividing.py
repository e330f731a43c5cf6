"""
Divides a partition: the piece of its log in which it had its slots ends where its owner's fence, or last
append, has left it. Marks lie below that, and fence nobody.

Whoever divides is the partition's owner for a moment. The decision is appended beside it under its epoch, so
that it is there once the next owner's fence is over, or never will be. After any doubt, divide again: the
first decision counts.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from dedupe.decide.layout import Layout
from dedupe.decide.lineage import Mark
from dedupe.decide.recovery import CheckedRecord, RecordCheck
from dedupe.decide.resharding import Decision, Plan, Routing
from dedupe.model.errors import ConfigurationError, DividedAnewError, IdentityMismatchError, LogCorruptError
from dedupe.model.identity import Identity
from dedupe.model.inherited import OFFSETS_MAX
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.inheriting_log import LogOf
from dedupe.storage.log import DecidingLog, PartitionLog
from dedupe.storage.routing_records import Seal

SPAN = 4
"""Offsets of the first read for the newest record; markers occupy some."""


class Division(NamedTuple):
    """How a topic is divided, as a process knows it."""

    layout: Layout
    seal: Seal | None = None  # proves what is decided beside its partitions; None: nothing is

    def check(self, partition: int, log: PartitionLog) -> None:
        """
        Compare what is decided of a partition that was just fenced with what this process knows.

        Raises:
            DividedAnewError: the topic was divided since this process opened the log.
        """
        if self.seal is not None:
            records: Sequence[LogRecord] = getattr(log, "decisions", ())
            for decision in self.seal.decisions_in(partition, records):
                if decision.plan > self.layout.plan:
                    raise DividedAnewError(
                        f"the topic has been divided anew since it was opened here: plan {decision.plan} of "
                        f"partition {partition}"
                    )


async def decide(
    log: DecidingLog,
    seal: Seal,
    plan: Plan,
    partition: int,
    before: Layout,
    identity: Identity,
    *,
    keeps: bool,
    now_ms: int,
) -> Decision:
    """
    Fence a partition, and decide of a plan whether its slots may move, unless that is decided.

    Args:
        log: of the partition.
        seal: how decisions are proved.
        plan: of which it has not decided.
        partition: its number.
        before: the layout of before the plan.
        identity: of the log's gateways; records of others are passed over.
        keeps: whether it keeps its slots.
        now_ms: log time.

    Returns:
        What is decided, now or before.

    Raises:
        RetriableError: call again.
        IdentityMismatchError: somebody else has decided.
        ConfigurationError: it cannot be divided.
    """
    end = await log.fence()
    for decision in seal.decisions_in(partition, log.decisions):
        if decision.plan == plan.number:
            return decision
    if keeps:
        decision = Decision(plan.number, partition, None)
    else:
        check = RecordCheck(identity, partition, before.base, before)
        decision = await _cut_of(log, plan, before, check, end)
    await log.decide(seal.record_of(decision, now_ms=now_ms))
    return decision


async def marks_of(log_of: LogOf, routing: Routing, identity: Identity) -> tuple[Mark, ...]:
    """
    Return a mark of each partition with slots: behind its newest record, or where it was cut last.

    Raises RetriableError.
    """
    before = Layout(routing.base, routing)
    marks = []
    for partition in sorted(set(routing.homes)):
        log, begin = log_of(partition), routing.starts_of(partition)[-1]
        check = RecordCheck(identity, partition, before.base, before)
        mark = Mark(partition, begin.offset, begin.lane_seq, 0)
        try:
            start, end = await log.bounds()
            if (last := await _last(log, check, max(start, begin.offset), end)) is not None:
                mark = Mark(partition, last.offset + 1, last.identity.lane_seq + 1, last.timestamp_ms)
        finally:
            await log.close()
        marks.append(mark)
    return tuple(marks)


async def _cut_of(log: DecidingLog, plan: Plan, before: Layout, check: RecordCheck, end: Offset) -> Decision:
    partition = check.partition
    if end >= OFFSETS_MAX:
        raise ConfigurationError(f"partition {partition} has too many offsets to be divided")
    lineage = before.lineage_of(partition)
    own_from, lane_seq, timestamp_ms = 0, 0, 0
    if lineage is not None:
        own_from, lane_seq, timestamp_ms = lineage.own_from, lineage.lane_seq, lineage.timestamp_ms
    start = max(own_from, (await log.bounds())[0])
    last = await _last(log, check, start, end)
    if last is None:  # retention may have deleted all; no record can have had a later number
        lane_seq += end - own_from if start > own_from else 0
        return Decision(plan.number, partition, end, timestamp_ms, lane_seq)
    identity = last.identity
    return Decision(
        plan.number, partition, end, last.timestamp_ms, identity.lane_seq + 1, last.offset, identity.key
    )


async def _last(log: PartitionLog, check: RecordCheck, start: Offset, end: Offset) -> CheckedRecord | None:
    """Return the newest record of [start, end) that a gateway of this log wrote, None if there is none."""
    last: CheckedRecord | None
    span, low = SPAN, end
    while low > start:
        low, last = max(start, end - span), None
        async with aclosing(log.read(low, end)) as batches:
            async for records in batches:
                for record in records:
                    last = _own(check, record) or last
        if last is not None:
            return last
        span *= 8
    return None


def _own(check: RecordCheck, record: LogRecord) -> CheckedRecord | None:
    try:
        return check.checked(record)
    except (LogCorruptError, IdentityMismatchError):  # of another program, as its lane has it skipped
        return None
