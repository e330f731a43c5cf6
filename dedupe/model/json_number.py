"""
The numbers of JSON documents: what is stored of one, and what a fingerprint compares. Pure and frozen.

Most numbers are Python's `int` and `float`, which orjson writes as the parser has read them. A `Number` is
one of which this is not true: an integer with a point or an exponent, or a number with more digits than a
float has. orjson refuses it, and integers beyond 64 bits, so nobody stores one by mistake: `replace_numbers`
puts a form in its place first.

docs/adr/0023-ids-and-numbers.md has the rules and the reasons; tests/unit/dedupe/model/test_golden_vectors.py
has golden vectors.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

NUMBER_CHARS_MAX = 1_000
"""The limit of a number's text: Spark's parser refuses longer ones, and with them the whole event."""

EXACT_CHARS = 16
"""A number of so many characters has at most 15 digits beside its point or exponent; a float keeps 15."""

SMALLEST = 1e-290
"""Below, floats have fewer digits; the smallest of them is 5e-324."""

LARGEST = 2.0**53
"""Up to here, floats have each integer."""

INTEGERS = range(-(2**63), 2**64)
"""The integers that orjson reads and writes as such."""

INTEGER_DIGITS_MAX = 20

EXPONENT_DIGITS_MAX = 18

FLOATS_KEPT = 4_096
"""The numbers with a point that are remembered, of at most EXACT_CHARS characters: 0.5 MB."""

Form: TypeAlias = "int | float | orjson.Fragment | Number | None"


class Parts(NamedTuple):
    """The value of a number, spelled in one way: digits * 10 ** exponent, without zeros at either end."""

    sign: str  # "-", or ""
    digits: str  # "" for zero
    exponent: int


FLOAT_DIGITS = 17
"""The digits that tell any two floats apart."""

LEVELS_MAX = 48
"""
The limit of a document's levels around a number that is written as a Fragment: after one, orjson 3.13
reserves 64 bytes, and writes one for each closing bracket without a check.
"""


class Number:
    """A number that is not stored, or not compared, as orjson writes it."""

    __slots__ = ("_is_exact", "is_lost", "nearest", "text")

    def __init__(self, text: str) -> None:
        """`text`: as sent, in JSON's grammar."""
        value = float(text)
        self.text = text
        self.nearest = value if value - value == 0 else None
        """The float that orjson reads, and that was stored and compared before; None if it refuses."""
        self.is_lost = self.nearest is None or len(text) > NUMBER_CHARS_MAX
        """Whether it is stored as null: no float is near it, or it is longer than allowed."""
        self._is_exact = len(text) <= EXACT_CHARS and SMALLEST < abs(value) < LARGEST

    @property
    def integer(self) -> int | None:
        """Its value if it is an integer of 64 bits."""
        decimal = self.decimal(INTEGER_DIGITS_MAX)
        value = None if decimal is None else int(decimal)
        return value if value is not None and value in INTEGERS else None

    def decimal(self, digits_max: int) -> str | None:
        """Return its decimal text if it is an integer of at most `digits_max` digits, otherwise None."""
        sign, digits, exponent = parts_of(self.text)
        if not digits:
            return "0"
        if exponent < 0 or len(digits) + exponent > digits_max:
            return None
        return f"{sign}{digits}{'0' * exponent}"

    def stored(self) -> Form:
        """Return what is stored: as sent, digit for digit, unless a float is equal and has all digits."""
        nearest = self.nearest
        if self._is_exact:
            return nearest
        if self.is_lost:
            return None
        is_whole = _digits_as_sent(self.text) <= FLOAT_DIGITS
        is_whole = is_whole and parts_of(repr(nearest)) == parts_of(self.text)
        return nearest if is_whole else orjson.Fragment(self.text)

    def compared(self) -> Form:
        """Return what stands in a fingerprint's content: equal for equal numbers, in any spelling."""
        if self.is_lost:
            return None
        if self._is_exact and self.nearest is not None and self.nearest.is_integer():
            return int(self.nearest)
        if (integer := self.integer) is not None:
            return integer
        parts = parts_of(self.text)
        if parts == parts_of(repr(self.nearest)):
            return self.nearest
        return orjson.Fragment(f"{parts.sign}{parts.digits}e{parts.exponent}")

    def as_sent(self) -> "Number":
        """Return the number itself, which orjson refuses."""
        return self

    def compared_before(self) -> Form:
        """Return what stood in a fingerprint's content before equal numbers were equal."""
        return self.nearest


