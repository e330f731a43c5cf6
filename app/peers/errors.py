"""Errors of connections between workers, and how errors of the core are encoded."""

import ssl
from collections.abc import Sequence
from typing import Any, NoReturn

from dedupe.model import errors
from dedupe.model.errors import GatewayError

TEXT_CHARS_MAX = 500


class FrameRefusedError(Exception):
    """A received frame ends the connection; `reason` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnknownKindError(GatewayError):
    """The other worker's version does not know this kind of frame."""

    code = "unknown_kind"


CODES: dict[str, type[GatewayError]] = {
    kind.code: kind
    for kind in (*vars(errors).values(), UnknownKindError)
    if isinstance(kind, type) and issubclass(kind, GatewayError)
}
"""The errors that are encoded by their code: all of the core, and UnknownKindError."""


def error_fields(err: BaseException) -> tuple[str, str, str]:
    """Encode an error: its code, its detail for clients, and its text for operators."""
    if isinstance(err, GatewayError):
        return err.code, err.detail, str(err)[:TEXT_CHARS_MAX]
    return GatewayError.code, "", repr(err)[:TEXT_CHARS_MAX]


def error_of(fields: Any) -> GatewayError:
    """Decode an error; one of an unknown code is a GatewayError. Raises FrameRefusedError."""
    if not isinstance(fields, Sequence) or len(fields) < 3:
        refuse("malformed")
    code, detail, text = fields[:3]
    if not (isinstance(code, str) and isinstance(detail, str) and isinstance(text, str)):
        refuse("malformed")
    return CODES.get(code, GatewayError)(text, detail=detail)


def reason_of(err: Exception) -> str:
    """Return why a connection was not made, for operators of either side."""
    if isinstance(err, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {err.verify_message}"
    if isinstance(err, ssl.SSLError) and "ALERT" in (err.reason or ""):
        return f"it refuses TLS with this worker: {str(err.reason).replace('_', ' ').lower()}"
    return repr(err)


def refuse(reason: str) -> NoReturn:
    """Raise FrameRefusedError."""
    raise FrameRefusedError(reason)
