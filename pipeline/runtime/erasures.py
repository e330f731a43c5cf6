"""
The list of erased persons: a folder that all jobs read, with one file for each id, named by its keyed hash.

    LIST/key.HHHHHHHH   of which key the hashes are
    LIST/HASH.json      when that id was erased; to delete it ends the erasure of what comes later

PIPELINE_ERASURES and PIPELINE_ERASURE_KEY_FILE name it to every job. Without them nothing is applied.
"""

import hmac
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError, UsageError
from pipeline.runtime.folder import Folder, LocalFolder
from pipeline.transforms.erased import (
    Change,
    IdKind,
    Persons,
    erased_records,
    in_sessions,
    not_listed,
    with_erased_rows,
    without_erased,
)

LIST_VARIABLE, KEY_VARIABLE = "PIPELINE_ERASURES", "PIPELINE_ERASURE_KEY_FILE"
KEY_BYTES_MIN = 32
_KEY_FILE, _ENTRY = "key.", ".json"


class _Listing(Protocol):
    def names(self, name: str = "") -> list[str]:
        """Return the names in the folder."""


class ErasureList(NamedTuple):
    """Where the list is, and its key."""

    path: str
    key: bytes

    @classmethod
    def of(cls, path: str | None, key_file: str | None) -> "ErasureList | None":
        """
        Return the list; None if none is named.

        Raises:
            UsageError: only one of the two is named, or the key is short or unreadable.
        """
        if not path and not key_file:
            return None
        if not path or not key_file:
            raise UsageError(f"{LIST_VARIABLE} and {KEY_VARIABLE} belong together: name both")
        try:
            key = Path(key_file).read_bytes().strip()
        except OSError as err:
            raise UsageError(f"the key of the erasures is not readable: {err}") from err
        if len(key) < KEY_BYTES_MIN:
            raise UsageError(
                f"{key_file} has less than {KEY_BYTES_MIN} bytes: openssl rand -hex 32 makes a key"
            )
        return cls(path, key)

    @classmethod
    def of_environment(cls) -> "ErasureList | None":
        """Return the list that the environment names; None if it names none."""
        return cls.of(os.environ.get(LIST_VARIABLE), os.environ.get(KEY_VARIABLE))

    def persons(self, spark: SparkSession) -> Persons:
        """Return who is listed now. Raises PipelineError: the list is of another key."""
        return self._listed(Folder(spark, self.path))

    def local_persons(self) -> Persons:
        """Return `persons` of a list in a folder of this machine, without Spark."""
        return self._listed(LocalFolder(self.path))

    def add(self, spark: SparkSession, ids: list[tuple[IdKind, str]]) -> Persons:
        """List these ids, if they are not, and return who is listed."""
        folder = Folder(spark, self.path)
        persons = self._listed(folder)
        folder.create(self._key_name, "")
        entry = json.dumps({"erased_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"})
        for kind, text in ids:
            folder.create(persons.hash_of(kind, text) + _ENTRY, entry)
        return self._listed(folder)

    @property
    def _key_name(self) -> str:
        return _KEY_FILE + hmac.digest(self.key, b"key", "sha256").hex()[:16]

    def _listed(self, folder: _Listing) -> Persons:
        names = [name for name in folder.names() if not name.endswith((".crc", ".tmp"))]
        if any(name.startswith(_KEY_FILE) and name != self._key_name for name in names):
            raise PipelineError(f"the hashes in {self.path} are of another key than that of {KEY_VARIABLE}")
        entries = (name.removesuffix(_ENTRY) for name in names if name.endswith(_ENTRY))
        return Persons(self.key, frozenset(entries))


def apply_erasures(records: DataFrame) -> DataFrame:
    """Return records of schema.RECORD and others, those of persons who are listed now erased."""
    return _applied(records, erased_records)


def apply_to_archive(rows: DataFrame) -> DataFrame:
    """Return the rows of an archive, those of persons who are listed now erased."""
    return _applied(rows, with_erased_rows)


def leave_out_erased(records: DataFrame) -> DataFrame:
    """Return the records of schema.RECORD without those that are erased or of persons who are listed now."""
    return _applied(records, without_erased)


def leave_out_sessions(sessions: DataFrame) -> DataFrame:
    """Return sessions without those of persons who are listed now."""
    return _applied(sessions, partial(not_listed, in_sessions))


def _applied(rows: DataFrame, change: Change) -> DataFrame:
    """Return what a change makes of these rows; the rows as they are if nobody is listed."""
    persons = _listed_now(rows.sparkSession)
    if persons is None:
        return rows
    return rows.mapInArrow(partial(change, persons), rows.schema)


def _listed_now(spark: SparkSession) -> Persons | None:
    """Return who is listed now; None if nobody is."""
    listed = ErasureList.of_environment()
    persons = None if listed is None else listed.persons(spark)
    return persons if persons and persons.hashes else None
