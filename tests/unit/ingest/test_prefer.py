"""Claim: the preferences `return` and `handling` are found where RFC 7240 allows them, and nowhere else."""

import pytest

from app.ingest.prefer import preferences_in


@pytest.mark.parametrize(
    ("prefer", "found"),
    [
        (b"return=representation", "representation"),
        (b'RETURN = "minimal"', "minimal"),
        (b"respond-async, return=minimal; foo=1, wait=5", "minimal"),
        (b"return=minimal,return=representation", "minimal"),
        (b"return=other, return=representation", "representation"),
        (b"respond-async; return=minimal", None),
        (b"return", None),
        (b"returns=minimal", None),
        (b"", None),
        (b"\xff\xfe,=,;", None),
    ],
)
def test_first_known_return_preference_counts(prefer: bytes, found: str | None) -> None:
    assert preferences_in(prefer).returned == found


@pytest.mark.parametrize(
    ("prefer", "is_strict"),
    [
        (b"handling=strict", True),
        (b'return=minimal, Handling = "STRICT"; x', True),
        (b"handling=lenient, handling=strict", False),
        (b"handling=other, handling=strict", True),
        (b"handling", False),
        (b"strict", False),
    ],
)
def test_first_known_handling_preference_counts(prefer: bytes, is_strict: bool) -> None:
    assert preferences_in(prefer).is_strict is is_strict


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        (b"", ""),
        (b"handling=lenient", ""),
        (b"handling=strict", "handling=strict"),
        (b"handling=strict,return=minimal", "return=minimal, handling=strict"),
    ],
)
def test_only_what_is_heeded_is_said_to_be(prefer: bytes, applied: str) -> None:
    assert preferences_in(prefer).applied == applied
