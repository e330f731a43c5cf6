"""Claim: each event and property has one name, which every warehouse takes, and never one of the jobs'."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transforms.table_names import (
    FIXED_COLUMNS,
    NAME_CHARS_MAX,
    RESERVED_WORDS,
    STANDARD_TABLES,
    column_of,
    table_of,
)

IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
FIELDS = st.sampled_from(["properties", "traits", "context"])
PATHS = st.lists(st.text(max_size=80), min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("event", "table"),
    [
        ("Order Completed", "order_completed"),
        ("orderCompleted", "order_completed"),
        ("order_completed", "order_completed"),
        ("  Order -- Completed! ", "order_completed"),
        ("HTTPRequest v2", "http_request_v2"),
        ("Größe gewählt", "grosse_gewahlt"),
        ("Tracks", "event_tracks"),
        ("users", "event_users"),
        ("select", "_select"),
        ("2nd order", "_2nd_order"),
    ],
)
def test_table_has_the_words_of_its_event(event: str, table: str) -> None:
    assert table_of(event) == table


@pytest.mark.parametrize(
    ("field", "path", "column"),
    [
        ("properties", ("orderId",), "order_id"),
        ("properties", ("Order ID",), "order_id"),
        ("properties", ("address", "zipCode"), "address_zip_code"),
        ("properties", ("id",), "property_id"),
        ("traits", ("name",), "trait_name"),
        ("properties", ("context_ip",), "property_context_ip"),
        ("properties", ("user",), "_user"),
        ("context", ("library", "name"), "context_library_name"),
        ("context", ("user",), "context_user"),
    ],
)
def test_column_has_the_words_of_its_property(field: str, path: tuple[str, ...], column: str) -> None:
    assert column_of(field, path) == column


def test_names_in_other_scripts_and_long_ones_are_told_apart_by_a_hash() -> None:
    for one, other in [
        ("注文完了", "注文取消"),
        ("купил A", "продал A"),
        ("!!!", "???"),
        ("a" * 70, "a" * 71),
    ]:
        assert table_of(one) != table_of(other)
        assert column_of("properties", (one,)) != column_of("properties", (other,))
    assert re.fullmatch(r"event_[0-9a-f]{8}", table_of("注文完了"))
    assert re.fullmatch(r"a_[0-9a-f]{8}", table_of("купил A"))
    assert table_of("Long " * 20) == table_of("long_" * 20)


@given(st.text())
def test_table_of_any_text_is_an_identifier_and_no_standard_table(event: str) -> None:
    table = table_of(event)
    assert IDENTIFIER.fullmatch(table)
    assert len(table) <= NAME_CHARS_MAX
    assert table not in STANDARD_TABLES | RESERVED_WORDS


@given(FIELDS, PATHS)
def test_column_of_any_path_is_an_identifier_and_no_fixed_column(field: str, path: tuple[str, ...]) -> None:
    column = column_of(field, path)
    assert IDENTIFIER.fullmatch(column)
    assert len(column) <= NAME_CHARS_MAX
    assert column not in FIXED_COLUMNS | RESERVED_WORDS | {"_rescued", "_positions"}
    assert column.startswith("context_") == (field == "context")
