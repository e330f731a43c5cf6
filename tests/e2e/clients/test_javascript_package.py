"""Claim: the JavaScript client's package is what its sources say, small and typed, and works as installed."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clients.conformance.__main__ import run as conformance_run
from tests.support.documents import ROOT

PACKAGE = ROOT / "clients" / "javascript"
TESTS = ROOT / "tests" / "e2e" / "clients" / "javascript"
CORE_BYTES_MAX, ALL_BYTES_MAX = 7_600, 8_700
TIMEOUT_S = 240

USES = """
import { Analytics, Client, type Letter, type Place } from "gateway-client";
import { fileStorage } from "gateway-client/node";

const client: Client = new Analytics("http://127.0.0.1:1", "key", {
  storage: fileStorage("queue.jsonl"),
  onRejected: (letter: Letter) => console.log(letter.code),
  onProblem: (err: Error, since: Date) => console.log(err, since),
});
const place: Promise<Place | null> = client.track("Seen", { n: 1 });
const isDelivered: Promise<boolean> = client.flush(1_000);
console.log(place, isDelivered, client.isDurable, client.waiting);
console.log(client.oldest?.getTime(), client.lastError?.message);
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, built."""
    folder = tmp_path_factory.mktemp("package") / "javascript"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(TESTS / "node_modules")
    run("node", "build.mjs", "--dist", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the packed package is installed."""
    project = tmp_path_factory.mktemp("project")
    packed = run("npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", str(project), cwd=built)
    (project / "package.json").write_text('{"type": "module"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", packed.strip(), cwd=project)
    return project


def test_every_answer_every_storage_and_every_call() -> None:
    run("node", "--test", str(TESTS / "client.test.mjs"), cwd=ROOT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_passes_the_conformance_run(tmp_path: Path) -> None:
    assert conformance_run(f"node {TESTS / 'harness.mjs'}", tmp_path) == 0


def test_the_file_that_pages_copy_is_joined_from_the_sources(built: Path) -> None:
    assert (built / "gateway-client.js").read_text() == (PACKAGE / "gateway-client.js").read_text()
    (version,) = re.findall(r'VERSION = "(.*)"', (PACKAGE / "gateway-client.js").read_text())
    assert f'"version": "{version}"' in (PACKAGE / "package.json").read_text()


@pytest.mark.parametrize(
    ("name", "most"), [("gateway-client", CORE_BYTES_MAX), ("gateway-analytics", ALL_BYTES_MAX)]
)
def test_it_is_small(built: Path, name: str, most: int) -> None:
    assert len(gzip.compress((built / "dist" / f"{name}.min.js").read_bytes(), 9)) < most


def test_it_is_installed_and_imported_and_required(installed: Path) -> None:
    calls = (
        "new Client('http://127.0.0.1:1', 'key').close().then(() => console.log(VERSION, typeof Analytics))"
    )
    said = run(
        "node",
        "-e",
        f"import('gateway-client').then(({{Client, VERSION, Analytics}}) => {calls})",
        cwd=installed,
    )
    for name in ("gateway-client", "gateway-client/core", "gateway-client/node"):
        required = f"console.log(Object.keys(require('{name}')).length > 0)"
        assert run("node", "--input-type=commonjs", "-e", required, cwd=installed) == "true\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+ function\n", said)


def test_it_has_types(installed: Path) -> None:
    (installed / "uses.ts").write_text(USES)
    options = [
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
        "--module",
        "nodenext",
    ]
    types = ["--types", "node", "--typeRoots", str(TESTS / "node_modules" / "@types")]
    tsc = str(TESTS / "node_modules" / "typescript" / "bin" / "tsc")
    run("node", tsc, *options, "--skipLibCheck", *types, "uses.ts", cwd=installed)
