"""
A checkpoint: where Spark writes each batch's offsets before it runs it, and its number when it is done.

Read as plain text files, so that it works wherever a checkpoint lies, on Spark Connect too.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pipeline.runtime.folder import Folder
from pipeline.sources.records import Offsets


class Reached(NamedTuple):
    """How far a checkpoint says that its job is."""

    query: str
    committed: int  # the last finished batch; -1 for none
    offsets: Offsets  # where that batch ended, or where the first one began
    topic: str | None  # whose offsets these are, where that is said
    planned: int  # the last batch whose range is fixed: `committed`, or the one after it


@dataclass(frozen=True)
class Checkpoint:
    """One query's folder."""

    path: str

    def reached(self, spark: SparkSession) -> Reached | None:
        """Return how far its query is; None if there is none."""
        query = self.query(spark)
        if query is None:
            return None
        done = [int(name) for name in _names(spark, f"{self.path}/commits") if name.isdigit()]
        committed = max(done, default=-1)
        last = f"offsets/{committed}" if done else "sources/0/0"
        topic, offsets = parse_offsets(_last_line(spark, f"{self.path}/{last}"))
        planned = (int(name) for name in _names(spark, f"{self.path}/offsets") if name.isdigit())
        return Reached(query, committed, offsets, topic, max(planned, default=-1))

    def query(self, spark: SparkSession) -> str | None:
        """Return its query's id, which a new checkpoint does not share; None if there is none."""
        line = _last_line(spark, f"{self.path}/metadata")
        return None if line is None else str(json.loads(line)["id"])

    def planned_end(self, spark: SparkSession, batch_id: int) -> Offsets:
        """Return where a batch ends that runs, or has run lately."""
        return parse_offsets(_last_line(spark, f"{self.path}/offsets/{batch_id}"))[1]

    def delete(self, spark: SparkSession) -> None:
        """Delete it. Raises UsageError on Spark Connect."""
        Folder(spark, self.path).delete()


def default_checkpoint(output: str, job: str, identity: str) -> str:
    """Return the folder beside an output where a job remembers how far it is in a source of this identity."""
    return f"{output.rstrip('/')}.checkpoint/{job}-{zlib.crc32(identity.encode()):08x}"


def parse_offsets(found: object) -> tuple[str | None, Offsets]:
    """
    Return the topic, where it is said, and the offsets of a source's position, maybe as JSON's text.

    A topic's is {"topic": {"0": 5}}, an embedded log's {"0": 5}; of others nothing is returned.
    """
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None, {}
    topic: str | None = None
    if isinstance(found, dict) and len(found) == 1:
        ((name, only),) = found.items()
        if isinstance(only, dict):
            topic, found = name, only
    if isinstance(found, dict) and all(_is_offset(name, offset) for name, offset in found.items()):
        return topic, {int(name): offset for name, offset in found.items()}
    return None, {}


def _is_offset(name: Any, offset: Any) -> bool:
    return str(name).isdigit() and isinstance(offset, int)


def _last_line(spark: SparkSession, path: str) -> str | None:
    try:
        lines = spark.read.text(path, wholetext=True).collect()
    except AnalysisException as err:
        if err.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return str(lines[0][0]).strip().rpartition("\n")[2] if lines else None


def _names(spark: SparkSession, path: str) -> list[str]:
    try:
        rows = spark.read.format("binaryFile").load(path).select("path").collect()
    except AnalysisException as err:
        if err.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [str(row[0]).rpartition("/")[2] for row in rows]
