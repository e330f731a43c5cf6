"""Claim: a column holds exactly what was sent or refuses it, and widens only where numbers stay exact."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transforms.table_types import (
    LONG_MAX,
    LONG_MIN,
    Kind,
    Type,
    chosen_type,
    fitted,
    is_held,
    json_text,
    kind_of,
    widens,
)

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ([1, 2], Type.BIGINT),
        ([1, 2.5], Type.DOUBLE),
        ([1, 2.0], Type.DOUBLE),
        ([LONG_MAX, 2.5], Type.BIGINT),
        ([LONG_MAX], Type.BIGINT),
        ([True], Type.BOOLEAN),
        (["a", [1]], Type.STRING),
        ([1, 2, "3"], Type.BIGINT),
        ([1, "2", "3"], Type.STRING),
        ([2**64], None),
        ([], None),
    ],
)
def test_new_column_has_the_type_of_most_values(values: list[Any], chosen: Type | None) -> None:
    assert chosen_type(Counter(map(kind_of, values))) is chosen


@pytest.mark.parametrize(
    ("column", "values", "is_wider"),
    [
        (Type.BIGINT, [1.5], True),
        (Type.BIGINT, [1.0, 7], False),
        (Type.BIGINT, [1.5, LONG_MAX], False),
        (Type.BIGINT, ["a"], False),
        (Type.BOOLEAN, [1.5], False),
        (Type.STRING, [1.5], False),
        (Type.DOUBLE, [1.5], False),
    ],
)
def test_only_integers_that_a_double_holds_make_way_for_decimals(
    column: Type, values: list[Any], is_wider: bool
) -> None:
    assert widens(column, Counter(map(kind_of, values))) == is_wider


@pytest.mark.parametrize(
    ("value", "column", "stored"),
    [
        (10.0, Type.BIGINT, 10),
        (10, Type.DOUBLE, 10.0),
        (2**60, Type.DOUBLE, 2.0**60),
        (LONG_MIN, Type.BIGINT, LONG_MIN),
        ([1, {"a": 2**70}], Type.STRING, '[1,{"a":1180591620717411303424}]'),
        ({}, Type.STRING, "{}"),
    ],
)
def test_value_is_stored_as_its_column_holds_it(value: Any, column: Type, stored: Any) -> None:
    found = fitted(value, column)
    assert (found, type(found)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (10.5, Type.BIGINT),
        (2**63, Type.BIGINT),
        (2**53 + 1, Type.DOUBLE),
        (True, Type.BIGINT),
        (1, Type.BOOLEAN),
        (1, Type.STRING),
        ("1", Type.BIGINT),
    ],
)
def test_value_that_does_not_fit_is_refused(value: Any, column: Type) -> None:
    with pytest.raises(ValueError, match="in a column of"):
        fitted(value, column)


@given(VALUES, st.sampled_from(Type))
def test_a_column_never_changes_a_value(value: Any, column: Type) -> None:
    if is_held(kind_of(value), column):
        found = fitted(value, column)
        assert found == (value if isinstance(value, bool | int | float | str) else json_text(value))
    else:
        with pytest.raises(ValueError, match="in a column of"):
            fitted(value, column)


@given(st.lists(VALUES, min_size=1))
def test_a_new_column_holds_a_value_of_the_batch(values: list[Any]) -> None:
    kinds = Counter(map(kind_of, values))
    chosen = chosen_type(kinds)
    if chosen is None:
        assert set(kinds) == {Kind.HUGE}
    else:
        assert any(is_held(kind, chosen) for kind in kinds)


@given(st.lists(VALUES, max_size=3))
def test_json_text_is_the_value(value: list[Any]) -> None:
    assert json.loads(json_text(value)) == value
