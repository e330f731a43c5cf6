"""Durations and sizes as people write them: `7d`, `1.5s`, `512MiB`; plain numbers are seconds and bytes."""

import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator

MINUTE, HOUR, DAY = 60, 3600, 86_400
KIB, MIB, GIB = 1024, 1024**2, 1024**3

_DURATION_UNITS = {"ms": 0.001, "s": 1, "m": MINUTE, "h": HOUR, "d": DAY}
_SIZE_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024**4}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_duration(value: object) -> float:
    """Return seconds. Raises ValueError."""
    return _parse(value, _DURATION_UNITS, "s", "a duration such as 30s, 24h or 7d")


def parse_size(value: object) -> int:
    """Return bytes. Raises ValueError."""
    size = _parse(value, _SIZE_UNITS, "b", "a size such as 800KiB, 512MiB or 1GiB")
    if not size.is_integer():
        raise ValueError("must be a whole number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """Return the shortest text that parse_duration reads back."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{seconds / _DURATION_UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def format_size(size: int) -> str:
    """Return the shortest text that parse_size reads back."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _parse(value: object, units: Mapping[str, float], plain: str, wanted: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    factor = units.get((match[2] or plain).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"must be {wanted}")
    quantity = float(match[1]) * factor
    if not math.isfinite(quantity):
        raise ValueError(f"must be {wanted}")
    return quantity


AS_DURATION = BeforeValidator(parse_duration)
AS_SIZE = BeforeValidator(parse_size)
Seconds = Annotated[float, AS_DURATION]
Bytes = Annotated[int, AS_SIZE]
