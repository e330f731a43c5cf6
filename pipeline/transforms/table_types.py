"""
Types of columns: what a value needs, what a column holds, and how columns widen. Pure.

A column has one of four types. It widens from bigint to double where every number stays exact; whatever does
not fit is left to `_rescued`.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import orjson

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
EXACT_MAX = 2**53
"""A double holds every integer up to it."""


class Type(StrEnum):
    """The type of a column, as SQL names it."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    DOUBLE = "double"
    STRING = "string"


class Kind(StrEnum):
    """What one value is, for the choice of a type."""

    BOOLEAN = "boolean"
    INTEGER = "integer"  # a double holds it exactly
    LONG = "long"  # needs all 64 bits
    WHOLE = "whole number with a point"  # 10.0, which bigint holds, too
    REAL = "number with decimals"
    STRING = "string"  # also a list, or an object without fields, as JSON text
    HUGE = "integer beyond 64 bits"  # no column holds it


_FAMILIES = {
    Type.BOOLEAN: (Kind.BOOLEAN,),
    Type.BIGINT: (Kind.INTEGER, Kind.LONG, Kind.WHOLE, Kind.REAL),
    Type.STRING: (Kind.STRING,),
}
_HELD = {
    Type.BOOLEAN: frozenset({Kind.BOOLEAN}),
    Type.BIGINT: frozenset({Kind.INTEGER, Kind.LONG, Kind.WHOLE}),
    Type.DOUBLE: frozenset({Kind.INTEGER, Kind.WHOLE, Kind.REAL}),
    Type.STRING: frozenset({Kind.STRING}),
}


def kind_of(value: Any) -> Kind:
    """Return the kind of a JSON value that is not null."""
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, int):
        if is_exact(value):
            return Kind.INTEGER
        return Kind.LONG if LONG_MIN <= value <= LONG_MAX else Kind.HUGE
    if isinstance(value, float):
        return Kind.WHOLE if value.is_integer() and abs(value) <= EXACT_MAX else Kind.REAL
    return Kind.STRING


def is_exact(integer: int) -> bool:
    """Whether a double holds an integer of 64 bits exactly; of those beyond 2**53 some."""
    return LONG_MIN <= integer <= LONG_MAX and int(float(integer)) == integer


def chosen_type(seen: Mapping[Kind, int]) -> Type | None:
    """Return the type of a new column for values of these kinds, counted; None if no column holds them."""
    counts = {family: sum(seen.get(kind, 0) for kind in kinds) for family, kinds in _FAMILIES.items()}
    best = max(counts, key=lambda family: counts[family])
    if not counts[best]:
        return None
    if best is Type.BIGINT and _needs_double(seen, {Kind.REAL, Kind.WHOLE}):
        return Type.DOUBLE
    return best


def widens(column: Type, seen: Mapping[Kind, int]) -> bool:
    """Whether a bigint column should become double, if a double holds all that is in it."""
    return column is Type.BIGINT and _needs_double(seen, {Kind.REAL})


def is_held(kind: Kind, column: Type) -> bool:
    """Whether a column of this type holds values of this kind."""
    return kind in _HELD[column]


def fitted(value: Any, column: Type) -> Any:
    """
    Return a value as its column stores it.

    Raises:
        ValueError: the column does not hold it.
    """
    if not is_held(kind_of(value), column):
        raise ValueError(f"a {kind_of(value)} in a column of {column}")
    if column is Type.BIGINT:
        return int(value)
    if column is Type.DOUBLE:
        return float(value)
    if column is Type.STRING and not isinstance(value, str):
        return json_text(value)
    return value


def json_text(value: Any) -> str:
    """Return a value as JSON text, with integers of any size."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _needs_double(seen: Mapping[Kind, int], kinds: set[Kind]) -> bool:
    present = {kind for kind, count in seen.items() if count}
    return bool(present & kinds) and Kind.LONG not in present
