"""The settings in force: each with its value as one would write it, and where that comes from."""

from collections.abc import Iterator
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.config.log_settings import LogSettings, variable_of
from app.config.units import AS_DURATION, AS_SIZE, format_duration, format_size

REDACTED = "(set)"
"""Stands for a secret, of which not even the length is told."""


class Origin(StrEnum):
    """Where a value comes from."""

    ENVIRONMENT = "environment"
    DEFAULT = "default"
    DERIVED = "derived"  # a default that follows from other settings


class Effective(NamedTuple):
    """One setting."""

    variable: str
    value: str | int | bool | None
    origin: Origin


def effective(settings: LogSettings) -> Iterator[Effective]:
    """Yield every setting in the order of README's table; secrets are redacted."""
    for name, field in type(settings).model_fields.items():
        if name in settings.model_fields_set:
            origin = Origin.ENVIRONMENT
        else:
            origin = Origin.DERIVED if field.default_factory else Origin.DEFAULT
        yield Effective(variable_of(name), _shown(getattr(settings, name), field), origin)


def _shown(value: Any, field: FieldInfo) -> str | int | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    kinds = set(_kinds(field.annotation, field.metadata))
    if AS_SIZE in kinds:
        return format_size(value)
    if AS_DURATION in kinds:
        return format_duration(value)
    if isinstance(value, int):
        return value
    return _text(value)


def _text(value: Any) -> str:
    match value:
        case SecretStr():
            return REDACTED
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(map(str, value))
        case _:
            assert isinstance(value, Path | date), f"no way to show {value!r}"
            return str(value)


def _kinds(annotation: Any, metadata: Any) -> Iterator[Any]:
    """Yield what a field's annotation says of it, also within a union such as `Bytes | None`."""
    yield from (each for each in metadata if each in (AS_SIZE, AS_DURATION))
    for part in get_args(annotation):
        yield from _kinds(part, getattr(part, "__metadata__", ()))
