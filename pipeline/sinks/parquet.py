"""
A folder of Parquet files that every reader may take as it is: no duplicate and no half file, ever.

    out.staging/RUN/      a batch's files as Spark writes them; what a kill leaves here is nobody's
    out/_gateway/N.json   the manifest: the ledger after commit N, and the files it adds
    out/dt=.../*.parquet  the rows

A batch is staged, then committed by its manifest, which is created whole and only if there is none of
its number; then its files are moved into place, each at once. A job that was killed in between moves
the rest at its next start. So a reader may miss the last batch for a while, and never sees one twice.
Nothing lists older files: days may be deleted, and manifests but the last ones are.
"""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline.errors import PipelineError
from pipeline.runtime.folder import Folder, refuse_foreign
from pipeline.sinks.ledger import Ledger

MANIFESTS = "_gateway"
MANIFESTS_KEPT = 2
STAGING_KEPT_S = 24 * 3600.0
"""How long what a job staged may lie there before another one deletes it: far longer than any batch."""


@dataclass(frozen=True)
class ParquetFolder:
    """A sink of rows, in folders by these columns."""

    path: str
    folders: tuple[str, ...] = ()
    _run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ledger(self, spark: SparkSession) -> Ledger | None:
        """See Sink. Also moves what a killed job had committed and not yet moved."""
        out = Folder(spark, self.path)
        numbers = _commits(out)
        if not numbers:
            refuse_foreign(spark, self.path)
            self._clear_staging(spark)
            return None
        manifest = json.loads(out.read(_manifest(numbers[-1])))
        self._move(spark, manifest)
        self._clear_staging(spark)  # not before: what is committed may have waited there for long
        return Ledger.from_json(json.dumps(manifest["ledger"]))

    def stated_ledger(self, spark: SparkSession) -> Ledger | None:
        """Return what readers find there now, and touch nothing; None if no job of ours wrote there."""
        out = Folder(spark, self.path)
        if not (numbers := _commits(out)):
            return None
        manifest = json.loads(out.read(_manifest(numbers[-1])))
        ledger = Ledger.from_json(json.dumps(manifest["ledger"]))
        is_moved = set(manifest["files"]).isdisjoint(
            Folder(spark, f"{self._staging}/{manifest['staged']}").files()
        )
        return ledger if is_moved else ledger.before_last

    def store(self, rows: DataFrame, ledger: Ledger) -> None:
        """See Sink."""
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
        # Beside the output: some readers take whatever lies below it.
        return f"{self.path.rstrip('/')}.staging"

    def _move(self, spark: SparkSession, manifest: dict[str, Any]) -> None:
        """Bring a commit's files to where readers look; those that are there stay."""
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


def _commits(out: Folder) -> list[int]:
    """Return the numbers of the manifests, ascending."""
    names = (name.removesuffix(".json") for name in out.names(MANIFESTS) if name.endswith(".json"))
    return sorted(int(name) for name in names if name.isdigit())
