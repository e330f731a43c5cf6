"""Claim: each trait has the value of the last call that named it, in whatever order calls are read."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.transforms.table_latest import latest_rows
from pipeline.transforms.table_rows import Entry, Record, read_entry
from pipeline.transforms.table_types import Type

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAYOUT = {"plan": Type.STRING, "age": Type.BIGINT}
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["u", "v"]),
        st.dictionaries(
            st.sampled_from(["plan", "age", "other"]),
            st.none() | st.integers(0, 3) | st.sampled_from(["free", "paid"]),
        ),
    ),
    max_size=8,
)


def call(number: int, user: object, traits: object, *, source: str = "web") -> Entry:
    event = {"type": "identify", "userId": user, "traits": traits}
    record = Record(
        0, number, NOON + timedelta(seconds=number), source, b"id", json.dumps(event).encode(), None
    )
    return read_entry(record)


def rows_of(calls: Iterable[Entry]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["source"], row["id"]): row for row in latest_rows(calls, "users", LAYOUT)}


def test_trait_stays_until_another_call_names_it() -> None:
    calls = [call(0, "u", {"plan": "free", "age": 7}), call(1, "u", {"plan": "paid"})]

    (row,) = latest_rows(calls, "users", LAYOUT)

    assert (row["plan"], row["age"], row["received_at"]) == ("paid", 7, NOON + timedelta(seconds=1))


def test_null_deletes_a_trait_and_what_does_not_fit_is_rescued_until_it_does() -> None:
    calls = [call(0, "u", {"plan": "free", "age": "old", "other": 1}), call(1, "u", {"plan": None})]

    (row,) = latest_rows(calls, "users", LAYOUT)
    (later,) = latest_rows([*calls, call(2, "u", {"age": 8})], "users", LAYOUT)

    assert ("plan" in row, dict(row["_rescued"])) == (False, {"age": '"old"', "other": "1"})
    assert (later["age"], dict(later["_rescued"])) == (8, {"other": "1"})


def test_calls_without_a_user_make_no_row_and_sources_are_apart() -> None:
    calls = [
        call(0, " ", {}),
        call(1, None, {"age": 1}),
        call(2, 7, {"age": 2}),
        call(3, 7, {}, source="app"),
    ]
    assert set(rows_of(calls)) == {("web", "7"), ("app", "7")}


@given(CALLS, st.randoms(use_true_random=False))
def test_order_of_reading_makes_no_difference(calls: list[tuple[str, dict[str, Any]]], chance: Any) -> None:
    entries = [call(number, user, traits) for number, (user, traits) in enumerate(calls)]
    expected: dict[str, dict[str, Any]] = {}
    for user, traits in calls:
        expected.setdefault(user, {}).update(traits)
    chance.shuffle(entries)

    found = rows_of(entries)

    assert {user for _, user in found} == set(expected)
    for (_, user), row in found.items():
        rescued = {name: json.loads(text) for name, text in row["_rescued"]}
        held = {name: row[name] for name in LAYOUT if name in row}
        assert held | rescued == {name: v for name, v in expected[user].items() if v is not None}
        assert {column for column, _ in row["_positions"]} == set(expected[user])
