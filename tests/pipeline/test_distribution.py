"""Claim: the wheel of the jobs works without the gateway, and shares no file with the gateway's."""

import ast
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.runtime.session import JARS_VARIABLE, local_jars
from tests.pipeline.test_checks import clean
from tests.support.documents import ROOT
from tests.support.logs import append_to_log
from tests.support.records import RecordMaker
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = 120
NOT_NEEDED = ("app", "dedupe", "fastapi", "uvicorn", "rocksdict", "uvloop")
AUDIT = """
import importlib, pkgutil, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name + " is not installed")

sys.meta_path.insert(0, NotInstalled())
sys.path.insert(0, {site!r})
import pipeline
assert pipeline.__file__.startswith({site!r}), pipeline.__file__
for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
pipeline.cli.main(["audit", "--source", "log://{data}", "--engine", "local"])
"""


def built(project: Path, to: Path) -> Path:
    """Return the wheel of a project."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)]
    subprocess.run(command, cwd=project, capture_output=True, timeout=PATIENCE_S, check=True)
    (wheel,) = to.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "pipeline", tmp_path_factory.mktemp("jobs"))


def files_of(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_audits_a_log_without_the_gateway(wheel: Path, tmp_path: Path) -> None:
    append_to_log(tmp_path / "data", clean(RecordMaker()))
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = AUDIT.format(names=NOT_NEEDED, site=str(tmp_path / "site"), data=tmp_path / "data")

    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "CLEAN" in done.stdout


def test_it_shares_no_file_with_the_gateway_and_asks_for_nothing_of_it(wheel: Path, tmp_path: Path) -> None:
    names = files_of(wheel)
    assert {"pipeline/__main__.py", "pipeline/pom.xml", "pipeline/log4j2.properties"} <= names
    assert not names & files_of(built(ROOT, tmp_path))
    (about,) = (name for name in names if name.endswith("METADATA"))
    needed = message_from_bytes(zipfile.ZipFile(wheel).read(about)).get_all("Requires-Dist", [])
    assert not [line for line in needed if line.startswith((*NOT_NEEDED, "idempotent"))]


def test_it_asks_for_all_that_it_imports(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    imported = set[str]()
    for name in files_of(wheel):
        if name.endswith(".py"):
            imported |= modules_imported_by(archive.read(name))
    (about,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    asked = {
        re.split(r"[^\w-]", line)[0].lower().replace("-", "_")
        for line in message_from_bytes(archive.read(about)).get_all("Requires-Dist", [])
    }
    known = packages_distributions()
    others = imported - sys.stdlib_module_names - {"pipeline", "py4j"}  # py4j is pyspark's
    missing = [
        name
        for name in others
        if not asked & {owner.lower().replace("-", "_") for owner in known.get(name, [])}
    ]
    missing.remove("aws_msk_iam_sasl_signer")  # of the extra msk, and not installed here
    assert {"pyspark", "pyarrow"} <= others
    assert not missing


def modules_imported_by(source: bytes) -> set[str]:
    """Return the top-level names of what a file imports, wherever in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_the_wheel_of_its_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "pipeline", capture_output=True, timeout=PATIENCE_S, check=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", sdist.name], cwd=tmp_path, timeout=PATIENCE_S, check=True)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert files_of(built(folder, tmp_path / "again")) == files_of(wheel)


def test_who_has_no_jars_reads_their_coordinates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(UsageError) as refused:
        local_jars(frozenset({"kafka", "delta"}))
    named = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,io.delta:delta-spark_2.13:4.0.0"
    assert str(refused.value).endswith(f"--conf spark.jars.packages={named}")
