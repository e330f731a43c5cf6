"""Describes why a body is not JSON, without quoting it. Pure."""

from json import JSONDecodeError

_NO_UTF8 = "str is not valid UTF-8"
"""The beginning of the parser's message without a position."""


def json_problem(err: ValueError, body: bytes) -> str:
    """
    Return where the parser stopped, and why.

    The parser's messages quote nothing. After a mended NaN or Infinity, the column is that of the mended
    body.
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
