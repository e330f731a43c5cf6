"""The content of a write key file: entries, quotas and defaults."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from app.auth.quotas import Allowance, Quota, QuotaPolicy
from app.auth.write_keys import INGEST, Source
from app.settings.units import Bytes, Seconds
from dedupe.model.errors import ConfigurationError

TOP_FIELDS = ("keys", "defaults")
"""The fields of a file that is an object."""


class Quotas(BaseModel):
    """The limits of one entry, or the defaults; an absent limit is the default's, null is no limit."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    requests: Annotated[float, Field(gt=0)] | None = None
    events: Annotated[float, Field(gt=0)] | None = None
    bytes: Annotated[Bytes, Field(gt=0)] | None = None
    burst: Annotated[Seconds, Field(gt=0)] | None = None
    index_share: Annotated[float, Field(gt=0, le=1)] | None = None

    def over(self, default: Quota) -> Quota:
        """Return the default with this entry's own limits."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        burst_s = own.pop("burst", None) or default.burst_s
        limits = {name: own.get(name, getattr(default, name)) for name in ("requests", "events", "bytes")}
        return Quota(**limits, burst_s=burst_s, index_share=own.get("index_share", default.index_share))


class Entry(BaseModel):
    """One entry of a key file."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    key: Annotated[str, StringConstraints(min_length=1)] | None = None
    key_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    source: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    name: str | None = None
    enabled: bool = True
    scopes: Annotated[list[Literal["ingest", "replay"]], Field(min_length=1)] = [INGEST]
    quotas: Quotas = Quotas()

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("needs either key or key_sha256")
        if self.key is not None and ":" in self.key:
            raise ValueError("its key has a colon, where Basic authorization would cut it: choose another")
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        if self.key_sha256 is not None:
            return bytes.fromhex(self.key_sha256)
        assert self.key is not None
        return hashlib.sha256(self.key.encode()).digest()

    def source_by(self, policy: QuotaPolicy, defaults: Quota, previous: Source | None) -> Source:
        """Return the source of the key, with the previous allowance if its quota is the same."""
        quota = self.quotas.over(defaults)
        allowance: Allowance | None = previous.allowance if previous else None
        if allowance is None or allowance.quota != quota:
            allowance = policy.allowance(quota, self.source)
        return Source(self.source, self.name or self.source, self.enabled, allowance, frozenset(self.scopes))


class Contents(NamedTuple):
    """A key file as read."""

    defaults: Quotas
    entries: Mapping[bytes, Entry]
    digest: bytes


_ENTRIES = TypeAdapter(list[Entry], config=ConfigDict(hide_input_in_errors=True))
_YAMLLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built


def check_key_file(path: Path) -> None:
    """Raise ConfigurationError if a gateway could not start with the file: one sentence, never a key."""
    read_key_file(path)


def read_key_file(path: Path) -> Contents:
    """
    Read a YAML or JSON file: a list of entries, or an object with the list as `keys`.

    An entry has `key` or `key_sha256` (64 hex digits), `source` (part of event keys: never change it), and
    may have `name`, `enabled`, `scopes` and `quotas`. An object may have `defaults`: the quotas of entries
    without their own.

    Raises:
        ConfigurationError: one sentence on the first error and its place, without a key.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.load(text, _YAMLLoader)
    except OSError as err:
        raise ConfigurationError(f"write keys file {path} cannot be read: {err.strerror}") from err
    except (ValueError, yaml.YAMLError) as err:
        raise ConfigurationError(f"write keys file {path} is not valid YAML or JSON{_place(err)}") from None
    keyed = document if isinstance(document, dict) else {"keys": document}
    if not keyed.keys() <= set(TOP_FIELDS):  # it is not named, since it may be a key
        raise ConfigurationError(
            f"write keys file {path}: it has a top-level field that is none of {', '.join(TOP_FIELDS)}"
        )
    part = ""
    try:
        by_digest = _by_digest(_ENTRIES.validate_python(keyed.get("keys")))
        part = ", defaults"
        defaults = Quotas.model_validate(keyed.get("defaults", {}))
    except ValidationError as err:
        place, message = _described(err, is_quotas=bool(part))
        place = part + place
        raise ConfigurationError(f"write keys file {path}{place}: {message}") from None
    except ValueError as err:
        raise ConfigurationError(f"write keys file {path}: {err}") from None
    return Contents(defaults, by_digest, hashlib.sha256(raw).digest())


def _by_digest(entries: list[Entry]) -> dict[bytes, Entry]:
    if not entries:
        raise ValueError("there is no key in it")
    by_digest: dict[bytes, Entry] = {}
    for number, entry in enumerate(entries, start=1):
        if entry.digest in by_digest:
            raise ValueError(f"entry {number} repeats the key of an earlier one")
        by_digest[entry.digest] = entry
    return by_digest


def _described(err: ValidationError, *, is_quotas: bool) -> tuple[str, str]:
    """Return place and message of the first problem, without unknown fields, which may be keys."""
    problem = err.errors(include_input=False, include_url=False)[0]
    where, message = list(problem["loc"]), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        where.pop()
        fields = (Quotas if is_quotas or "quotas" in where else Entry).model_fields
        message = f"it has a field that is none of {', '.join(fields)}"
    place = "".join(f", entry {part + 1}" if isinstance(part, int) else f", {part}" for part in where)
    return place, message


def _place(err: Exception) -> str:
    """Return where a parser stopped, without its message, which could quote a key."""
    mark = getattr(err, "problem_mark", None)
    line = getattr(err, "lineno", None) or (mark.line + 1 if mark is not None else None)
    return f", line {line}" if line else ""
