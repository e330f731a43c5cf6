"""The settings in force, each with its value and origin."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from app.settings.model import Settings
from app.settings.networks import Endpoint
from app.settings.section import Section, sections_in, settings_of
from app.settings.units import AS_DURATION, AS_SIZE, format_duration, format_size

REDACTED = "(set)"
"""Shown instead of a secret."""


class Origin(StrEnum):
    """The origin of a value."""

    ENVIRONMENT = "environment"
    DEFAULT = "default"
    DERIVED = "derived"  # a default that follows from other settings


class Effective(NamedTuple):
    """One setting."""

    variable: str
    value: str | int | bool | None
    origin: Origin


def effective(settings: Settings) -> Iterator[Effective]:
    """Yield every setting in the order of docs/settings.md; secrets are redacted."""
    sections: dict[type[Section], Section] = {type(each): each for each in sections_in(settings)}
    for variable, kind, name, field in settings_of(Settings):
        section = sections[kind]
        if name in section.model_fields_set:
            origin = Origin.ENVIRONMENT
        else:
            origin = Origin.DERIVED if field.default_factory else Origin.DEFAULT
        yield Effective(variable, _shown(getattr(section, name), field), origin)


def _shown(value: Any, field: FieldInfo) -> str | int | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    if AS_SIZE in field.metadata:
        return format_size(value)
    if AS_DURATION in field.metadata:
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
        case Endpoint() | Path():
            return str(value)
        case _:
            assert isinstance(value, tuple), f"no way to show {value!r}"
            return ",".join(map(str, value))
