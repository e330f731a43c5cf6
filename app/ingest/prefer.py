"""The preferences `return` and `handling` of RFC 7240. Pure."""

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

Return: TypeAlias = Literal["representation", "minimal"]


class Preferences(NamedTuple):
    """The preferences of a request that the gateway supports."""

    returned: Return | None = None
    """The content of the answer's body; None: the default of the path."""
    is_strict: bool = False
    """Whether an error is preferred to a lenient answer."""

    @property
    def applied(self) -> str:
        """The value of Preference-Applied; empty without any."""
        applied = [f"return={self.returned}"] if self.returned else []
        return ", ".join([*applied, "handling=strict"] if self.is_strict else applied)


_HANDLING = ("strict", "lenient")


def preferences_in(prefer: bytes) -> Preferences:
    """
    Return the first supported preference of each kind.

    Args:
        prefer: the values of all Prefer headers, joined by commas.
    """
    handling = next((value for value in _values_of("handling", prefer) if value in _HANDLING), None)
    return Preferences(_returned(prefer), handling == "strict")


def _returned(prefer: bytes) -> Return | None:
    for value in _values_of("return", prefer):
        match value:
            case "representation":
                return "representation"
            case "minimal":
                return "minimal"
    return None


def _values_of(name: str, prefer: bytes) -> Iterator[str]:
    for preference in prefer.decode("latin-1").lower().split(","):
        kind, _, value = preference.partition(";")[0].partition("=")
        if kind.strip() == name:
            yield value.strip().strip('"')