class Place(NamedTuple):
    """A number within a document."""

    node: Any  # a dict or a list
    at: Any  # the name or the index in the node
    number: Number


class Floats(dict[str, float | Number]):
    """The numbers with a point or an exponent by their texts, as a hook of the parser; some are kept."""

    def __missing__(self, text: str) -> "float | Number":
        """Return a number that is not kept yet."""
        if len(text) > EXACT_CHARS:
            return _long(text)
        value = float(text)
        found: float | Number = value
        if value.is_integer() or not SMALLEST < abs(value) < float("inf"):
            found = Number(text)
        if len(self) >= FLOATS_KEPT:
            self.clear()
        self[text] = found
        return found


def _long(text: str) -> float | Number:
    """Return a number with more than EXACT_CHARS characters."""
    is_short = len(text) <= NUMBER_CHARS_MAX
    if is_short and (len(text) <= FLOAT_DIGITS or _digits_as_sent(text) <= FLOAT_DIGITS):
        value = float(text)
        if value - value == 0 and not value.is_integer():
            shortest = repr(value)
            if shortest == text or parts_of(shortest) == parts_of(text):
                return value
    return Number(text)


def parts_of(text: str) -> Parts:
    """Return the value of a JSON number. An exponent of more than EXPONENT_DIGITS_MAX digits is cut off."""
    mantissa, _, exponent_text = text.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    stripped = digits.rstrip("0")
    if not stripped:
        return Parts("", "", 0)
    is_negative = exponent_text.startswith("-")
    power = int(exponent_text.lstrip("+-").lstrip("0")[:EXPONENT_DIGITS_MAX] or "0")
    exponent = (-power if is_negative else power) - len(fraction) + len(digits) - len(stripped)
    return Parts(sign, stripped, exponent)


def as_number(value: object) -> Number | None:
    """Return a value that orjson refuses as a Number; None for all others."""
    if type(value) is int:
        return None if value in INTEGERS else Number(str(value))
    return value if type(value) is Number else None


def replace_numbers(document: Any, form: Callable[[Number], Form]) -> list[Place]:
    """
    Put a form in the place of each Number, and of each integer beyond 64 bits.

    Args:
        document: a dict or a list; it is changed.
        form: of Number.

    Returns:
        The places, which `fill` gives other forms.

    Raises:
        TypeError: the document has more than LEVELS_MAX levels, and is unchanged.
    """
    places: list[Place] = []
    stack: list[tuple[int, Any]] = [(1, document)]
    while stack:
        level, node = stack.pop()
        if level > LEVELS_MAX:
            raise TypeError(f"more than {LEVELS_MAX} levels")
        for at, child in node.items() if type(node) is dict else enumerate(node):
            if type(child) is dict or type(child) is list:
                stack.append((level + 1, child))
            elif (number := as_number(child)) is not None:
                places.append(Place(node, at, number))
    fill(places, form)
    return places


def fill(places: Sequence[Place], form: Callable[[Number], Form]) -> None:
    """Put a form in the place of each number."""
    for node, at, number in places:
        node[at] = form(number)


def _digits_as_sent(text: str) -> int:
    mantissa = text.lower().partition("e")[0]
    return len(mantissa.replace(".", "").lstrip("-").lstrip("0"))
