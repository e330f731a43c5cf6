"""`python -m app.config.settings_table` prints the table of all settings that the README shows."""

from pydantic.fields import FieldInfo

from app.config.log_settings import variable_of
from app.config.settings import Settings
from app.config.units import AS_DURATION, AS_SIZE, format_duration, format_size


def settings_table() -> str:
    """Return the Markdown table of all settings, as the README shows it."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        assert field.description, name
        rows.append(f"| `{variable_of(name)}` | {_default_text(field)} | {field.description} |")
    return "\n".join(rows)


def _default_text(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default_text"])
    if field.default in (None, ()):
        return ""
    if AS_DURATION in field.metadata:
        return f"`{format_duration(field.default)}`"
    if AS_SIZE in field.metadata:
        return f"`{format_size(field.default)}`"
    return f"`{field.default}`"


if __name__ == "__main__":
    print(settings_table())
