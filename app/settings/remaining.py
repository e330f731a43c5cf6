"""Reads the valid settings when others are wrong, so that `gateway check` can check the rest."""

import os
import re
from collections.abc import Callable, Iterator
from types import new_class
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from app.settings.model import Settings
from app.settings.section import (
    Section,
    Setting,
    sentences_of,
    settings_of,
    variables_in,
    with_secret_files,
)

NEEDED = ("GATEWAY_IDENTITY_SECRET", "GATEWAY_KAFKA_BOOTSTRAP_SERVERS", "GATEWAY_KAFKA_SASL_USERNAME")
"""Settings that checks need; a rule reports them if they are missing or wrong."""

AnySection = TypeVar("AnySection", bound=Section)


class UnusableSettingError(Exception):
    """A wrong setting was read."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"this is checked once {variable} is right")


class Remaining(NamedTuple):
    """The settings, of which wrong ones raise UnusableSettingError, and sentences about them."""

    settings: Settings
    problems: list[str]
    warnings: list[str]


def remaining_settings() -> Remaining:
    """Read the settings from the environment, even if some of them are wrong."""
    variables, unread = with_secret_files(Settings, variables_in(os.environ))
    malformed = set(unread)
    sentences = list(unread.values())
    try:
        settings = Settings.model_validate(variables)
    except ValidationError as err:
        malformed |= _malformed(err)
        sentences += sentences_of(err)
        right = {name: value for name, value in variables.items() if name not in malformed}
        settings = Settings.model_validate(right)

    def true_anyway(sentences: Iterator[str]) -> list[str]:
        return [each for each in sentences if not any(_is_about(each, name) for name in malformed)]

    broken = true_anyway(settings.contradictions())
    warnings = true_anyway(settings.warnings())
    missing = {name for name in NEEDED if any(each.startswith(name) for each in broken)}
    hidden = _hide(settings, malformed | missing) if malformed or missing else settings
    return Remaining(hidden, [*sentences, *broken], warnings)


def _malformed(err: ValidationError) -> set[str]:
    """Return the variables that cannot be read, and those whose defaults depend on them."""
    malformed: set[str] = set()
    for problem in err.errors():
        # pydantic names a setting by its variable, or by its field if its default cannot be computed
        setting = next(s for s in settings_of(Settings) if {s.variable, s.name} & set(problem["loc"]))
        if problem["type"] != "default_factory_not_called" or _default_follows(setting, malformed):
            malformed.add(setting.variable)
    return malformed


def _default_follows(setting: Setting, others: set[str]) -> bool:
    used: set[str] = set()

    class Fields(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            used.add(name)
            return default

    setting.field.get_default(call_default_factory=True, validated_data=Fields())
    fields = setting.section.model_fields
    return not others.isdisjoint(fields[name].alias for name in used)


def _hide(section: AnySection, variables: set[str]) -> AnySection:
    """Return the section with fields of these variables that raise UnusableSettingError."""
    kind = type(section)
    hidden = {s.name: s.variable for s in settings_of(kind) if s.section is kind and s.variable in variables}
    values = {name: getattr(section, name) for name in kind.model_fields}
    values |= {name: _hide(each, variables) for name, each in values.items() if isinstance(each, Section)}
    methods = {"__getattribute__": _reader(hidden)}
    tolerant: Any = new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(methods))
    copy: AnySection = tolerant.model_construct(
        **{kind.model_fields[name].alias or name: value for name, value in values.items()}
    )
    return copy


def _reader(hidden: dict[str, str]) -> Callable[[Section, str], Any]:
    def read(section: Section, name: str) -> Any:
        if name in hidden:
            raise UnusableSettingError(hidden[name])
        return Section.__getattribute__(section, name)

    return read


def _is_about(sentence: str, variable: str) -> bool:
    is_named = re.search(rf"\b{variable}\b", sentence) is not None
    return is_named or (variable == "GATEWAY_MODE" and "in production" in sentence)
