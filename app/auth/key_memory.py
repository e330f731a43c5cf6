"""
The write keys that the gateway has last read, in its data folder.

A key that is in this file and no longer in the key file has vanished, also while the gateway was down. The
file has no key, only the SHA-256 of each enabled one, with its source, name and quota.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from app.auth.quotas import Quota

FILE = "write_keys.json"
"""The name of the file in the data folder."""

VERSION = 1

logger = structlog.get_logger(__name__)


class Remembered(NamedTuple):
    """One key, by its SHA-256."""

    source: str
    name: str
    quota: Quota
    removed_ms: int | None = None
    """When the key was found to be missing from the key file; None while it is there."""


class _Key(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    key_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    source: str
    name: str
    quota: Quota
    removed_ms: int | None = None


class _Document(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    version: int
    keys: list[_Key]


_DOCUMENT = TypeAdapter(_Document)


class KeyMemory:
    """The file of one data folder, which one gateway at a time uses."""

    def __init__(self, folder: Path, *, grace_s: float) -> None:
        """`grace_s`: how long a key works after it has vanished; 0 remembers nothing."""
        self.grace_ms = round(grace_s * 1000)
        self._path = folder / FILE
        self._stored: bytes | None = None
        self._is_failing = False

    def load(self) -> dict[bytes, Remembered]:
        """Return the remembered keys by SHA-256; none if the file cannot be used, which is logged."""
        if not self.grace_ms:
            return {}
        try:
            raw = self._path.read_bytes()
            document = _DOCUMENT.validate_json(raw)
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as err:
            why = err.strerror if isinstance(err, OSError) else "it is damaged"
            logger.error(
                "remembered write keys cannot be read: keys that have vanished are unknown now",
                file=str(self._path),
                error=why,
            )
            return {}
        self._stored = raw
        return {
            bytes.fromhex(key.key_sha256): Remembered(key.source, key.name, key.quota, key.removed_ms)
            for key in document.keys
        }

    def store(self, keys: Mapping[bytes, Remembered]) -> bool:
        """Replace the file if it has other keys; return False if that fails, which is logged once."""
        try:
            if not self.grace_ms:
                self._path.unlink(missing_ok=True)
                return True
            content = _content_of(keys)
            if content != self._stored:
                _replace(self._path, content)
                self._stored = content
        except OSError as err:
            if not self._is_failing:
                logger.error(
                    "write keys cannot be remembered: a restart would go by the list from before",
                    file=str(self._path),
                    error=err.strerror,
                )
            self._is_failing = True
            return False
        self._is_failing = False
        return True


def _content_of(keys: Mapping[bytes, Remembered]) -> bytes:
    entries = [
        {"key_sha256": digest.hex(), **key._asdict(), "quota": asdict(key.quota)}
        for digest, key in keys.items()
    ]
    return json.dumps({"version": VERSION, "keys": entries}, indent=1).encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file durably: a crash leaves either the old content or the new one."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
