"""Claim: tables and columns follow from events alone, within limits, and drift counts what did not fit."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transforms.table_layout import (
    CLASH,
    NO_COLUMN,
    Drift,
    Layout,
    SeenTable,
    SeenTables,
    next_layout,
)
from pipeline.transforms.table_rows import Cell
from pipeline.transforms.table_types import Kind, Type

PLACE = (0, 0)
VALUES = st.booleans() | st.integers(-(2**65), 2**65) | st.floats(-10, 10) | st.text(max_size=2)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "tracks"]), st.dictionaries(st.sampled_from("xyz"), VALUES)),
    max_size=12,
)


def cells(values: dict[str, Any]) -> list[Cell]:
    return [Cell(name, f"properties.{name}", value) for name, value in values.items()]


def seen_of(*events: dict[str, Any]) -> SeenTable:
    seen = SeenTable(PLACE)
    for offset, event in enumerate(events):
        seen.see((0, offset), cells(event), 500)
    return seen


def test_columns_are_added_in_the_order_of_their_coming_and_the_rest_is_drift() -> None:
    seen = seen_of({"b": 1}, {"a": "x", "b": 2}, {"c": True}, {"c": False})

    following = next_layout("t", {"z": Type.STRING}, seen, columns_max=3)

    assert following.layout == {"z": Type.STRING, "b": Type.BIGINT, "a": Type.STRING}
    (drift,) = following.drift
    assert drift == Drift("t", "c", None, f"boolean: {NO_COLUMN}", 2, 0, 2)
    assert drift.sentence == (
        "2 values of t.c, which is no column, are in _rescued: boolean: the table has its limit of columns, "
        "one is partition 0 offset 2"
    )


def test_column_widens_where_its_stored_numbers_allow_and_else_drifts() -> None:
    before: Layout = {"n": Type.BIGINT, "m": Type.BIGINT}
    seen = seen_of({"n": 1, "m": 1}, {"n": 1.5, "m": 1.5}, {"n": "x"})

    following = next_layout("t", before, seen, columns_max=500, may_widen=["n"])

    assert following.layout == {"n": Type.DOUBLE, "m": Type.BIGINT}
    assert following.widened == ("n",)
    assert sorted(found[1:5] for found in following.drift) == [
        ("m", "bigint", Kind.REAL, 1),
        ("n", "double", Kind.STRING, 1),
    ]


def test_two_properties_of_one_column_are_a_clash() -> None:
    seen = SeenTable(PLACE)
    seen.see((3, 4), [*cells({"order_id": 1}), Cell("order_id", "properties.orderId", 2)], 500)

    (drift,) = next_layout("t", {}, seen, columns_max=500).drift

    assert drift == ("t", "order_id", "bigint", CLASH, 1, 3, 4)


@pytest.mark.parametrize("tasks", [1, 3])
def test_first_events_get_the_tables_and_existing_ones_need_no_room(tasks: int) -> None:
    events = [(f"e{n}", (n % 2, n)) for n in range(10)] * 2 + [("old", (0, 99)), ("tracks", (0, 98))]
    seen = SeenTables({"old"}, tables_max=4)
    for task in range(tasks):
        part = SeenTables({"old"}, tables_max=4)
        for table, place in events[task::tasks]:
            part.see(table, place, [])
        seen.add_json(part.to_json())

    seen.admit()

    assert len(seen.tables) == 3 + 2
    assert {"old", "tracks", "e0"} <= set(seen.tables)
    assert seen.left_out >= sum(1 for table, _ in events if table not in seen.tables)


@given(EVENTS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_tasks_and_their_order_make_no_difference(
    events: list[tuple[str, dict[str, Any]]], tasks: int, chance: random.Random
) -> None:
    def merged(parts: list[list[tuple[int, tuple[str, dict[str, Any]]]]]) -> SeenTables:
        found = SeenTables(())
        for part in parts:
            task = SeenTables(())
            for offset, (table, values) in part:
                task.see(table, (0, offset), cells(values))
            found.add_json(task.to_json())
        return found

    numbered = list(enumerate(events))
    parts = [numbered[n::tasks] for n in range(tasks)]
    chance.shuffle(parts)
    one, many = merged([numbered]), merged(parts)

    assert one.tables == many.tables
    for table, seen in one.tables.items():
        whole, parted = (next_layout(table, {}, of, columns_max=2) for of in (seen, many.tables[table]))
        assert whole.layout.keys() == parted.layout.keys()
        assert sorted(map(str, whole.drift)) == sorted(map(str, parted.drift))


def test_counting_of_columns_is_bounded() -> None:
    seen = SeenTable(PLACE)
    seen.see(PLACE, cells({f"c{n}": n for n in range(100)}), 5)
    assert len(seen.columns) == 20
