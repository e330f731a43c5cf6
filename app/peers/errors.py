"""What goes wrong between workers, and how the core's errors travel."""

from collections.abc import Sequence
from typing import Any, NoReturn

from dedupe import errors
from dedupe.errors import GatewayError

TEXT_CHARS_MAX = 500


class FrameRefusedError(Exception):
    """What came on a connection cannot be taken, so the connection ends; `reason` is what is counted."""

    def __init__(self, reason: str) -> None:
        """Take the reason, one of a few words."""
        super().__init__(reason)
        self.reason = reason


class UnknownKindError(GatewayError):
    """The other worker does not know this kind of message: its version is an older one."""

    code = "unknown_kind"


CODES: dict[str, type[GatewayError]] = {
    kind.code: kind
    for kind in (*vars(errors).values(), UnknownKindError)
    if isinstance(kind, type) and issubclass(kind, GatewayError)
}
"""Every error of the core, and the one of ours, by what it is called on its way."""


def error_fields(err: BaseException) -> tuple[str, str, str]:
    """Return an error as it travels: its code, what clients may know, and its text for operators."""
    if isinstance(err, GatewayError):
        return err.code, err.told, str(err)[:TEXT_CHARS_MAX]
    return GatewayError.code, "", repr(err)[:TEXT_CHARS_MAX]


def error_of(fields: Any) -> GatewayError:
    """Return the error that another worker raised; of a code that is not known here, a GatewayError."""
    if not isinstance(fields, Sequence) or len(fields) < 3:
        refuse("malformed")
    code, told, text = fields[:3]
    if not (isinstance(code, str) and isinstance(told, str) and isinstance(text, str)):
        refuse("malformed")
    return CODES.get(code, GatewayError)(text, told=told)


def refuse(reason: str) -> NoReturn:
    """Raise FrameRefusedError."""
    raise FrameRefusedError(reason)
