"""Makes the tables of settings: docs/settings.md has all, in sections, and README those that people set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from app.settings.model import Settings
from app.settings.networks import Endpoint
from app.settings.section import Section, Setting, settings_of
from app.settings.units import AS_DURATION, AS_SIZE, format_duration, format_size

USUAL = (
    *("GATEWAY_MODE", "GATEWAY_HOST", "GATEWAY_PORT", "GATEWAY_WRITE_KEYS_FILE", "GATEWAY_IDENTITY_SECRET"),
    *("GATEWAY_TRUSTED_PROXIES", "GATEWAY_LOG", "GATEWAY_DATA_DIR", "GATEWAY_PARTITIONS"),
    *("GATEWAY_KAFKA_BOOTSTRAP_SERVERS", "GATEWAY_WINDOW", "GATEWAY_ADMIN_TOKEN"),
)
"""The settings that README shows."""


def usual() -> str:
    """Return the table of README."""
    return _table(setting for setting in settings_of(Settings) if setting.variable in USUAL)


def every() -> str:
    """Return one table for each section, under its title."""
    found: dict[type[Section], list[Setting]] = {}
    for setting in settings_of(Settings):
        found.setdefault(setting.section, []).append(setting)
    return "\n\n".join(f"{_heading(section)}\n\n{_table(settings)}" for section, settings in found.items())


def _heading(section: type[Section]) -> str:
    title, _, rest = (section.__doc__ or "").strip().partition(": ")
    return f"## {title}\n\n{rest[:1].upper()}{rest[1:]}"


def _table(settings: Iterable[Setting]) -> str:
    rows = ["| variable | default | unit | meaning |", "|---|---|---|---|"]
    for setting in settings:
        assert setting.field.description, setting.variable
        default, unit = _default_text(setting), _unit(setting)
        rows.append(f"| `{setting.variable}` | {default} | {unit} | {setting.field.description} |")
    return "\n".join(rows)


def _default_text(setting: Setting) -> str:
    field = setting.field
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default_text"])
    if field.default in (None, (), ""):
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if AS_DURATION in field.metadata:
        return f"`{format_duration(field.default)}`"
    if AS_SIZE in field.metadata:
        return f"`{format_size(field.default)}`"
    return f"`{field.default}`"


def _unit(setting: Setting) -> str:
    field = setting.field
    if AS_DURATION in field.metadata:
        return "duration"
    if AS_SIZE in field.metadata:
        return "size"
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    return next(unit for kind, unit in UNITS.items() if kind in set(_types(field.annotation)))


UNITS: dict[Any, str] = {
    bool: "`true`, `false`",
    int: "number",
    Path: "path",
    Endpoint: "host:port",
    tuple: "list",
    object: "text",
}
"""By a type that is part of a setting's; in this order."""


def _types(annotation: Any) -> Iterator[Any]:
    yield object
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        if get_origin(annotation) is not tuple:
            yield from _types(part)
