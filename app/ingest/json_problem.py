"""Describes where and why a body is not JSON, without quoting it. Pure."""

from json import JSONDecodeError

_NO_UTF8 = "str is not valid UTF-8"
"""Begins the parser's message that has no position."""


def json_problem(err: ValueError, body: bytes) -> str:
    """
    Return where the parser stopped, and why.

    The parser's own messages quote nothing. Where the body has a NaN or Infinity that could be mended,
    columns behind it in the same line are those of the mended body.
    """
    if not body or body.isspace():
        return "it is empty"
    if not isinstance(err, JSONDecodeError):
        return ""
    if err.msg.startswith(_NO_UTF8):
        try:
            body.decode()
        except UnicodeDecodeError as bad:
            return f"byte {bad.start + 1} is no UTF-8"
    return f"line {err.lineno}, column {err.colno}: {err.msg}"
