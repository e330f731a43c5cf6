"""Checks of answers: pure functions, which return a sentence about an error, or None."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

RETRY_AFTER_MAX_S = 300
RETRIABLE = (429, 503)


class Place(NamedTuple):
    """The place of an event in a receipt."""

    message_id: str
    partition: int
    offset: int


class Counted(NamedTuple):
    """The numbers of new events and of duplicates in the headers."""

    accepted: int
    duplicates: int


class WrongAnswerError(Exception):
    """An answer is wrong."""


def receipts_of(body: bytes, message_ids: Sequence[str] | None, count: int) -> list[Place]:
    """
    Return the places of a request's events.

    Args:
        body: of an answer 200 with receipts.
        message_ids: what was sent, in order; None if the gateway gives them.
        count: how many events were sent.

    Raises:
        WrongAnswerError: anything but a whole success.
    """
    document = parsed(body)
    if document.get("success") is not True or "rejected" in document:
        raise WrongAnswerError(f"no success: {_short(body)}")
    try:
        places = [
            Place(told["messageId"], told["partition"], told["offset"]) for told in document["receipts"]
        ]
    except (KeyError, TypeError) as err:
        raise WrongAnswerError(f"a receipt lacks its place: {_short(body)}") from err
    if len(places) != count:
        raise WrongAnswerError(f"{len(places)} receipts for {count} events")
    if message_ids is not None and [place.message_id for place in places] != list(message_ids):
        raise WrongAnswerError("receipts of other events, or in another order")
    if not all(_is_place(place) for place in places):
        raise WrongAnswerError(f"a receipt names no place: {_short(body)}")
    return places


def _is_place(place: Place) -> bool:
    numbers: tuple[object, ...] = (place.partition, place.offset)
    return all(isinstance(number, int) and number >= 0 for number in numbers)


def counted(headers: Mapping[str, str]) -> Counted:
    """Return what the headers count."""
    return Counted(int(headers.get("Gateway-Accepted") or 0), int(headers.get("Gateway-Duplicates") or 0))


def check_new(count: int, found: Counted, *, is_first_try: bool) -> None:
    """Raise WrongAnswerError unless all events count, and are new if they were not sent before."""
    if sum(found) != count:
        raise WrongAnswerError(f"{found.accepted} accepted and {found.duplicates} known of {count} events")
    if is_first_try and found.accepted != count:
        raise WrongAnswerError(f"{found.duplicates} events are known that were never sent before")


def check_again(count: int, found: Counted, headers: Mapping[str, str]) -> None:
    """Raise WrongAnswerError unless nothing was new."""
    if found != (0, count):
        raise WrongAnswerError(f"{found.accepted} of {count} events were accepted a second time")
    if headers.get("Idempotent-Replayed") != "true":
        raise WrongAnswerError("nothing was new, and Idempotent-Replayed does not say so")


def check_refusal(body: bytes, headers: Mapping[str, str]) -> float:
    """Return after how many seconds a 429 or 503 wants to see the request again."""
    document = parsed(body)
    if not document.get("code") or not document.get("message"):
        raise WrongAnswerError(f"a refusal without code or message: {_short(body)}")
    told = headers.get("Retry-After") or ""
    if not told.isdecimal() or not 1 <= int(told) <= RETRY_AFTER_MAX_S:
        raise WrongAnswerError(f"a refusal with Retry-After: {told or 'none'}")
    return float(told)


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer, or raise WrongAnswerError."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise WrongAnswerError(f"no JSON: {_short(body)}") from err
    if not isinstance(document, dict):
        raise WrongAnswerError(f"no JSON object: {_short(body)}")
    return document


def _short(body: bytes) -> str:
    return body[:200].decode(errors="replace")
