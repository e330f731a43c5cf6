"""
A section of settings: a frozen model whose fields are read from variables GATEWAY_*.

A field's variable is GATEWAY_, the section's prefix and the field's name. A section may hold other
sections; each reads its own variables from the same environment. A secret may be in a file instead, as
Vault's injector and the CSI driver write it: the variable with _FILE behind it names the file, which is read
once. Kafka's password has a setting of its own for its file, since that is read again at each login.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo

from dedupe.model.errors import ConfigurationError

PREFIX = "GATEWAY_"
FILE_SUFFIX = "_FILE"
SECRET_FILE_BYTES_MAX = 64 * 1024


def variables(prefix: str = "") -> Callable[[str], str]:
    """Return the function from a field to its variable, for a section with this prefix."""
    return lambda name: f"{PREFIX}{prefix}{name}".upper()


class Section(BaseModel):
    """Settings that belong together; the first line of its docstring is the title in docs/settings.md."""

    model_config = ConfigDict(
        alias_generator=variables(),
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        validate_default=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_sections_within(cls, variables: Any) -> Any:
        return {**variables, **{name: variables for name, _ in _sections_of(cls)}}

    @classmethod
    def variable(cls, name: str) -> str:
        """Return the variable of a field."""
        variable = cls.model_fields[name].alias
        assert variable is not None
        return variable

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that these settings break."""
        yield from ()


AnySection = TypeVar("AnySection", bound=Section)


class Setting(NamedTuple):
    """One setting."""

    variable: str
    section: type[Section]
    name: str
    field: FieldInfo


def settings_of(kind: type[Section]) -> Iterator[Setting]:
    """Yield the settings of a section and of those within it, in the order in which they are declared."""
    within = dict(_sections_of(kind))
    for name, field in kind.model_fields.items():
        if name not in within:
            yield Setting(kind.variable(name), kind, name, field)
    for section in within.values():
        yield from settings_of(section)


def sections_in(section: Section) -> Iterator[Section]:
    """Yield a section and those within it."""
    yield section
    for name, _ in _sections_of(type(section)):
        yield from sections_in(getattr(section, name))


def load(kind: type[AnySection]) -> AnySection:
    """Read settings from the environment. Raises ConfigurationError, one sentence a line, without values."""
    variables, unread = with_secret_files(kind, variables_in(os.environ))
    try:
        settings = kind.model_validate(variables)
    except ValidationError as err:
        raise ConfigurationError("\n".join([*unread.values(), *sentences_of(err)])) from None
    if unread:
        raise ConfigurationError("\n".join(unread.values()))
    if broken := list(settings.contradictions()):
        raise ConfigurationError("\n".join(broken))
    return settings


def variables_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of settings that are set, by their names in upper case; an empty one is not."""
    upper = {name.upper(): value for name, value in environment.items() if value}
    return {name: value for name, value in upper.items() if name.startswith(PREFIX)}


def secret_file_variables(kind: type[Section]) -> Iterator[str]:
    """Yield the variables that name a file with a secret, and are no settings of their own."""
    for setting in settings_of(kind):
        file = f"{setting.name}{FILE_SUFFIX}".lower()
        if _is_secret(setting.field.annotation) and file not in setting.section.model_fields:
            yield f"{setting.variable}{FILE_SUFFIX}"


def with_secret_files(
    kind: type[Section], variables: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """
    Return the variables with the secrets of the files that they name; and for each secret that could not be
    read its variable with a sentence, which holds no secret.
    """
    found, unread = dict(variables), {}
    for variable in secret_file_variables(kind):
        if (path := found.pop(variable, None)) is None:
            continue
        secret = variable.removesuffix(FILE_SUFFIX)
        if secret in found:
            unread[secret] = f"{secret} and {variable} are both set: remove one of them"
            continue
        try:
            found[secret] = _secret_in(Path(path))
        except (OSError, ValueError) as err:
            reason = err.strerror if isinstance(err, OSError) else err
            unread[secret] = f"{variable} is {path}, which cannot be read: {reason}"
    return found, unread


def _secret_in(path: Path) -> str:
    """Return the text of a file, without the line ends that editors and `echo` add."""
    with path.open("rb") as file:
        content = file.read(SECRET_FILE_BYTES_MAX + 1)
    if len(content) > SECRET_FILE_BYTES_MAX:
        raise ValueError(f"it has more than {SECRET_FILE_BYTES_MAX} bytes")
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    if not text:
        raise ValueError("it is empty")
    return text


def _is_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(_is_secret(part) for part in get_args(annotation))


def sentences_of(err: ValidationError) -> Iterator[str]:
    """Yield a sentence for each setting that cannot be read, without values."""
    for problem in err.errors(include_input=False, include_url=False):
        if problem["type"] == "default_factory_not_called":
            continue  # it follows another setting, which has a sentence of its own
        variable = next(part for part in problem["loc"] if str(part).startswith(PREFIX))
        yield f"{variable}: {problem['msg'].removeprefix('Value error, ')}"


def _sections_of(kind: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, field in kind.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            yield name, section
