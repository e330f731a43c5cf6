"""Claim: counters and log agree, differ, or cannot be compared, and each is told apart with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

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

READINGS = {0: Reading(counted=10, first_offset=0, last_seq=109), 1: Reading(5, 0, 4)}


def stats(**of_partition_0: Any) -> Stats:
    totals = {"accepted": 15, "duplicates": 3, "conflicts": 1, "rejected": 0, "unknown": 0, "refused": 2}
    partition = {"partition": 0, "state": "active", "since_offset": 100, "accepted": 10}
    partition |= {"applied_offset": 110, "next_lane_seq": 110} | of_partition_0
    other = partition | {"partition": 1, "since_offset": 0, "accepted": 5, "applied_offset": 5}
    other |= {"next_lane_seq": 5, "state": "active"}
    return Stats({"topic": "events", "totals": {"received": 21} | totals, "partitions": [partition, other]})


def test_equal_numbers_agree() -> None:
    found = reconcile(stats(), READINGS, is_archive=False, is_partial=False)

    assert (found.state, found.accepted, found.committed, found.reasons) == (AGREES, 15, 15, [])


def test_accepted_event_that_is_not_committed_differs() -> None:
    found = reconcile(stats(accepted=11), READINGS, is_archive=False, is_partial=False)

    assert found.state == DIFFERS
    assert found.reasons == ["partition 0: 11 accepted since offset 100, 10 committed"]


def test_totals_that_do_not_add_up_differ() -> None:
    wrong = stats()
    wrong.document["totals"]["received"] += 1

    found = reconcile(wrong, READINGS, is_archive=False, is_partial=False)

    assert found.state == DIFFERS
    assert "do not add up" in found.reasons[0]


@pytest.mark.parametrize(
    ("of_partition", "reading", "is_archive", "is_partial", "reason"),
    [
        ({"state": "restoring", "applied_offset": None}, READINGS[0], False, False, "is restoring"),
        ({}, Reading(4, 0, 103), False, True, "only a span was read"),
        ({}, Reading(4, 106, 109), False, False, "begins at offset 106, the gateway counts from 100"),
        ({}, Reading(4, 0, 103), True, False, "is not archived to its end yet"),
    ],
)
def test_what_cannot_be_compared_is_no_difference(
    of_partition: dict[str, Any], reading: Reading, is_archive: bool, is_partial: bool, reason: str
) -> None:
    readings = READINGS | {0: reading}

    found = reconcile(stats(**of_partition), readings, is_archive=is_archive, is_partial=is_partial)

    assert found.state == NOT_RECONCILED
    assert reason in found.reasons[0]


def test_only_what_a_partition_has_counted_is_compared() -> None:
    assert stats().counted_ranges == {0: (100, 110), 1: (0, 5)}
    assert stats(applied_offset=None).counted_ranges == {1: (0, 5)}


@pytest.mark.parametrize("content", ["no json", "{}", '{"partitions": []}'])
def test_file_without_statistics_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(content)

    with pytest.raises(PipelineError, match="no statistics of a gateway"):
        load_stats(str(tmp_path / "stats.json"))


def test_file_with_statistics_is_read(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(stats().document))

    assert load_stats(str(tmp_path / "stats.json")) == stats()
