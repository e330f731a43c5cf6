"""Claim: the statistics are what their schema says, and every event is in exactly one of their counters."""

from typing import Any

import jsonschema
import pytest

from app.admin.stats import SOURCES_TOLD, answers_of, refusals_of
from app.http.refusal_counts import RefusalCounts
from dedupe.decide.admission import Admission
from dedupe.metrics import SOURCES_MAX, AnswerCounts, Tally
from dedupe.model.errors import DeadlineExceededError, LaneSaturatedError, OutcomeUnknownError
from dedupe.model.types import Event
from tests.sim.world import World
from tests.unit.admin.admin_port import admin_of, client_of

PARTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")


def events_of(source: str, count: int, reason: str | None = None) -> list[Event]:
    return [
        Event(bytes(16), 0, bytes(8), source, f"{source}-{i}", b"{}", reason=reason) for i in range(count)
    ]


async def stats_and_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    async with client_of(admin_of()) as client:
        stats = (await client.get("/admin/v1/stats")).json()
        answer = await client.get("/admin/v1/stats.schema.json")
        assert answer.headers["Content-Type"] == "application/schema+json"
        return stats, answer.json()


async def test_statistics_are_what_the_schema_says() -> None:
    stats, schema = await stats_and_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(stats, schema)
    assert {partition["state"] for partition in stats["partitions"]} == {"unassigned"}


@pytest.mark.parametrize("unreachable", [{1}, {0, 1}], ids=["one partition", "the clean topic"])
async def test_statistics_are_what_the_schema_says_while_lanes_fail_and_others_restore(
    unreachable: set[int],
) -> None:
    world = World()
    for partition in unreachable:
        world.log.partition("events", partition).outage_calls = 10**9
    router = world.boot()
    async with client_of(admin_of(router)) as client:
        stats: dict[str, Any] = {}
        while not stats or not told_of_all(stats, unreachable):
            stats = (await client.get("/admin/v1/stats")).json()
            schema = (await client.get("/admin/v1/stats.schema.json")).json()
            jsonschema.validate(stats, schema)
    await world.crash()


def told_of_all(stats: dict[str, Any], unreachable: set[int]) -> bool:
    """Return whether all that is unreachable has failed, and all else restores until the others can."""
    return all(
        part["last_error"] is not None if part["partition"] in unreachable else part["state"] == "restoring"
        for part in stats["partitions"]
    ) and all(part["state"] == "restoring" for part in stats["quarantine"])


async def test_statistics_are_what_the_schema_says_while_a_replay_goes_on() -> None:
    world = World()
    await world.start()
    for number in range(100):
        await world.deliver([world.event(f"{number}-{each}") for each in range(7)])
    await world.crash()
    for partition in (0, 1):
        world.disk.discard(world.index_identity(partition))
    router, told = world.boot(), []
    async with client_of(admin_of(router)) as client:
        schema = (await client.get("/admin/v1/stats.schema.json")).json()
        while not router.is_ready:
            stats = (await client.get("/admin/v1/stats")).json()
            jsonschema.validate(stats, schema)
            told += [part["restore"] for part in stats["partitions"]]
    await world.crash()
    assert any(restore is not None and restore["applied_offset"] > 0 for restore in told)


async def test_schema_admits_no_field_that_it_does_not_describe() -> None:
    stats, schema = await stats_and_schema()
    for place in (stats, stats["totals"], stats["partitions"][0], stats["disk"]):
        place["surprise"] = 1
        with pytest.raises(jsonschema.ValidationError, match="surprise"):
            jsonschema.validate(stats, schema)
        del place["surprise"]
    del stats["partitions"][0]["in_doubt"]
    with pytest.raises(jsonschema.ValidationError, match="in_doubt"):
        jsonschema.validate(stats, schema)


