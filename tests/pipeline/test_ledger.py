"""Claim: a sink's ledger lists what it holds, and a job starts only if that fits source and checkpoint."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.errors import PipelineError
from pipeline.runtime.checkpoint import CheckpointState
from pipeline.sinks.ledger import (
    CheckpointBatch,
    EarlierLog,
    Ledger,
    next_ledger,
    next_log,
    start_offsets,
    with_records_end,
)
from pipeline.sinks.refusal import Remedy, refusal
from pipeline.sources.origin import Origin

JOB = "archive"
ORIGIN = Origin("kafka:cluster/topic-id", "events", 2, {0: 0, 1: 0})
HELD = Ledger(JOB, 3, ORIGIN.id, 2, {0: (0, 100), 1: (0, 50)}, {0: (90, 100)})


def state_of(
    offsets: dict[int, int], committed: int = 2, topic: str = "events", planned: int | None = None
) -> CheckpointState:
    return CheckpointState("query", committed, offsets, topic, committed if planned is None else planned)


@pytest.mark.parametrize(
    ("ledger", "checkpoint"),
    [
        (None, None),
        (None, state_of({0: 0, 1: 0}, committed=-1)),
        (HELD, None),
        (HELD, state_of({0: 100, 1: 50})),
        (HELD, state_of({0: 60})),
    ],
    ids=["both new", "begun, nothing stored", "checkpoint lost", "even", "checkpoint restored from a backup"],
)
def test_job_starts_where_the_sink_is_not_behind(
    ledger: Ledger | None, checkpoint: CheckpointState | None
) -> None:
    assert refusal(ledger, checkpoint, ORIGIN, job=JOB, by_batch=False) is None


@pytest.mark.parametrize(
    ("ledger", "checkpoint", "origin", "remedy", "words"),
    [
        (None, state_of({0: 100}), ORIGIN, Remedy.RECOVER, "checkpoint is at offset 100 of partition 0"),
        (
            HELD,
            state_of({0: 100, 1: 51}),
            ORIGIN,
            Remedy.RECOVER,
            "at offset 51 of partition 1 and the output at 50",
        ),
        (HELD, state_of({0: 9}, topic="other"), ORIGIN, Remedy.RECOVER, "one of topic 'other'"),
        (HELD, None, replace(ORIGIN, id="kafka:cluster/new-id"), Remedy.NEXT_TOPIC, "holds another source"),
        (HELD, None, replace(ORIGIN, partitions=1), Remedy.ANOTHER_SINK, "knows 2 partitions"),
        (replace(HELD, job="sessionize"), None, ORIGIN, Remedy.ANOTHER_SINK, "is the output of sessionize"),
        (
            HELD,
            None,
            replace(ORIGIN, starts={0: 0, 1: 57}),
            Remedy.ACCEPT_LOSS,
            "offsets 50 to 56 of partition 1",
        ),
        (HELD, state_of({0: 20}), replace(ORIGIN, starts={0: 30, 1: 0}), Remedy.RECOVER, "begins at 30 now"),
    ],
)
def test_job_that_would_lose_or_mix_is_refused_with_the_way_out(
    ledger: Ledger | None, checkpoint: CheckpointState | None, origin: Origin, remedy: Remedy, words: str
) -> None:
    found = refusal(ledger, checkpoint, origin, job=JOB, by_batch=False, may_follow=True)

    assert found is not None
    assert found.remedy is remedy
    assert words in found.sentence
    assert remedy.value in found.sentence


@pytest.mark.parametrize(
    ("stored", "checkpoint", "remedy"),
    [
        (None, None, None),
        (None, state_of({}, committed=0), Remedy.RECOVER),
        (CheckpointBatch("query", 2), state_of({}), None),
        (CheckpointBatch("query", 3), state_of({}, planned=3), None),
        (
            CheckpointBatch("query", 3),
            state_of({}),
            Remedy.ANOTHER_SINK,
        ),  # from a backup: it would be planned anew
        (CheckpointBatch("query", 4), state_of({}, planned=3), Remedy.ANOTHER_SINK),
        (CheckpointBatch("query", 1), state_of({}), Remedy.ANOTHER_SINK),
        (CheckpointBatch("other", 2), state_of({}), Remedy.ANOTHER_SINK),
        (CheckpointBatch("query", 2), None, Remedy.ANOTHER_SINK),
    ],
)
def test_state_belongs_to_one_checkpoint(
    stored: CheckpointBatch | None, checkpoint: CheckpointState | None, remedy: Remedy | None
) -> None:
    ledger = None if stored is None else replace(HELD, batch=stored)
    found = refusal(ledger, checkpoint, ORIGIN, job=JOB, by_batch=True)
    assert (None if found is None else found.remedy) is remedy


def test_batch_adds_what_the_sink_lacks_of_it() -> None:
    after = next_ledger(HELD, ORIGIN, {0: 130, 1: 40}, job=JOB, batch=None)

    assert after is not None
    assert (after.commit, after.added, after.held) == (4, {0: (100, 130)}, {0: (0, 130), 1: (0, 50)})
    assert next_ledger(after, ORIGIN, {0: 130, 1: 50}, job=JOB, batch=None) is None
    assert Ledger.from_json(after.to_json()) == after


def test_first_batch_begins_where_the_log_does() -> None:
    origin = replace(ORIGIN, starts={0: 70, 1: 0})

    after = next_ledger(None, origin, {0: 90, 1: 0}, job=JOB, batch=None)

    assert after is not None
    assert (after.commit, after.held, after.lost) == (1, {0: (70, 90), 1: (0, 0)}, ())


@pytest.mark.regression("The audit missed losses of a partition that had been empty at the start.")
def test_partition_that_was_empty_and_lost_records_since_is_missed() -> None:
    empty = replace(ORIGIN, starts={0: 0, 1: 5})
    ledger = next_ledger(None, empty, {0: 90, 1: 5}, job=JOB, batch=None)

    trimmed = replace(empty, starts={0: 0, 1: 8})
    found = refusal(ledger, state_of({0: 90, 1: 5}), trimmed, job=JOB, by_batch=False)

    assert found is not None
    assert (found.remedy, "offsets 5 to 7 of partition 1" in found.sentence) == (Remedy.ACCEPT_LOSS, True)


def test_partition_that_came_after_the_start_is_held_from_its_beginning() -> None:
    first = next_ledger(HELD, ORIGIN, {0: 100, 1: 50, 2: 10}, job=JOB, batch=None)
    second = next_ledger(first, ORIGIN, {0: 101, 1: 50, 2: 10}, job=JOB, batch=None)
    third = next_ledger(second, ORIGIN, {0: 101, 1: 50, 2: 12}, job=JOB, batch=None)

    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.added, first.held[2]) == ({2: (0, 10)}, (0, 10))
    assert (second.added, second.held[2]) == ({0: (100, 101)}, (0, 10))
    assert (third.added, third.held[2]) == ({2: (10, 12)}, (0, 12))


def test_accepted_loss_is_named_once() -> None:
    origin = replace(ORIGIN, starts={0: 120, 1: 55})

    first = next_ledger(HELD, origin, {0: 130, 1: 55}, job=JOB, batch=None)
    assert first is not None
    second = next_ledger(first, origin, {0: 140, 1: 60}, job=JOB, batch=None)

    assert second is not None
    assert start_offsets(HELD, origin) == {0: 120, 1: 55}
    assert second.lost == ((0, 100, 120), (1, 50, 55))
    assert second.added == {0: (130, 140), 1: (55, 60)}
    assert Ledger.from_json(second.to_json()) == second


def test_repeated_batch_of_a_stream_with_state_is_held_already() -> None:
    ledger = replace(HELD, batch=CheckpointBatch("query", 3))

    assert next_ledger(ledger, ORIGIN, {0: 130}, job=JOB, batch=CheckpointBatch("query", 3)) is None
    no_new_offsets = next_ledger(ledger, ORIGIN, {0: 100, 1: 50}, job=JOB, batch=CheckpointBatch("query", 4))
    assert no_new_offsets is not None
    assert (no_new_offsets.batch, no_new_offsets.added) == (CheckpointBatch("query", 4), {})


def test_ledger_of_newer_jobs_is_not_guessed_at() -> None:
    with pytest.raises(PipelineError, match="version 9"):
        Ledger.from_json('{"version":9}')


CLOSED = datetime(2026, 1, 5, 12, tzinfo=UTC)
NEXT = replace(ORIGIN, id="kafka:other/new-id", starts={0: 3, 1: 0})


def test_next_topic_begins_at_its_own_offsets_and_the_log_before_is_kept() -> None:
    held = replace(HELD, topic="events", lost=((0, 5, 9),), records_end={0: 99})

    begun = next_log(held, NEXT, CLOSED)
    after = next_ledger(begun, NEXT, {0: 40, 1: 7}, job=JOB, batch=None)

    assert (begun.commit, begun.held, start_offsets(begun, NEXT)) == (3, {}, {0: 3, 1: 0})
    assert refusal(begun, None, NEXT, job=JOB, by_batch=False) is None
    assert after is not None
    assert (after.commit, after.origin, after.log_epoch) == (4, NEXT.id, 1)
    assert (after.held, after.added) == ({0: (3, 40), 1: (0, 7)}, {0: (3, 40), 1: (0, 7)})
    assert (after.lost, after.records_end) == ((), {})
    (left,) = after.earlier
    assert left == EarlierLog(ORIGIN.id, "events", 2, held.held, {0: 99}, ((0, 5, 9),), CLOSED, {})
    assert Ledger.from_json(after.to_json()) == after
    assert (json.loads(after.to_json())["version"], json.loads(HELD.to_json())["version"]) == (2, 1)
    assert (after.before_last.log_epoch, after.before_last.held) == (1, {0: (3, 3), 1: (0, 0)})


@pytest.mark.parametrize(
    ("ledger", "origin", "may_follow"),
    [
        (next_log(HELD, NEXT, CLOSED), ORIGIN, True),
        (HELD, NEXT, False),
        (replace(HELD, held={}, batch=CheckpointBatch("query", 3)), NEXT, True),
    ],
    ids=["back to the log before", "a job that cannot", "the output follows an archive"],
)
def test_no_option_goes_on_where_rows_would_be_stored_again_or_lost(
    ledger: Ledger, origin: Origin, may_follow: bool
) -> None:
    found = refusal(ledger, None, origin, job=JOB, by_batch=False, may_follow=may_follow)

    assert found is not None
    assert (found.remedy, "--next-topic" in found.sentence) == (Remedy.ANOTHER_SINK, False)


GREW = replace(HELD, commit=4, held={0: (0, 120), 1: (0, 50)}, added={0: (100, 120)})


@pytest.mark.parametrize(
    ("known", "found", "records_end"),
    [
        ({0: 100, 1: 49}, {0: 118}, {0: 118, 1: 49}),
        ({0: 98, 1: 49}, {0: 100}, {0: 98, 1: 49}),
        ({0: 98, 1: 49}, {}, {1: 49}),
        ({1: 49}, {0: 100}, {1: 49}),
        ({1: 49}, {0: 118}, {0: 118, 1: 49}),
    ],
    ids=["records", "markers alone", "not looked up", "markers after an unknown end", "known again"],
)
def test_ledger_knows_where_records_end_as_far_as_anybody_has_looked(
    known: dict[int, int], found: dict[int, int], records_end: dict[int, int]
) -> None:
    ledger_now = with_records_end(GREW, replace(HELD, records_end=known), found)

    assert ledger_now.records_end == records_end
    assert Ledger.from_json(ledger_now.to_json()) == ledger_now


def test_partition_of_markers_alone_has_no_record_that_could_be_missed() -> None:
    first = next_ledger(None, ORIGIN, {0: 3}, job=JOB, batch=None)
    assert first is not None

    assert with_records_end(first, None, {0: 0}).records_end == {0: 0}
