"""
Spark's checkpoint of a stream: the offsets of each planned batch, the number of each finished one.

Read as text files through Spark, so that any storage will do, and Spark Connect too.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from pipeline.runtime.folder import Folder, read_if_there
from pipeline.sources.records import Offsets


class CheckpointState(NamedTuple):
    """The position of a stream according to its checkpoint."""

    query: str
    committed: int  # the last finished batch; -1 for none
    offsets: Offsets  # where that batch ended, or where the first one began
    topic: str | None  # of these offsets; None if the checkpoint does not name it
    planned: int  # the last batch whose range is fixed: `committed`, or the one after it


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one query."""

    path: str

    def read_state(self, spark: SparkSession) -> CheckpointState | None:
        """Return the position of its query; None if there is no checkpoint."""
        query = self.query(spark)
        if query is None:
            return None
        done = self._batches(spark, "commits")
        committed = max(done, default=-1)
        last = f"offsets/{committed}" if done else "sources/0/0"
        topic, offsets = parse_offsets(self._last_line(spark, last))
        planned = max(self._batches(spark, "offsets"), default=-1)
        return CheckpointState(query, committed, offsets, topic, planned)

    def query(self, spark: SparkSession) -> str | None:
        """Return the id of its query, unique to this checkpoint; None if there is no checkpoint."""
        line = self._last_line(spark, "metadata")
        return None if line is None else str(json.loads(line)["id"])

    def planned_end(self, spark: SparkSession, batch_id: int) -> Offsets:
        """Return the end offsets of the running batch, or of a recent one."""
        return parse_offsets(self._last_line(spark, f"offsets/{batch_id}"))[1]

    def delete(self, spark: SparkSession) -> None:
        """Delete it. Raises UsageError on Spark Connect."""
        Folder(spark, self.path).delete()

    def _last_line(self, spark: SparkSession, name: str) -> str | None:
        lines = read_if_there(spark.read.format("text").option("wholetext", True), f"{self.path}/{name}")
        return str(lines[0][0]).strip().rpartition("\n")[2] if lines else None

    def _batches(self, spark: SparkSession, name: str) -> list[int]:
        """Return the numbers of the batches that have a file in a folder."""
        rows = read_if_there(spark.read.format("binaryFile"), f"{self.path}/{name}", "path")
        names = (str(row[0]).rpartition("/")[2] for row in rows)
        return [int(name) for name in names if name.isdigit()]


def default_checkpoint(output: str, job: str, identity: str) -> str:
    """Return the checkpoint of a job beside its output, for a source of this identity."""
    return f"{output.rstrip('/')}.checkpoint/{job}-{zlib.crc32(identity.encode()):08x}"


def parse_offsets(position: object) -> tuple[str | None, Offsets]:
    """
    Return the topic, if it is named, and the offsets of a source's position, which may be JSON text.

    Kafka's is {"topic": {"0": 5}}, the embedded log's {"0": 5}; other sources have no offsets.
    """
    if isinstance(position, str):
        try:
            position = json.loads(position)
        except ValueError:
            return None, {}
    topic: str | None = None
    if isinstance(position, dict) and len(position) == 1:
        ((name, only),) = position.items()
        if isinstance(only, dict):
            topic, position = name, only
    if isinstance(position, dict) and all(_is_offset(name, offset) for name, offset in position.items()):
        return topic, {int(name): offset for name, offset in position.items()}
    return None, {}


def _is_offset(name: Any, offset: Any) -> bool:
    return str(name).isdigit() and isinstance(offset, int)
