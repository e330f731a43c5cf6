"""Claim: each table takes of a batch exactly what it lacks, wherever a job was killed."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PipelineError
from pipeline.sinks.ledger import CheckpointBatch, Ledger, next_log
from pipeline.sinks.table_ledger import held_ahead, is_ahead, is_of, table_ledger
from pipeline.sources.origin import Origin


def batch_of(commit: int, start: int, end: int) -> Ledger:
    return Ledger("tables", commit, "log:1/events", 1, {0: (0, end)}, {0: (start, end)})


def test_table_counts_its_own_commits_and_holds_what_the_batch_ends_with() -> None:
    first = table_ledger(None, batch_of(4, 30, 40), table="tracks")
    assert first == replace(batch_of(4, 30, 40), commit=1)
    second = table_ledger(first, batch_of(6, 50, 60), table="tracks")
    assert second is not None
    assert (second.commit, second.held, second.added) == (2, {0: (0, 60)}, {0: (50, 60)})


def test_table_that_holds_the_batch_gets_nothing() -> None:
    held = batch_of(5, 40, 50)
    assert table_ledger(held, batch_of(1, 40, 50), table="tracks") is None
    assert table_ledger(held, batch_of(1, 40, 45), table="tracks") is None


@pytest.mark.parametrize(("job", "origin"), [("archive", "log:1/events"), ("tables", "log:2/events")])
def test_table_of_another_job_or_source_is_refused(job: str, origin: str) -> None:
    before = replace(batch_of(1, 0, 10), job=job, origin=origin)
    with pytest.raises(PipelineError, match="name another output"):
        table_ledger(before, batch_of(2, 10, 20), table="tracks")


def test_table_goes_on_with_the_next_log_whatever_it_held_of_the_one_before() -> None:
    origin, closed_at = Origin("log:2/events", "events", 1, {0: 0}), datetime(2026, 1, 5, tzinfo=UTC)
    job = next_log(batch_of(4, 30, 40), origin, closed_at)
    batch = replace(job, held={0: (0, 7)}, added={0: (0, 7)})

    for before in (batch_of(2, 30, 40), batch_of(2, 0, 10), batch_of(9, 40, 99)):
        following = table_ledger(before, batch, table="tracks")
        assert following == replace(batch, commit=before.commit + 1)
        assert held_ahead(before, batch) == {}
        assert (is_of(before, batch), is_ahead(before, batch)) == (True, False)
        assert table_ledger(following, batch, table="tracks") is None
    assert not is_of(batch, batch_of(4, 30, 40))
    assert is_ahead(batch_of(2, 40, 50), batch_of(4, 30, 40))


def test_batches_of_an_archive_are_counted_and_belong_to_one_checkpoint() -> None:
    def counted(query: str, number: int) -> Ledger:
        return Ledger("tables", 1, "delta://a", 0, {}, {}, batch=CheckpointBatch(query, number))

    assert table_ledger(counted("q", 3), counted("q", 3), table="tracks") is None
    following = table_ledger(counted("q", 3), counted("q", 5), table="tracks")
    assert following is not None
    assert (following.commit, following.batch) == (2, CheckpointBatch("q", 5))
    assert held_ahead(counted("q", 3), counted("q", 5)) == {}
    with pytest.raises(PipelineError, match="another checkpoint"):
        table_ledger(counted("q", 3), counted("p", 0), table="tracks")


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_kills_and_lost_checkpoints_leave_each_offset_once(sizes: list[int], data: st.DataObject) -> None:
    """The job's own ledger is committed last, so a killed batch comes again, perhaps with another end."""
    table: Ledger | None = None
    stored: list[int] = []
    done, commit = 0, 1
    total = sum(sizes)
    while done < total:
        end = min(total, done + data.draw(st.integers(1, 20)))
        batch = batch_of(commit, done, end)
        following = table_ledger(table, batch, table="tracks")
        if following is not None:
            start = held_ahead(table, batch).get(0, done)
            if data.draw(st.booleans()):
                continue  # killed before the table's commit
            stored += range(start, end)
            table = following
        if data.draw(st.booleans()):
            continue  # killed before the job's commit
        done, commit = end, commit + 1
    assert stored == list(range(total))
