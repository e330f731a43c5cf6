"""Claim: counters and log agree, differ, or cannot be compared, each with its reasons."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.reconciliation import (
    AGREES,
    DIFFERS,
    NOT_RECONCILED,
    Reading,
    Stats,
    load_stats,
    reconcile,
)
from pipeline.errors import PipelineError

READINGS = {0: Reading(counted=10, start=0, end=110, last_seq=109), 1: Reading(5, 0, 5, 4)}


def stats(**of_partition_0: Any) -> Stats:
    totals = {"accepted": 15, "duplicates": 3, "conflicts": 1, "rejected": 0, "unknown": 0, "refused": 2}
    partition = {"partition": 0, "state": "active", "since_offset": 100, "accepted": 10}
    partition |= {"applied_offset": 110, "next_lane_seq": 110} | of_partition_0
    other = partition | {"partition": 1, "since_offset": 0, "accepted": 5, "applied_offset": 5}
    other |= {"next_lane_seq": 5, "state": "active"}
    document: dict[str, Any]
    document = {"topic": "events", "quarantine_topic": "events.quarantine", "log_id": "a-log"}
    document |= {"window_seconds": 7 * 86_400, "index_keys_max": 1000}
    document |= {"totals": {"received": 21} | totals, "partitions": [partition, other]}
    return Stats(document | {"quarantine": [other | {"partition": 0, "accepted": 1}]})


def test_equal_numbers_agree() -> None:
    found = reconcile(stats(), READINGS)

    assert (found.state, found.accepted, found.committed, found.reasons) == (AGREES, 15, 15, [])


def test_accepted_event_that_is_not_committed_differs() -> None:
    found = reconcile(stats(accepted=11), READINGS)

    assert found.state == DIFFERS
    assert found.reasons == ["partition 0: 11 accepted since offset 100, 10 committed"]


def test_totals_that_do_not_add_up_differ() -> None:
    wrong = stats()
    wrong.document["totals"]["received"] += 1

    found = reconcile(wrong, READINGS)

    assert found.state == DIFFERS
    assert "do not add up" in found.reasons[0]


@pytest.mark.parametrize(
    ("of_partition", "reading", "reason"),
    [
        ({"state": "restoring", "applied_offset": None}, READINGS[0], "is restoring"),
        ({"state": "unassigned", "since_offset": None}, READINGS[0], "is unassigned"),
        ({}, Reading(4, 106, 110, 109), "was read from offset 106 on, the gateway counts from 100"),
        ({}, Reading(4, 0, 104, 103), "was read up to offset 104, the gateway counts up to 110"),
        ({}, Reading(4, 0, None, 103), "is not archived to its end yet"),
    ],
)
def test_what_cannot_be_compared_is_no_difference(
    of_partition: dict[str, Any], reading: Reading, reason: str
) -> None:
    found = reconcile(stats(**of_partition), READINGS | {0: reading})

    assert found.state == NOT_RECONCILED
    assert found.reasons == [f"partition 0 {reason}"]


def test_archive_that_should_reach_as_far_as_the_counters_differs() -> None:
    found = reconcile(stats(), READINGS | {0: Reading(4, 0, 110, 103)})

    assert found.state == DIFFERS


def test_records_lost_before_the_gateway_started_are_missed_by_the_last_lane_seq() -> None:
    restarted = stats(since_offset=110, accepted=0)

    found = reconcile(restarted, READINGS | {0: Reading(0, 0, 110, 99)})

    assert found.state == DIFFERS
    assert found.reasons == ["partition 0: lane_seq 99 is the last, and the gateway gave up to 109"]


def test_statistics_of_another_topic_or_log_are_refused() -> None:
    with pytest.raises(PipelineError, match="of another topic, 'events', not of 'other'"):
        stats().about("other", "a-log")
    with pytest.raises(PipelineError, match="of another log, a-log"):
        stats().about("events", "b-log")
    assert stats().about("events", "a-log").partitions == stats().partitions


def test_statistics_of_an_older_gateway_name_no_log_and_reconcile_nothing() -> None:
    old = stats()
    del old.document["log_id"]

    found = reconcile(old.about("events", "b-log"), READINGS)

    assert (found.state, found.reasons) == (
        NOT_RECONCILED,
        ["--stats do not name their log: they are of an older gateway"],
    )


def test_quarantine_is_compared_with_its_own_counters() -> None:
    found = stats().about("events.quarantine", "a-log")

    assert [p["accepted"] for p in found.partitions] == [1]
    assert found.dedupe_bounds == DedupeBounds(timedelta(days=7), 500)


def test_only_what_a_partition_has_counted_is_compared() -> None:
    assert stats().counted_ranges == {0: (100, 110), 1: (0, 5)}
    assert stats(applied_offset=None).counted_ranges == {1: (0, 5)}


@pytest.mark.parametrize("content", ["no json", "{}", '{"partitions": []}'])
def test_file_without_statistics_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(content)

    with pytest.raises(PipelineError, match="no statistics of a gateway"):
        load_stats(str(tmp_path / "stats.json"), None)


def test_file_with_statistics_is_read(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(stats().document))

    assert load_stats(str(tmp_path / "stats.json"), None) == stats()
