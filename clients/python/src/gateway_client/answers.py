"""What an answer says of each event of a batch. Only the gateway's own word counts."""

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from .model import Batch, DeliveryError

RETRY_AFTER_MAX_S = 300.0

OK, BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TOO_LARGE, UNSUPPORTED = 200, 400, 401, 403, 413, 415
CLIENT_ERRORS = range(400, 500)
ABOUT_THE_MOMENT = frozenset({401, 408, 429})

SESSION_IS_OVER = frozenset({"session_expired", "session_fenced"})
"""Codes which say that the session takes no new events."""

ABOUT_THE_BODY = frozenset({"invalid_json", "batch_missing", "too_many_events", "request_too_large"})
ABOUT_THE_BODY_PREFIX = "body_too_"
"""Codes which say that this very body is not taken: part of it may be."""

ABOUT_THE_ENCODING = frozenset({"unsupported_encoding", "body_not_decompressable"})


class Fate(Enum):
    """What becomes of one event after an answer."""

    DONE = "done"  # stored, now or before
    AGAIN = "again"  # not decided: keep it
    REJECTED = "rejected"  # for good
    SESSION_OVER = "session over"  # not taken because of its session


class Verdict(NamedTuple):
    """An answer's word on one event."""

    fate: Fate
    code: str = ""
    message: str = ""


class Answer(NamedTuple):
    """An answer, read whole."""

    status: int
    headers: Mapping[str, str]  # whose names have any case
    content: bytes

    @property
    def is_gateways(self) -> bool:
        """Whether it is the gateway's and not that of a proxy, a portal or another server."""
        return bool(self.headers.get("Gateway-Request-Id"))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object in it; empty if there is none."""
        try:
            document = json.loads(self.content)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def code(self) -> str:
        """The gateway's reason; "" if it is not the gateway's."""
        return str(self.document.get("code", "")) if self.is_gateways else ""

    @property
    def retry_after_s(self) -> float:
        """What is asked for; a date would need a clock that is right, and counts as nothing."""
        text = self.headers.get("Retry-After", "")
        return min(float(text), RETRY_AFTER_MAX_S) if text.isascii() and text.isdigit() else 0.0

    def __str__(self) -> str:
        return f"{self.status} {self.content[:200].decode(errors='replace')}"


class UndecidedError(DeliveryError):
    """
    The answer decides nothing: what was sent may be stored or not.

    Attributes:
        is_halved: whether a smaller part of the batch goes at once.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer))
        self.answer = answer
        self.is_halved = False

    @property
    def is_about_this_body(self) -> bool:
        """Whether a smaller body may be taken, and an event that is refused alone never is."""
        answer = self.answer
        return answer.status == TOO_LARGE or (
            answer.status == BAD_REQUEST
            and (answer.code in ABOUT_THE_BODY or answer.code.startswith(ABOUT_THE_BODY_PREFIX))
        )

    @property
    def may_be_about_this_body(self) -> bool:
        """Whether it is about this body or about all requests, which another request tells."""
        if self.answer.is_gateways:
            return self.answer.status == BAD_REQUEST or self.is_about_this_body
        return self.answer.status in CLIENT_ERRORS and self.answer.status not in ABOUT_THE_MOMENT

    @property
    def is_about_the_encoding(self) -> bool:
        """Whether the same body may be taken uncompressed."""
        return self.answer.status == UNSUPPORTED or self.answer.code in ABOUT_THE_ENCODING

    @property
    def is_about_the_key(self) -> bool:
        """Whether all requests get this answer until a person changes something."""
        return self.answer.status in (UNAUTHORIZED, FORBIDDEN) and self.answer.is_gateways


def judge(batch: Batch, answer: Answer) -> list[Verdict]:
    """
    Return the verdict on each event of a batch. An event that the answer does not name is undecided.

    Raises:
        UndecidedError: it is not the gateway's 200.
    """
    if answer.status != OK or not answer.is_gateways:
        raise UndecidedError(answer)
    document = answer.document
    stored = {_whole(receipt.get("sequence")) for receipt in _objects(document, "receipts")}
    rejected = {_whole(told.get("index")): told for told in _objects(document, "rejected")}
    return [
        _verdict(batch.first_sequence + index in stored, rejected.get(index))
        for index in range(len(batch.events))
    ]


def _verdict(is_stored: bool, told: Mapping[str, Any] | None) -> Verdict:
    if is_stored:
        return Verdict(Fate.DONE)
    if told is None or told.get("retriable") or not isinstance(told.get("code"), str):
        return Verdict(Fate.AGAIN)
    code, message = told["code"], str(told.get("message"))
    return Verdict(Fate.SESSION_OVER if code in SESSION_IS_OVER else Fate.REJECTED, code, message)


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
