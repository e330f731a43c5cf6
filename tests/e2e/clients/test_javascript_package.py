"""Claim: the JavaScript client's package is what its sources say, small and typed, and works as installed."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from clients.conformance.__main__ import run as conformance_run
from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.verdict import read_sqlite

PACKAGE = ROOT / "clients" / "javascript"
TESTS = ROOT / "tests" / "e2e" / "clients" / "javascript"
CORE_BYTES_MAX, ALL_BYTES_MAX = 5 * 1024, 9 * 1024
TIMEOUT_S = 240

USES = """
import { Analytics, type Client, type Letter, type Place } from "gateway-client";
import { fileStorage } from "gateway-client/node";

const client = new Analytics("http://127.0.0.1:1", "key", {
  storage: fileStorage("queue.jsonl"),
  onRejected: (letter: Letter) => console.log(letter.code),
  onProblem: (err: Error, since: Date) => console.log(err, since),
});
const place: Promise<Place | null> = client.track("Seen", { n: 1 });
const isDelivered: Promise<boolean> = client.flush(1_000);
const core: Client = client;
console.log(place, isDelivered, core.isDurable, core.waiting);
console.log(client.oldest?.getTime(), client.lastError?.message);
"""


DELIVERS = """
const { Analytics, Client } = await import(process.argv[1]);
const kind = Analytics ?? Client;
const { fileStorage } = await import("./dist/node-storage.cjs");
const [, , url, path] = process.argv;
for (const host of ["http://127.0.0.1:1", url]) {
  const client = new kind(host, "minified", { storage: fileStorage(path), timeoutMs: 5_000 });
  await client.track(`To ${host}`, { n: 1 });
  console.log(await client.flush(host === url ? 30_000 : 100), client.isDurable, client.waiting);
  await client.close();
}
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
@pytest.mark.parametrize("scenario", ["lost_answers", "poison", "killed"])
def test_it_passes_what_its_core_passes_in_the_conformance_run(scenario: str, tmp_path: Path) -> None:
    assert conformance_run(f"node {TESTS / 'harness.mjs'}", tmp_path, only=scenario) == 0


def test_the_file_that_pages_copy_is_joined_from_the_sources(built: Path) -> None:
    assert (built / "gateway-client.js").read_text() == (PACKAGE / "gateway-client.js").read_text()
    (version,) = re.findall(r'VERSION = "(.*)"', (PACKAGE / "gateway-client.js").read_text())
    assert f'"version": "{version}"' in (PACKAGE / "package.json").read_text()


@pytest.mark.parametrize(
    ("name", "most"), [("gateway-client", CORE_BYTES_MAX), ("gateway-analytics", ALL_BYTES_MAX)]
)
def test_it_is_small(built: Path, name: str, most: int) -> None:
    assert len(gzip.compress((built / "dist" / f"{name}.min.js").read_bytes(), 9)) < most


@pytest.mark.regression("Nothing ran the minified builds, whose properties have other names.")
@pytest.mark.parametrize("name", ["gateway-client.min.js", "gateway-analytics.min.js"])
def test_what_is_minified_delivers_what_the_run_before_left(built: Path, name: str, tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        told = run(
            "node",
            "--input-type=module",
            "-e",
            DELIVERS,
            f"./dist/{name}",
            gateway.url,
            str(tmp_path / "queue.jsonl"),
            cwd=built,
        )
        assert told == "false true 1\ntrue true 0\n"
        events = [orjson.loads(record.value)["event"] for record in read_sqlite(gateway.data)]
    assert sorted(events) == ["To http://127.0.0.1:1", f"To {gateway.url}"]


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
