"""Claim: the `return` preference is found wherever RFC 7240 allows it, and nowhere else."""

import pytest

from app.ingest.prefer import return_preference


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
    assert return_preference(prefer) == found
