"""
Claim: halves of surrogate pairs become U+FFFD, numbers that are none null, a byte order mark nothing; nothing
else changes.
"""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.model.json_document import (
    ESCAPES_MAX,
    NO_NUMBERS_MAX,
    mend_numbers,
    mend_surrogates,
    read_document,
)
from dedupe.model.json_number import STORED, NumberReading


def stored(document: object) -> object:
    """Return a document as it is read from the log."""
    nest = [document]
    NumberReading(nest, STORED).all()
    return orjson.loads(orjson.dumps(nest))[0]


@pytest.mark.regression("A string cut in the middle of an emoji cost its batch a 400.")
@pytest.mark.parametrize(
    ("document", "text"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\ude00"', "\ufffd"),
        (rb'"\uD83D\uDE00"', "\U0001f600"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\ud83d\u0041"', "\ufffdA"),
        (rb'"\\ud83d"', r"\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\\\\ud83d\ude00"', "\\\\ud83d\ufffd"),
        (rb'"\n\ud83dn"', "\n\ufffdn"),
    ],
)
def test_halves_are_replaced_and_pairs_are_not(document: bytes, text: str) -> None:
    assert orjson.loads(mend_surrogates(document)) == text


@given(st.text(st.characters(categories=("L", "P", "Cc", "Cs", "So")) | st.sampled_from("\\\ud83d\ude00")))
def test_any_text_is_read_as_a_browser_would_encode_it(text: str) -> None:
    as_browser = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert orjson.loads(mend_surrogates(json.dumps(text).encode())) == as_browser


def test_document_without_escapes_is_unchanged() -> None:
    document = '{"a":"ü\U0001f600"}'.encode()
    assert mend_surrogates(document) == document


def test_work_on_one_document_is_bounded() -> None:
    document = b'"%s"' % (rb"\ud83d" * ESCAPES_MAX)
    assert mend_surrogates(document) == document
    assert orjson.loads(mend_surrogates(document.replace(rb"\ud83d", b"", 1))) == "\ufffd" * (ESCAPES_MAX - 1)


@pytest.mark.regression("NaN cost a batch a 400.")
@pytest.mark.parametrize(
    ("document", "found"),
    [
        (b"NaN", None),
        (b"[NaN, Infinity,-Infinity]", [None, None, None]),
        (b'{"a":NaN,"b":"NaN","c":[-Infinity]}', {"a": None, "b": "NaN", "c": [None]}),
        (rb'{"\"NaN":"\\","b":NaN}', {'"NaN': "\\", "b": None}),
        (rb'["\\\" NaN","\\",Infinity]', ['\\" NaN', "\\", None]),
        (rb'["\ud83d NaN",NaN]', ["\ufffd NaN", None]),
    ],
)
def test_numbers_that_are_none_are_null(document: bytes, found: object) -> None:
    assert stored(read_document(document)) == found


@pytest.mark.parametrize(
    "document",
    [b"nan", b"NaNa", b"+Infinity", b"- Infinity", b"-NaN", b"{NaN:1}", b"[1NaN]", b"[NaN1]", b"NaNe5"],
)
def test_what_is_no_number_either_is_no_json(document: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_document(document)


JSON = st.recursive(
    st.none() | st.floats() | st.text(st.sampled_from('NaInfity-\\" ,:[')),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('NaN\\"', max_size=4), inner, max_size=4)
    ),
)


@given(JSON)
def test_what_python_writes_is_read_as_javascript_would_have_written_it(document: object) -> None:
    assert stored(read_document(json.dumps(document).encode())) == orjson.loads(orjson.dumps(document))


@pytest.mark.parametrize(
    "text", ['{"a":1}', "[]", '"x"', "5", ' \n{"a":null}', '["\ufeff"]', '{"\ufeff":"\ufeff"}']
)
def test_byte_order_mark_is_skipped(text: str) -> None:
    expected = orjson.loads(text)
    assert read_document(text.encode()) == expected
    assert read_document(text.encode("utf-8-sig")) == expected
    assert read_document("\ufeff".encode() + text.encode("utf-8-sig")) == expected


@pytest.mark.parametrize(
    "text", ["\ufeff", "\ufeff{", "\ufeff\ufeff\ufeff{}", "{}\ufeff", "[\ufeff1]", " \ufeff{}"]
)
def test_byte_order_mark_elsewhere_is_no_json(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_document(text.encode())


def test_words_looked_at_in_one_document_are_bounded() -> None:
    document = b"[" + b",".join([b"NaN"] * NO_NUMBERS_MAX) + b"]"
    assert stored(read_document(document)) == [None] * NO_NUMBERS_MAX
    longer = document[:-1] + b",NaN]"
    assert mend_numbers(longer) == longer
