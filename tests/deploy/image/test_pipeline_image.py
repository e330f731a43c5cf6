"""
Claim: the image of the Spark jobs has the jars they need, archives a topic and audits the archive against it
as nobody in particular, on a root it does not write to.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.deploy.image.buildah import build, config, container, files_of, make_base, size_of, start
from tests.support.records import RecordMaker, fill_topic

IMAGE = "localhost/gateway-pipeline:test"
BYTES_MAX = 1_600_000_000
JOB_TIMEOUT_S = 240.0
HERE = {"SPARK_LOCAL_IP": "127.0.0.1"}
"""An engine gives a container a name that it can look up; the isolation by chroot does not."""
EVENTS = 300
LAKE = "/data/lake"

pytestmark = pytest.mark.timeout(1800)  # the build fetches half a gigabyte


@pytest.fixture(scope="module")
def image() -> str:
    make_base()
    build("pipeline", IMAGE)
    return IMAGE


@pytest.fixture
def made(image: str) -> Iterator[tuple[str, Path]]:
    with container(image) as found:
        yield found


def test_image_says_how_to_run_it_and_lists_what_it_holds(image: str, made: tuple[str, Path]) -> None:
    found, root = config(image), made[1]
    size = size_of(root)
    print(f"the image of the Spark jobs has {size / 1e6:.0f} MB, {size_of(root / 'venv') / 1e6:.0f} in /venv")
    assert size <= BYTES_MAX
    assert found["User"] == "10001:10001"
    assert found["Entrypoint"][0] == "/usr/bin/tini"
    jars = {path.name.rsplit("-", 1)[0] for path in (root / "venv").rglob("pyspark/jars/*.jar")}
    assert {"spark-sql-kafka-0-10_2.13", "delta-spark_2.13", "iceberg-spark-runtime-4.0_2.13"} <= jars
    assert {"hadoop-aws", "s3", "sts"} <= jars
    assert "gcs-connector-hadoop3-2.2.26" not in jars
    bom = json.loads((root / "usr/share/sbom/gateway-pipeline.cdx.json").read_text())
    parts = {part["name"] for part in bom["components"]}
    assert {"gateway-pipeline", "pyspark"} <= parts
    assert not parts & {"idempotent-ingestion-gateway", "fastapi", "uvicorn", "rocksdict"}
    assert not list((root / "usr/share").glob("maven*")), "the build's tools are left"


async def test_jobs_archive_a_topic_and_find_it_clean(
    made: tuple[str, Path], kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name, root = made
    maker = RecordMaker(2)
    clean = await topic("image", partitions=2, configs={"retention.ms": "-1"})
    lanes = maker.lanes(maker.event(f"id-{number}") for number in range(EVENTS))
    await fill_topic(kafka_bootstrap, clean, lanes)
    source = f"kafka://{kafka_bootstrap}/{clean}"
    before = files_of(root)

    archived = _run(name, tmp_path, "archive", "--source", source, "--out", LAKE, "--once")
    audited = _run(name, tmp_path, "audit", "--source", f"delta://{LAKE}", "--against", source)

    assert f"{EVENTS} records archived in delta://{LAKE}" in archived, archived
    assert "CLEAN" in audited, audited
    assert files_of(root) == before, "the jobs wrote to their root"


def _run(name: str, folder: Path, *arguments: str) -> str:
    """Run one job to its end and return what it said; it must end with 0."""
    log = folder / f"{arguments[0]}.log"
    process = start(name, [*config(IMAGE)["Entrypoint"], *arguments], env=HERE, log=log)
    try:
        code = process.wait(JOB_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    said = log.read_text()
    assert code == 0, said
    return said
