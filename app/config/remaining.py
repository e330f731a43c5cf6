"""What can be read of settings when some are wrong, so that all the rest can be looked at meanwhile."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from app.config.log_settings import sentences_of, variable_of
from app.config.settings import Settings

NEEDED = ("identity_secret", "kafka_bootstrap_servers", "kafka_sasl_username")
"""Those without which something cannot be looked at, if a rule says that they are missing or wrong."""


class UnusableSettingError(Exception):
    """A setting was read that is wrong."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this is looked at once {variable_of(name)} is right")


class Remaining(NamedTuple):
    """The settings, which raise UnusableSettingError where they are wrong, and what is to be said of them."""

    settings: Settings
    problems: list[str]
    warnings: list[str]


def remaining_settings() -> Remaining:
    """Read the settings from the environment, whatever is wrong with them."""
    try:
        settings = Settings()
    except ValidationError as err:
        return _remaining(err)
    return Remaining(settings, [], list(settings.warnings()))


def _remaining(err: ValidationError) -> Remaining:
    malformed = _malformed(err)
    hidden: set[str] = set()
    settings = _read_without(malformed, hidden)

    def true_anyway(sentences: Iterator[str]) -> list[str]:
        return [each for each in sentences if not any(_is_about(each, name) for name in malformed)]

    broken = true_anyway(Settings.contradictions(settings))
    warnings = true_anyway(settings.warnings())
    missing = {name for name in NEEDED if any(each.startswith(variable_of(name)) for each in broken)}
    hidden |= malformed | missing  # only now: the rules read all settings
    return Remaining(settings, [*(sentences_of(err) if malformed else ()), *broken], warnings)


def _malformed(err: ValidationError) -> set[str]:
    """Return the settings that cannot be read, and those whose defaults are made of them."""
    malformed: set[str] = set()
    for problem in err.errors():
        if problem["loc"]:
            name = str(problem["loc"][0])
            if problem["type"] != "default_factory_not_called" or _default_follows(name, malformed):
                malformed.add(name)
    return malformed


def _default_follows(name: str, others: set[str]) -> bool:
    asked: set[str] = set()

    class Fields(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default

    Settings.model_fields[name].get_default(call_default_factory=True, validated_data=Fields())
    return not asked.isdisjoint(others)


def _read_without(malformed: set[str], hidden: set[str]) -> Settings:
    """Return settings that may contradict each other, with the default for each malformed one."""

    class Tolerant(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *_: PydanticBaseSettingsSource,
            **__: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            source = EnvSettingsSource(settings_cls)
            variables = {variable_of(name).lower() for name in malformed}
            source.env_vars = {
                name: value for name, value in source.env_vars.items() if name not in variables
            }
            return (source,)

        def contradictions(self) -> Iterator[str]:
            yield from ()

        def __getattribute__(self, name: str) -> Any:
            if name in hidden:
                raise UnusableSettingError(name)
            return super().__getattribute__(name)

    return Tolerant()


def _is_about(sentence: str, name: str) -> bool:
    is_named = re.search(rf"\b{variable_of(name)}\b", sentence) is not None
    return is_named or (name == "mode" and "in production" in sentence)
