"""Errors: the codes are promised to clients, and only harmless retries are called retriable."""

import pytest

from dedupe.model import errors
from dedupe.model.errors import GatewayError, RetriableError

CODES = {
    "GatewayError": "internal",
    "RetriableError": "unavailable",
    "LaneNotActiveError": "lane_not_active",
    "LaneSaturatedError": "overloaded",
    "DiskFullError": "disk_full",
    "DeadlineExceededError": "deadline_exceeded",
    "NotAppendedError": "not_appended",
    "RecordsRefusedError": "records_refused",
    "OutcomeUnknownError": "outcome_unknown",
    "FencedError": "fenced",
    "IndexUnavailableError": "index_unavailable",
    "IndexCorruptError": "index_corrupt",
    "IndexDisprovedError": "index_disproved",
    "LogCorruptError": "log_corrupt",
    "IdentityMismatchError": "identity_mismatch",
    "DividedAnewError": "divided_anew",
    "ConfigurationError": "configuration",
}

CLASSES = [
    error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, GatewayError)
]


def test_codes_are_stable_and_every_class_has_one() -> None:
    assert {error.__name__: error.code for error in CLASSES} == CODES


def test_codes_are_unique() -> None:
    assert len(set(CODES.values())) == len(CODES)


@pytest.mark.parametrize("error", CLASSES)
def test_retriable_are_the_children_of_retriable_error(error: type[GatewayError]) -> None:
    assert error.retriable == issubclass(error, RetriableError)


def test_docstring_shows_the_tree() -> None:
    shown = [line.split()[0] for line in (errors.__doc__ or "").splitlines() if "Error" in line]

    assert sorted(shown) == sorted(CODES)
