"""
The numbers of JSON documents: what is stored of one, and what a fingerprint compares. Pure and frozen.

Most numbers are Python's `int` and `float`, which orjson writes as the parser has read them. A `Number` is
one of which this is not true: an integer with a point or an exponent, or a number with more digits than a
float has. orjson refuses it, and integers beyond 64 bits, so nobody stores one by mistake: orjson.dumps needs
the form that it is to write, after a NumberReading.

docs/adr/0023-ids-and-numbers.md has the rules and the reasons; tests/unit/dedupe/model/test_golden_vectors.py
has golden vectors.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec
import orjson
from msgspec import UNSET

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

WORK_AT_ONCE = 256 * 1024
"""The work on the numbers of a document, in bytes of parsing, after which others run: 4 ms."""

READ_WORK, SHORT_WORK, VALUE_WORK = 256, 32, 8
"""The work of reading a number with more than EXACT_CHARS characters, or any by itself; of reading a shorter
one, or writing one; and of finding out that a value is none."""

LEVELS_MAX = 48
"""
The limit of a document's levels around a number that is written as a Fragment: after one, orjson 3.13
reserves 64 bytes, and writes one for each closing bracket without a check.
"""


class Number(msgspec.Struct, gc=False):
    """
    A number that is not stored, or not compared, as orjson writes it.

    Its forms are UNSET, which orjson refuses, until it is read.
    """

    text: str
    """As sent, in JSON's grammar."""
    nearest: Any = UNSET
    """The float that orjson reads, and that was stored and compared before; None if it refuses."""
    stored: Any = UNSET
    """As sent, digit for digit, unless a float is equal and has all digits; None if it is lost: no float is
    near it, or it is longer than allowed."""
    compared: Any = UNSET
    """What stands in a fingerprint's content: equal for equal numbers, in any spelling."""

    def read(self) -> "Number":
        """Set the forms, once."""
        if self.stored is not UNSET:
            return self
        text = self.text
        value = float(text)
        self.nearest = value if value - value == 0 else None
        if len(text) <= EXACT_CHARS and SMALLEST < abs(value) < LARGEST:
            self.stored = value
            self.compared = int(value) if value.is_integer() else value
        elif self.nearest is None or len(text) > NUMBER_CHARS_MAX:
            self.stored = self.compared = None
        else:
            self._read_digits(value)
        return self

    def _read_digits(self, value: float) -> None:
        """Set the forms of a number of which each digit may count; `value`: the float near it."""
        parts = sign, digits, exponent = parts_of(self.text)
        is_near = len(digits) <= FLOAT_DIGITS and parts == parts_of(repr(value))
        is_whole = is_near and _digits_as_sent(self.text) <= FLOAT_DIGITS
        self.stored = value if is_whole else orjson.Fragment(self.text)
        integer = _integer_of(parts)
        if integer is not None and integer in INTEGERS:
            self.compared = integer
        else:
            self.compared = value if is_near else orjson.Fragment(f"{sign}{digits}e{exponent}")

    @property
    def integer(self) -> int | None:
        """Its value if it is an integer of 64 bits."""
        value = _integer_of(parts_of(self.text))
        return value if value is not None and value in INTEGERS else None

    def decimal(self, digits_max: int) -> str | None:
        """Return its decimal text if it is an integer of at most `digits_max` digits, otherwise None."""
        sign, digits, exponent = parts_of(self.text)
        if not digits:
            return "0"
        if exponent < 0 or len(digits) + exponent > digits_max:
            return None
        return f"{sign}{digits}{'0' * exponent}"


STORED, COMPARED, NEAREST = map(attrgetter, ("stored", "compared", "nearest"))
"""Forms of a Number: what orjson.dumps takes as `default`."""


class ManyNumbersError(Exception):
    """A document has more numbers than are read at once."""


class Floats(dict[str, float | Number]):
    """The numbers with a point or an exponent by their texts, as a hook of the parser; some are kept."""

    work_left = WORK_AT_ONCE
    """Of the present document; set before it is parsed."""

    def __missing__(self, text: str) -> "float | Number":
        """Return a number that is not kept yet. Raises ManyNumbersError."""
        if self.work_left <= 0:
            raise ManyNumbersError
        if len(text) > EXACT_CHARS:
            self.work_left -= READ_WORK
            return _long(text)
        self.work_left -= SHORT_WORK
        value = float(text)
        found: float | Number = value
        if value.is_integer() or not SMALLEST < abs(value) < float("inf"):
            found = Number(text).read()
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
    return Number(text).read()


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


def _integer_of(parts: Parts) -> int | None:
    """Return a value if it is an integer of at most INTEGER_DIGITS_MAX digits."""
    sign, digits, exponent = parts
    if not digits:
        return 0
    if exponent < 0 or len(digits) + exponent > INTEGER_DIGITS_MAX:
        return None
    return int(f"{sign}{digits}{'0' * exponent}")


def as_number(value: object) -> Number | None:
    """Return a value that orjson refuses as a Number; None for all others."""
    if type(value) is int:
        return None if value in INTEGERS else Number(str(value))
    return value if type(value) is Number else None


def integer_of(value: object) -> int | None:
    """Return the value of an integer in any spelling, such as `7.0`; None for all else."""
    if type(value) is int:
        return value
    return value.integer if type(value) is Number else None


class NumberReading:
    """Reads the numbers of one document, step by step."""

    def __init__(self, document: Any, form: "Callable[[Number], Form] | None" = None) -> None:
        """
        Begin the document.

        Args:
            document: a dict or a list, which gets a Number in the place of each integer beyond 64 bits.
            form: what is put in the place of each Number instead.
        """
        self.is_lossy = False
        """Whether a number is stored as null."""
        self.has_numbers = False
        """Whether there is a Number."""
        self.is_too_deep = False
        """Whether a Number may not be written: the document has more than LEVELS_MAX levels."""
        self.work = 0
        """What was done so far, in bytes of parsing."""
        self._form = form
        self._steps = self._read(document)

    def step(self) -> bool:
        """Read numbers, for WORK_AT_ONCE or a little more; return whether some are left."""
        return next(self._steps, False)

    def all(self) -> "NumberReading":
        """Read all numbers."""
        while self.step():
            pass
        return self

    def _read(self, document: Any) -> Iterator[bool]:
        form, step_end = self._form, WORK_AT_ONCE
        stack: list[tuple[int, Any]] = [(1, document)]
        while stack:
            level, node = stack.pop()
            self.is_too_deep |= level > LEVELS_MAX
            self.work += VALUE_WORK  # of a container, which may be empty
            if self.work >= step_end:
                yield True
                step_end = self.work + WORK_AT_ONCE
            for at, child in node.items() if type(node) is dict else enumerate(node):
                if type(child) is dict or type(child) is list:
                    stack.append((level + 1, child))
                elif (number := as_number(child)) is not None:
                    self._take(number)
                    node[at] = number if form is None else form(number)
                self.work += VALUE_WORK
                if self.work >= step_end:
                    yield True
                    step_end = self.work + WORK_AT_ONCE

    def _take(self, number: Number) -> None:
        if number.stored is UNSET:
            number.read()
            self.work += READ_WORK
        self.work += SHORT_WORK
        self.has_numbers = True
        self.is_lossy |= number.stored is None


def _digits_as_sent(text: str) -> int:
    mantissa = text.lower().partition("e")[0]
    return len(mantissa.replace(".", "").lstrip("-").lstrip("0"))
