"""A folder of any file system that Spark reaches, through Hadoop: list, read, create, move, delete."""

from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, Row, SparkSession

from pipeline.errors import UsageError


class Folder:
    """One folder; names are relative to it. An error of the file system is a Py4JJavaError."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """
        Raises:
            UsageError: clients of Spark Connect have no access to file systems.
        """
        if is_remote(spark):
            raise UsageError(f"Spark Connect does not let a job manage the files of {path}: run it elsewhere")
        classic: Any = spark
        self._jvm, self._gateway = classic._jvm, classic.sparkContext._gateway
        self._root: Any = self._jvm.org.apache.hadoop.fs.Path(path)
        self._conf = classic._jsc.hadoopConfiguration()
        self._files = self._root.getFileSystem(self._conf)

    def names(self, name: str = "") -> list[str]:
        """Return the names in it, or in a folder of it; nothing if that does not exist."""
        path = self._path(name)
        if not self._files.exists(path):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(path)]

    def files(self) -> list[str]:
        """Return the files in it and below, as paths relative to it."""
        if not self._files.exists(self._root):
            return []
        root = self._files.makeQualified(self._root).toString().rstrip("/") + "/"
        names, statuses = [], self._files.listFiles(self._root, True)
        while statuses.hasNext():
            names.append(statuses.next().getPath().toString().removeprefix(root))
        return names

    def read(self, name: str) -> str:
        """Return a text file."""
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, name: str, text: str) -> bool:
        """Create a text file atomically; return False if the name is taken."""
        target = self._path(name)
        if self._files.exists(target):
            return False
        staged = self._path(f"{name}.{self._jvm.java.util.UUID.randomUUID()}.tmp")
        stream = self._files.create(staged, False)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        try:
            # Unlike FileSystem's, this rename replaces no file; Spark commits its checkpoints by it, too.
            contexts = self._jvm.org.apache.hadoop.fs.FileContext
            kinds = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
            options = self._gateway.new_array(kinds, 1)
            options[0] = kinds.NONE
            contexts.getFileContext(self._root.toUri(), self._conf).rename(staged, target, options)
        except Py4JJavaError:
            self._files.delete(staged, False)
            if self._files.exists(target):
                return False
            raise
        return True

    def move(self, name: str, target: "Folder") -> None:
        """Move a file into another folder under the same name, unless it is there already."""
        path = target._path(name)
        self._files.mkdirs(path.getParent())
        if not self._files.rename(self._path(name), path) and not self._files.exists(path):
            raise FileNotFoundError(f"{name} is neither staged nor in {target._root}")

    def delete(self, name: str = "") -> None:
        """Delete a file or a folder of it, or all of it."""
        self._files.delete(self._path(name), True)

    def age_s(self, name: str) -> float:
        """Return the time since the last change of an entry."""
        changed_ms = self._files.getFileStatus(self._path(name)).getModificationTime()
        return float(self._jvm.java.lang.System.currentTimeMillis() - changed_ms) / 1000

    def _path(self, name: str) -> Any:
        paths = self._jvm.org.apache.hadoop.fs.Path
        return paths(self._root, name) if name else self._root


def require_empty(spark: SparkSession, path: str, allowed: frozenset[str] = frozenset()) -> None:
    """
    Refuse an output with other files than these. Does nothing on Spark Connect.

    Raises:
        UsageError: there are other files.
    """
    if not is_remote(spark) and (others := sorted(set(Folder(spark, path).names()) - allowed)):
        raise UsageError(f"{path} holds {others[0]} and no ledger of this job: name another output")


def read_if_there(reader: DataFrameReader, path: str, *columns: str) -> list[Row]:
    """Return the rows at a path; none if it does not exist."""
    try:
        rows = reader.load(path)
        return (rows.select(*columns) if columns else rows).collect()
    except AnalysisException as err:
        if err.getCondition() == "PATH_NOT_FOUND":
            return []
        raise


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect."""
    return "connect" in type(spark).__module__


class LocalFolder:
    """A folder of this machine, to read without Spark; names are relative to it."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def names(self, name: str = "") -> list[str]:
        """Return the names in it, or in a folder of it; nothing if that does not exist."""
        folder = self._root / name
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []

    def files(self) -> list[str]:
        """Return the files in it and below, as paths relative to it."""
        return [str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()]

    def read(self, name: str) -> str:
        """Return a text file."""
        return (self._root / name).read_text()
