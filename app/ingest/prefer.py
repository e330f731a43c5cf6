"""What a client prefers to get back: the `return` preference of RFC 7240. Pure."""

from typing import Literal, TypeAlias

Return: TypeAlias = Literal["representation", "minimal"]


def return_preference(prefer: bytes) -> Return | None:
    """
    Return the first `return` preference that the gateway knows.

    Args:
        prefer: the values of all Prefer headers, joined by commas.
    """
    for preference in prefer.decode("latin-1").lower().split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip() == "return":
            match value.strip().strip('"'):
                case "representation":
                    return "representation"
                case "minimal":
                    return "minimal"
    return None
