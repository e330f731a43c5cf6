"""What a client prefers: the preferences `return` and `handling` of RFC 7240. Pure."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

Return: TypeAlias = Literal["representation", "minimal"]


def return_preference(prefer: bytes) -> Return | None:
    """
    Return the first `return` preference that the gateway knows.

    Args:
        prefer: the values of all Prefer headers, joined by commas.
    """
    for value in _values_of("return", prefer):
        match value:
            case "representation":
                return "representation"
            case "minimal":
                return "minimal"
    return None


def is_strict(prefer: bytes) -> bool:
    """Whether the client prefers an error to a lenient answer; see `return_preference`."""
    return next((value == "strict" for value in _values_of("handling", prefer) if value), False)


def _values_of(name: str, prefer: bytes) -> Iterator[str]:
    for preference in prefer.decode("latin-1").lower().split(","):
        found, _, value = preference.partition(";")[0].partition("=")
        if found.strip() == name:
            yield value.strip().strip('"')
