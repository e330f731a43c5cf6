"""Settings for tests, which name them as operators do."""

from app.settings.model import Settings
from app.settings.section import PREFIX, settings_of
from dedupe.partition.queue import QueueLimits


def variable_of(name: str) -> str:
    """Return the variable of a setting that is named in lower case and without GATEWAY_."""
    return f"{PREFIX}{name.upper()}"


VARIABLES = tuple(setting.variable for setting in settings_of(Settings))


QUEUE_LIMITS = QueueLimits(20_000, 32 * 1024**2, 900 * 1024)
"""Those of the default settings."""


def make_settings(**values: object) -> Settings:
    """Return settings, whatever contradicts itself; each is named in lower case and without GATEWAY_."""
    variables = {variable_of(name): value for name, value in values.items()}
    assert variables.keys() <= set(VARIABLES), variables.keys() - set(VARIABLES)
    return Settings.model_validate(variables)
