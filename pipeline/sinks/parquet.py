"""
A folder of Parquet files without duplicates and partial files, for any reader.

    out.staging/RUN/      the files of a batch as Spark writes them; a kill leaves some here
    out/_gateway/N.json   the manifest: the ledger after commit N, and the files it adds
    out/dt=.../*.parquet  the rows

The job stages a batch and commits it by its manifest, which is created atomically unless its number is
taken. Then it moves each file into place atomically. A job that was killed in between moves the rest at
its next start. So a reader may miss the last batch for a while, and never sees a batch twice. No manifest
lists older files: days may be deleted, and old manifests are.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.folder import Folder, LocalFolder, require_empty
from pipeline.sinks.ledger import Ledger

MANIFESTS = "_gateway"
MANIFESTS_KEPT = 2
STAGING_KEPT_S = 24 * 3600.0
"""Age at which staged files are deleted: far longer than a batch takes."""


@dataclass(frozen=True)
class ParquetFolder:
    """A sink of rows, partitioned by these columns."""

    path: str
    folders: tuple[str, ...] = ()
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger; first moves files that a killed job had committed and not moved."""
        manifest = _last_manifest(Folder(spark, self.path))
        if manifest is None:
            require_empty(spark, self.path)
        else:
            self._move(spark, manifest)
        self._clear_staging(spark)  # last, since committed files may be old
        return None if manifest is None else _ledger_of(manifest)

    def published_ledger(self, spark: SparkSession) -> Ledger | None:
        """Return the ledger of what readers see, without a change; None if no job has written there."""
        return self._published(partial(Folder, spark))

    def local_ledger(self) -> Ledger | None:
        """Return `published_ledger` of a folder of this machine, without Spark."""
        return self._published(LocalFolder)

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        spark = rows.sparkSession
        out = Folder(spark, self.path)
        staged = f"{self._run}/{ledger.commit}"
        rows.write.partitionBy(*self.folders).parquet(f"{self._staging}/{staged}")
        files = [
            name for name in Folder(spark, f"{self._staging}/{staged}").files() if name.endswith(".parquet")
        ]
        manifest = {"ledger": json.loads(ledger.to_json()), "staged": staged, "files": files}
        is_created = out.create(_manifest(ledger.commit), json.dumps(manifest))
        if not is_created or _commits(out)[-1] != ledger.commit:
            if is_created:
                out.delete(_manifest(ledger.commit))
            raise PipelineError(f"another job writes into {self.path}: stop one of them")
        self._move(spark, manifest)
        for number in _commits(out)[:-MANIFESTS_KEPT]:
            out.delete(_manifest(number))

    @property
    def _staging(self) -> str:
        # Beside the output, since some readers take every file below it.
        return f"{self.path.rstrip('/')}.staging"

    def _published(self, open_folder: Callable[[str], Folder | LocalFolder]) -> Ledger | None:
        manifest = _last_manifest(open_folder(self.path))
        if manifest is None:
            return None
        staged = open_folder(f"{self._staging}/{manifest['staged']}").files()
        ledger = _ledger_of(manifest)
        return ledger if set(manifest["files"]).isdisjoint(staged) else ledger.before_last

    def _move(self, spark: SparkSession, manifest: dict[str, Any]) -> None:
        """Move the files of a commit to where readers look, unless they are there."""
        staged, out = Folder(spark, f"{self._staging}/{manifest['staged']}"), Folder(spark, self.path)
        if left := set(staged.files()):
            for name in manifest["files"]:
                if name in left:
                    staged.move(name, out)
            staged.delete()

    def _clear_staging(self, spark: SparkSession) -> None:
        staging = Folder(spark, self._staging)
        for run in staging.names():
            if staging.age_s(run) > STAGING_KEPT_S:
                staging.delete(run)


def _manifest(commit: int) -> str:
    return f"{MANIFESTS}/{commit:020}.json"


def _last_manifest(out: Folder | LocalFolder) -> dict[str, Any] | None:
    numbers = _commits(out)
    return dict(json.loads(out.read(_manifest(numbers[-1])))) if numbers else None


def _ledger_of(manifest: dict[str, Any]) -> Ledger:
    return Ledger.from_json(json.dumps(manifest["ledger"]))


def _commits(out: Folder | LocalFolder) -> list[int]:
    """Return the numbers of the manifests, ascending."""
    names = (name.removesuffix(".json") for name in out.names(MANIFESTS) if name.endswith(".json"))
    return sorted(int(name) for name in names if name.isdigit())