def test_each_event_is_in_one_counter_of_its_source_and_of_the_totals() -> None:
    counts = AnswerCounts()
    counts.note(events_of("web", 2), [], [Admission.NEW, Admission.NEW])
    admissions = [Admission.NEW, Admission.DUPLICATE, Admission.CONFLICT, Admission.FENCED, Admission.GAP]
    counts.note(events_of("app", 5), events_of("app", 1, "type_invalid"), admissions)
    counts.note([], [], [])
    counts.note_failure(events_of("web", 3), LaneSaturatedError.code, is_untaken=True)
    counts.note_failure(events_of("app", 4), OutcomeUnknownError.code, is_untaken=False)
    counts.note_failure(events_of("app", 1), DeadlineExceededError.code, is_untaken=False)
    told = answers_of(counts)
    assert told["totals"] == {
        "received": 16,
        "accepted": 3,
        "duplicates": 1,
        "conflicts": 1,
        "rejected": 2,
        "unknown": 5,
        "refused": 4,
    }
    assert [(source["source"], source["received"]) for source in told["sources"]] == [("app", 11), ("web", 5)]
    assert told["rejected_reasons"] == {"type_invalid": 1, "session_fenced": 1}
    assert (told["refused_codes"], told["unknown_codes"]) == (
        {"overloaded": 3},
        {"outcome_unknown": 4, "deadline_exceeded": 1},
    )


def test_reasons_of_rejections_and_conflicts_are_told_by_source() -> None:
    counts = AnswerCounts()
    counts.note(events_of("web", 1), [], [Admission.NEW])
    counts.note(events_of("app", 2), events_of("app", 1, "type_invalid"), [Admission.CONFLICT] * 2)
    counts.note([], events_of("bad", 3, "not_an_object"), [])
    told = {source["source"]: source["rejected_reasons"] for source in answers_of(counts)["sources"]}
    assert told == {"web": {}, "app": {"conflict": 2, "type_invalid": 1}, "bad": {"not_an_object": 3}}


def test_sources_that_came_first_keep_their_counters_and_all_others_are_one() -> None:
    counts = AnswerCounts()
    for number in range(SOURCES_MAX + 20):
        counts.note(events_of(f"source-{number}", 1, "type_invalid"), [], [Admission.NEW])
        counts.note([], events_of(f"source-{number}", 2, "type_invalid"), [])
    first, others = counts.sources.first(3)
    assert [(name, of.tally.rejected, of.reasons) for name, of in first] == [
        (f"source-{number}", 2, {"type_invalid": 2}) for number in range(3)
    ]
    left = SOURCES_MAX + 17
    assert (others.tally.accepted, others.reasons) == (left, {"type_invalid": 2 * left})


async def test_refused_requests_are_told_by_source_code_and_library() -> None:
    refusals = RefusalCounts()
    for _ in range(3):
        refusals.note("quota_exceeded", 429, "web", "browser", is_before_events=True)
    refusals.note("disk_full", 503, "web", "ios", is_before_events=False)
    refusals.note("invalid_write_key", 401, None, "other", is_before_events=True)
    told = refusals_of(refusals)
    assert told == {
        "requests": 5,
        "before_events": 4,
        "codes": {"quota_exceeded": 3, "disk_full": 1, "invalid_write_key": 1},
        "sources": [
            {
                "source": "web",
                "requests": 4,
                "codes": {"quota_exceeded": 3, "disk_full": 1},
                "libraries": {"browser": 3, "ios": 1},
            },
            {"source": None, "requests": 1, "codes": {"invalid_write_key": 1}, "libraries": {"other": 1}},
        ],
    }
    stats, schema = await stats_and_schema()
    jsonschema.validate(stats | {"refused_requests": told}, schema)


@pytest.mark.regression("Statistics failed when a new source came while they were read.")
def test_totals_are_read_in_another_thread_while_sources_come(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = AnswerCounts()
    for source in ("web", "app"):
        counts.note(events_of(source, 1), [], [Admission.NEW])
    add = Tally.__add__

    def add_meanwhile(first: Tally, second: Tally) -> Tally:
        counts.sources.of("a source that comes just now")
        return add(first, second)

    monkeypatch.setattr(Tally, "__add__", add_meanwhile)
    assert counts.totals.accepted == 2


def test_sources_are_bounded_and_add_up_to_the_totals() -> None:
    counts = AnswerCounts()
    for number in range(SOURCES_MAX + 100):
        counts.note(events_of(f"source-{number}", 1), [], [Admission.NEW])
    counts.note(events_of("source-7", 2), [], [Admission.DUPLICATE, Admission.NEW])
    told = answers_of(counts)
    assert len(told["sources"]) == SOURCES_TOLD
    assert told["sources"][0]["source"] == "source-7"
    for part in ("received", *PARTS):
        listed = sum(source[part] for source in told["sources"])
        assert listed + told["other_sources"][part] == told["totals"][part]
    assert told["totals"]["received"] == SOURCES_MAX + 102
