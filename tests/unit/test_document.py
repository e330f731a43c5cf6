"""Claim: halves of surrogate pairs become U+FFFD, and nothing else in a document changes."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.document import ESCAPES_MAX, mend_surrogates


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
