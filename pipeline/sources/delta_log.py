"""
The files and ledgers of a Delta table in a local folder, from its log, without Spark.

Only tables of reader version 1, which a Delta archive has unless somebody switched on a feature, such as
deletion vectors or column mapping. Of others, and of checkpoints in several parts, nothing is known here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow.parquet as pq

READER_VERSION = 1
LOG = "_delta_log"


class TableFile(NamedTuple):
    """A Parquet file, and the columns that its folder or its table gives all of its rows."""

    path: Path
    values: Mapping[str, str | None]


class DeltaSnapshot(NamedTuple):
    """A table after its last commit."""

    files: list[TableFile]
    messages: list[str]
    """The user metadata of the commits whose entries are still there, in order."""


def read_snapshot(table: Path) -> DeltaSnapshot | None:
    """Return a table's last snapshot; None if it has a feature that is not known here, or is no table."""
    log = table / LOG
    files: dict[str, dict[str, str | None]] = {}
    messages: list[str] = []
    checkpoint = _checkpoint(log)
    if checkpoint is None:
        return None
    version, actions = checkpoint
    commits = sorted(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    later = [commit for commit in commits if commit > version]
    if later != list(range(version + 1, version + 1 + len(later))) or (version < 0 and not later):
        return None
    for commit in later:
        lines = (log / f"{commit:020}.json").read_text().splitlines()
        actions += [json.loads(line) for line in lines if line]
    for action in actions:
        if (protocol := action.get("protocol")) and protocol["minReaderVersion"] != READER_VERSION:
            return None
        if add := action.get("add"):
            files[add["path"]] = dict(add["partitionValues"])
        elif remove := action.get("remove"):
            files.pop(remove["path"], None)
    for commit in commits:
        messages += _messages(log / f"{commit:020}.json")
    if any("://" in path for path in files):  # of a shallow clone
        return None
    return DeltaSnapshot([TableFile(table / unquote(path), v) for path, v in files.items()], messages)


def _checkpoint(log: Path) -> tuple[int, list[dict[str, Any]]] | None:
    """Return the version of the last checkpoint and its actions; -1 without one, None for an unknown kind."""
    place = log / "_last_checkpoint"
    if not place.exists():
        return -1, []
    told = json.loads(place.read_text())
    path = log / f"{told['version']:020}.checkpoint.parquet"
    if told.get("parts") or not path.exists():
        return None
    return told["version"], list(_rows(path))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    names = [name for name in ("add", "protocol") if name in file.schema_arrow.names]
    for row in file.read(columns=names).to_pylist():
        if row.get("add"):
            row["add"]["partitionValues"] = dict(row["add"]["partitionValues"] or ())
        yield row


def _messages(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        told = json.loads(line).get("commitInfo", {}).get("userMetadata") if '"commitInfo"' in line else None
        if told:
            yield told
