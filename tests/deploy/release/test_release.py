"""
Claim: `make release` makes all that is published and pushes it, and what README and the notes of the release
say installs from there: the wheels, the image by `docker run`, and the chart by `helm install`.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.chart.helm import HELM, PROFILES
from tests.deploy.image.buildah import (
    ROOT,
    buildah,
    command_of,
    config,
    container,
    end,
    make_base,
    options,
    start,
    wait_until_ready,
)
from tests.deploy.release.registry import registry
from tests.support.processes import HOST, free_port, http_server

VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
CLIENTS = "1.0.0"
TIMEOUT_S = 3600

pytestmark = pytest.mark.timeout(4000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def released(address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release that was pushed. The Spark jobs' image is built by make image-test."""
    make_base()
    out = tmp_path_factory.mktemp("dist")
    words = [VERSION, "--registry", address, "--plain-http", "--images", "gateway", "--uncommitted"]
    buildah_of = {"BUILDAH": shlex.join(command_of()), "BUILD_OPTIONS": shlex.join(options())}
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", *words, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, **buildah_of, "BUILDAH_ISOLATION": "chroot"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return out


def test_everything_is_there_and_has_a_checksum(released: Path, address: str) -> None:
    names = {path.name for path in released.iterdir()}
    expected = {
        f"idempotent_ingestion_gateway-{VERSION}-py3-none-any.whl",
        f"idempotent_ingestion_gateway-{VERSION}.tar.gz",
        f"gateway_pipeline-{VERSION}-py3-none-any.whl",
        f"gateway_pipeline-{VERSION}.tar.gz",
        f"gateway_native-{VERSION}.tar.gz",
        f"idempotent_gateway_client-{CLIENTS}-py3-none-any.whl",
        f"idempotent_gateway_client-{CLIENTS}.tar.gz",
        f"gateway-client-{CLIENTS}.tgz",
        f"gateway-client-{CLIENTS}.jar",
        f"gateway-client-{CLIENTS}.pom",
        f"gateway-{VERSION}.tgz",
        f"pipeline-{VERSION}.tgz",
        f"gateway-{VERSION}.cdx.json",
        "pushed.txt",
        "SHA256SUMS",
    }
    assert expected <= names
    others = " ".join(sorted(names - expected))
    machine = r"gateway-[\d.]+-linux-\w+\.oci\.tar gateway_native-[\d.]+-cp311-abi3-\w+\.whl"
    assert re.fullmatch(machine, others), others
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=released, check=True)
    listed = (released / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in listed} == names - {"SHA256SUMS"}
    pushed = (released / "pushed.txt").read_text()
    for name in (f"{address}/gateway", f"oci://{address}/charts/gateway", f"oci://{address}/charts/pipeline"):
        assert re.search(rf"^{re.escape(name)}:{VERSION}@sha256:[0-9a-f]{{64}}$", pushed, re.MULTILINE)


def test_the_bill_lists_what_the_image_holds(released: Path) -> None:
    bill = json.loads((released / f"gateway-{VERSION}.cdx.json").read_text())
    components = {component["name"]: component["version"] for component in bill["components"]}
    assert components["idempotent-ingestion-gateway"] == components["gateway-native"] == VERSION
    assert {"rocksdict", "libc6", "python"} <= components.keys()


def test_the_wheels_serve_with_the_native_module(released: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install"]
    names = [
        f"idempotent-ingestion-gateway=={VERSION}",
        f"gateway-native=={VERSION}",
        "idempotent-gateway-client",
    ]
    limits = ["--quiet", "--constraint", str(ROOT / "constraints.txt"), "--find-links", str(released)]
    subprocess.run([*pip, *limits, *names], check=True, timeout=300)
    port, admin_port = free_port(), free_port()
    env = {
        "PATH": "/usr/bin:/bin",
        "GATEWAY_MODE": "development",
        "GATEWAY_NATIVE": "required",
        "GATEWAY_DATA_DIR": str(tmp_path / "data"),
        "GATEWAY_PORT": str(port),
        "GATEWAY_ADMIN_PORT": str(admin_port),
    }
    command = [str(environment / "bin" / "gateway"), "serve"]
    ready = f"http://{HOST}:{admin_port}/readyz"
    with http_server(command, tmp_path / "log", greet=lambda: httpx.get(ready), env=env):
        client = (
            "import gateway_client as c, sys\n"
            f"client = c.Client('http://{HOST}:{port}', 'key', path=sys.argv[1])\n"
            "client.track('Released', user_id='u')\n"
            "assert client.flush(20)\nclient.close()\n"
        )
        subprocess.run([python, "-c", client, str(tmp_path / "queue")], cwd=tmp_path, check=True, timeout=60)
        stats = httpx.get(f"http://{HOST}:{admin_port}/admin/v1/stats").json()
    assert (stats["version"], stats["totals"]["accepted"]) == (VERSION, 1)


def test_the_image_of_the_registry_runs_as_readme_says(released: Path, address: str, tmp_path: Path) -> None:
    (line,) = re.findall(r"^docker run .*$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    words = shlex.split(line)
    assert words[-1] == f"$REGISTRY/gateway:{VERSION}"
    env = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-e")
    image = f"{address}/gateway:{VERSION}"
    buildah("rmi", image)
    buildah("pull", "--tls-verify=false", image)
    found = config(image)
    assert found["Labels"]["org.opencontainers.image.version"] == VERSION
    port, admin_port = free_port(), free_port()
    ports = {"GATEWAY_PORT": str(port), "GATEWAY_ADMIN_PORT": str(admin_port)}
    with container(image) as (name, _):
        process = start(
            name, [*found["Entrypoint"], *found["Cmd"]], env={**env, **ports}, log=tmp_path / "log"
        )
        try:
            wait_until_ready(f"http://{HOST}:{admin_port}/readyz", process, tmp_path / "log")
            event = {"messageId": "released-1", "type": "track", "event": "Released"}
            answer = httpx.post(f"http://{HOST}:{port}/v1/events", json=[event], auth=("key", ""))
            page = httpx.get(f"http://{HOST}:{admin_port}/console/")
        finally:
            end(process)
    assert answer.json()["receipts"][0]["messageId"] == "released-1"
    assert page.status_code == httpx.codes.OK


@pytest.mark.parametrize(
    ("chart", "image", "options"),
    [
        ("gateway", "gateway", ["--values", PROFILES / "development.yaml"]),
        ("pipeline", "gateway-pipeline", ["--set", "kafka.bootstrapServers=kafka:9092"]),
    ],
)
def test_a_chart_of_the_registry_installs_the_image_of_the_registry(
    released: Path, address: str, tmp_path: Path, chart: str, image: str, options: list[str | Path]
) -> None:
    command = [HELM, "template", "events", f"oci://{address}/charts/{chart}", "--version", VERSION]
    for more, host in (
        ([], address),
        (["--set", "global.imageRegistry=mirror.example.com"], "mirror.example.com"),
    ):
        env = {**os.environ, "HELM_CACHE_HOME": str(tmp_path)}
        words = [*command, "--plain-http", *options, *more]
        text = subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout
        assert set(re.findall(r"image: \"?([^\s\"]+)", text)) == {f"{host}/{image}:{VERSION}"}
