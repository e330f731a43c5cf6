"""
Claim: no digit of a number is lost, equal numbers are equal in any spelling, others are not, and what no
float is near is stored as null.
"""

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.identity import canonical_content
from dedupe.model.json_document import read_document, read_stored
from dedupe.model.json_number import (
    FLOATS_KEPT,
    LEVELS_MAX,
    NUMBER_CHARS_MAX,
    WORK_AT_ONCE,
    Floats,
    Number,
    NumberReading,
)

DIGITS = st.text("0123456789", min_size=1, max_size=40)
LARGE = Decimal(2) ** 1024 - Decimal(2) ** 970  # what is not smaller is no float


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """Draw a number in JSON's grammar."""
    whole = draw(DIGITS).lstrip("0") or "0"
    text = draw(st.sampled_from(["", "-"])) + whole
    if draw(st.booleans()):
        text += "." + draw(DIGITS)
    if draw(st.booleans()):
        text += (
            draw(st.sampled_from("eE"))
            + draw(st.sampled_from(["", "+", "-"]))
            + draw(
                st.sampled_from(
                    ["0", "1", "2", "02", "15", "16", "19", "100", "290", "300", "310", "400", "99999"]
                )
            )
        )
    return text


@st.composite
def respelled(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a number and another spelling of it."""
    text = draw(numbers())
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    sign = "-" if text.startswith("-") else ""
    digits, power = whole + fraction, int(exponent or "0") - len(fraction)
    zeros = draw(st.integers(0, 5))
    digits, power = digits + "0" * zeros, power - zeros
    point = draw(st.integers(1, len(digits)))
    power += len(digits) - point
    other = sign + (digits[:point].lstrip("0") or "0")
    if digits[point:]:
        other += "." + digits[point:]
    if power or draw(st.booleans()):
        other += draw(st.sampled_from("eE")) + ("-" if power < 0 else draw(st.sampled_from(["", "+"])))
        other += "0" * draw(st.integers(0, 2)) + str(abs(power))
    return text, other


def content(text: str) -> bytes:
    document: Any = read_document(b'{"a":[%b]}' % text.encode())
    return canonical_content(document)


def stored(text: str) -> str:
    return orjson.dumps(read_stored(b"[%b]" % text.encode())).decode()[1:-1]


@pytest.mark.regression("A retry that spelled a number differently was a conflict.")
@given(respelled())
def test_equal_numbers_are_equal_in_any_spelling(both: tuple[str, str]) -> None:
    one, other = both
    assert content(one) == content(other)


@given(numbers(), numbers())
def test_other_numbers_are_not(one: str, other: str) -> None:
    if abs(Decimal(one)) < LARGE > abs(Decimal(other)):
        assert (content(one) == content(other)) == (Decimal(one) == Decimal(other))


@given(numbers(), st.sampled_from(["1", "-1", "e-1"]))
def test_neighbour_in_the_last_digit_is_another_number(text: str, change: str) -> None:
    value = Decimal(text)
    step = Decimal((0, (1,), value.as_tuple().exponent))  # type: ignore[arg-type]
    other = value + {"1": step, "-1": -step, "e-1": step / 10}[change]
    if abs(value) < LARGE > abs(other) and len(other.as_tuple().digits) < 28 and value != other:
        assert content(text) != content(str(other))


@pytest.mark.regression("Numbers of many digits were stored rounded.")
@given(numbers())
def test_no_digit_is_lost(text: str) -> None:
    if abs(Decimal(text)) < LARGE:
        assert Decimal(stored(text)) == Decimal(text)
        digits = text.lower().partition("e")[0].replace(".", "").lstrip("-0")
        if len(digits) > 20:
            assert stored(text) == text
    else:
        assert stored(text) == "null"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1))
def test_what_floats_and_small_integers_hold_is_stored_as_before(value: float) -> None:
    text = orjson.dumps(value).decode()
    assert stored(text) == text
    if isinstance(value, int) or not value.is_integer():
        assert content(text) == b'{"a":[%b]}' % text.encode()


@given(st.integers(-(10**40), 10**40))
def test_integers_of_any_size_are_stored_digit_for_digit(value: int) -> None:
    assert stored(str(value)) == str(value)


@pytest.mark.parametrize(
    "text",
    [
        "1e400",
        "-1e400",
        "1e999999999999999999999999",
        "1" * 5_000,
        "-" + "1" * 4_300,
        "1" * 310,
        "0." + "1" * 5_000,
        "1e-" + "1" * 2_000,
    ],
)
def test_what_no_float_is_near_and_what_is_too_long_is_null(text: str) -> None:
    assert stored(text) == "null"
    assert content(text) == b'{"a":[null]}'


@pytest.mark.parametrize("text", ["0." + "1" * (NUMBER_CHARS_MAX - 2), "1e-400", "3e-324", "1" * 300])
def test_other_long_and_small_ones_are_kept(text: str) -> None:
    assert stored(text) == text


@pytest.mark.parametrize(
    "text", ["1e-999999999", "1e999999999", "-0e999999999999999999999", "1E-99999999999999999999"]
)
def test_exponent_costs_nothing(text: str) -> None:
    content(text)  # whoever wrote the number out would take hours and all memory
    assert len(stored(text)) <= len(text)


def test_zero_is_zero() -> None:
    assert len({content(text) for text in ("0", "-0", "0.0", "-0.0", "0e5", "0.000E-7")}) == 1


@pytest.mark.parametrize("levels", [LEVELS_MAX - 1, LEVELS_MAX, 200, 253, 990])
def test_deep_document_is_refused(levels: int) -> None:
    text = b'{"a":' * levels + b"[1.0,123456789012345678901234567890]" + b"}" * levels
    document: Any = read_document(text)
    if levels < LEVELS_MAX:
        assert canonical_content(document).count(b"{") == levels
    else:
        assert NumberReading(document).all().is_too_deep
        with pytest.raises(TypeError):
            canonical_content(document)
    assert orjson.loads(orjson.dumps(read_stored(b'{"a":[' + b"1.0," * 5 + b"2]}")))["a"] == [
        1,
        1,
        1,
        1,
        1,
        2,
    ]


def test_content_leaves_the_event_as_it_was() -> None:
    document: Any = read_document(b'{"a":1.0,"b":[1e400,123456789012345678901234567890],"sentAt":2.0}')
    assert canonical_content(document) == canonical_content(document)
    assert canonical_content(document) == b'{"a":1,"b":[null,12345678901234567890123456789e1]}'


def test_few_numbers_are_kept() -> None:
    floats = Floats()
    for number in range(3 * FLOATS_KEPT):
        floats.work_left = WORK_AT_ONCE
        assert floats[f"{number}.5"] == number + 0.5
        assert len(floats) <= FLOATS_KEPT
    before = len(floats)
    assert isinstance(floats["1." + "2" * 10_000], Number)
    assert len(floats) == before


# ---- the parser reads what orjson reads

TEXTS = st.text(st.sampled_from('{}[]:,"\\u0189dDeE+-. \tnulltruefalseNaN\x01é\ud83d'), max_size=40)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def outcome(read: Any, document: bytes) -> object:
    try:
        return orjson.dumps(read(document))
    except ValueError:
        return None


@given(TEXTS)
def test_what_is_json_is_the_same_as_ever(text: str) -> None:
    document = text.encode("utf-8", "surrogatepass")
    before = outcome(orjson.loads, document)
    if before is not None:
        assert outcome(read_stored, document) is not None


@given(DOCUMENTS, st.integers(0, 200), st.binary(max_size=2))
def test_damaged_documents_are_refused_as_ever(document: object, place: int, damage: bytes) -> None:
    whole = orjson.dumps(document)
    damaged = whole[:place] + damage + whole[place + 1 :]
    assert outcome(read_stored, whole) == whole
    before = outcome(orjson.loads, damaged)
    if before is None and not any(word in damaged for word in (b"NaN", b"Infinity", b"\\u", b"\xef\xbb\xbf")):
        assert outcome(read_stored, damaged) is None or b"e" in damaged.lower() or damaged[:1].isdigit()
    elif before is not None:
        assert outcome(read_stored, damaged) is not None
