"""
Claim: in each trouble that docs/runbooks names, its page's commands show it, and what it advises helps.
"""

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaProducer

from app.cli.load.connection import request
from loadtests.bench.load import send_all
from loadtests.bench.workload import make_bodies
from tests.fault.conftest import kafka_log
from tests.support.constants import IMPATIENT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post
from tests.support.kafka import KafkaBroker
from tests.support.runbooks import HEADINGS, RUNBOOKS, commands, run
from tests.support.waiting import until
from tests.support.workers import Workers

SECRET = {"GATEWAY_IDENTITY_SECRET": "an identity secret of tests"}
SMALL = {"GATEWAY_PARTITIONS": "2"}


def send(gateway: Gateway, events: list[dict[str, Any]]) -> httpx.Response:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        return post(client, "/v1/events", {"batch": events})


def send_made_up(gateway: Gateway, events: int) -> None:
    """Send so many new events."""
    send_all(gateway.port, [request(body) for body in make_bodies(events // 500, 500)], connections=8)


def rows(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


def wrong(text: str, result: str = "wrong") -> dict[str, str]:
    """Return what `gateway check` found, by what it is about."""
    return {row["about"]: row["says"] for row in rows(text) if row["result"] == result}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway on the embedded log, not started."""
    gateway = Gateway(tmp_path, SMALL | SECRET)
    yield gateway
    gateway.stop()


@pytest.mark.slow
def test_log_down(private_kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    servers = private_kafka_broker.bootstrap_servers
    env = {**kafka_log(servers).env, "GATEWAY_KAFKA_REQUEST_TIMEOUT": "5s"}
    events = [new_event() for _ in range(40)]
    with Gateway(tmp_path, env) as gateway:
        first = send(gateway, events)
        private_kafka_broker.stop()
        until(lambda: send(gateway, [new_event() for _ in range(40)]).status_code == 503)
        until(lambda: gateway.stats()["outage"])
        found = run("log-down", "Diagnosis", gateway, codes={"gateway check": 1})
        assert "no Kafka broker answers" in wrong(found["gateway check"], "unknown")["log"]
        assert "OUTAGE: " in found["gateway stats"]
        assert [row for row in rows(found["gateway partitions list"]) if row["last_error"]]
        assert not orjson.loads(found['curl -s "http://127.0.0.1:9090/readyz?verbose"'])["ready"]
        assert httpx.get(f"{gateway.admin_url}/livez").status_code == 200

        private_kafka_broker.start()
        until(gateway.is_ready)
        until(lambda: send(gateway, events).status_code == 200)
        again = send(gateway, events)
        assert (again.content, again.headers["Gateway-Duplicates"]) == (first.content, "40")
        found = run("log-down", "Mitigation", gateway)
        assert {row["state"] for row in rows(found["gateway partitions list"])} == {"active"}


async def test_lane_failed(kafka_bootstrap: str, tmp_path: Path) -> None:
    log = kafka_log(kafka_bootstrap)
    env = log.env
    with Gateway(tmp_path, env, constants=IMPATIENT) as gateway:
        producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
        await producer.start()
        foreign = await producer.send_and_wait(env["GATEWAY_TOPIC"], b"not of ours", partition=3)
        await producer.stop()
        until(lambda: send(gateway, [new_event() for _ in range(40)]).status_code == 503)
        until(lambda: gateway.stats()["partitions"][3]["last_error"])
        found = run("partition-down", "Diagnosis", gateway)
        (failed,) = [row for row in rows(found["gateway partitions list"]) if row["last_error"]]
        assert (failed["partition"], "LogCorruptError" in failed["last_error"]) == (3, True)
        assert wrong(found["gateway check"]) == {}

        run_on_broker = [line for line in commands("foreign-record", "Diagnosis") if "kafka-" in line]
        assert len(run_on_broker) == 1
        text = run_tool_line(run_on_broker[0], kafka_bootstrap, env["GATEWAY_TOPIC"], foreign.offset)
        assert "not of ours" in text
        skipped = commands("foreign-record", "Mitigation")
        assert skipped == ["gateway partitions skip 3 4711"]
        run("foreign-record", "Mitigation", gateway, words={"4711": str(foreign.offset)})
        until(lambda: send(gateway, [new_event() for _ in range(40)]).status_code == 200)


def run_tool_line(line: str, servers: str, topic: str, offset: int) -> str:
    from tests.support.kafka_tools import run_tool

    return run_tool(line.replace("--topic events", f"--topic {topic}").replace("4711", str(offset)), servers)


def test_index_corrupt(gateway: Gateway) -> None:
    def damage() -> None:
        (pointer,) = (gateway.data / "index" / "events" / "0").rglob("CURRENT")
        pointer.write_bytes(b"MANIFEST-999999\n")

    events = [new_event() for _ in range(60)]
    with gateway:
        first = send(gateway, events)
    damage()
    with gateway:
        again = send(gateway, events)
        assert (again.content, again.headers["Gateway-Duplicates"]) == (first.content, "60")
        assert [part["rebuilds"] for part in gateway.stats()["partitions"]] == [1, 0]
        assert "index is unusable, rebuilding it from the log" in gateway.log_path.read_text()
        found = run("index-corrupt", "Diagnosis", gateway)
        assert {row["state"] for row in rows(found["gateway partitions list"])} == {"active"}
    damage()
    run("index-corrupt", "Mitigation", gateway)
    with gateway:
        assert send(gateway, events).content == first.content
        assert [part["rebuilds"] for part in gateway.stats()["partitions"]] == [0, 0]


def test_disk_full(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, SMALL | {"GATEWAY_DISK_FREE_MIN": "100000TiB"})
    gateway.start(wait=False)
    try:
        gateway.wait_until_lanes_serve()
        assert send(gateway, [new_event()]).json()["code"] == "disk_full"
        found = run("disk-full", "Diagnosis", gateway, codes={"gateway check": 2})
        assert "less than GATEWAY_DISK_FREE_MIN" in wrong(found["gateway check"])["disk"]
        sizes = found["du -sh data/log.sqlite data/index"].splitlines()
        assert [line.split()[1] for line in sizes] == ["data/log.sqlite", "data/index"]
    finally:
        gateway.stop()


def test_clock_wrong(gateway: Gateway) -> None:
    events = [new_event() for _ in range(20)]
    with gateway:
        first = send(gateway, events)
    with closing(sqlite3.connect(gateway.data / "log.sqlite")) as database, database:
        month_ms = 30 * 86_400_000
        database.execute("UPDATE records SET timestamp_ms = timestamp_ms - ?", (month_ms,))
        database.execute("UPDATE meta SET value = value - ? WHERE key LIKE 'note/clock/%'", (month_ms,))
    assert cli(gateway, "serve").returncode == 2
    found = run("clock-wrong", "Diagnosis", gateway, codes={"gateway check": 2})
    assert "the log was last in use at" in wrong(found["gateway check"])["clock"]
    (command,) = commands("clock-wrong", "Mitigation")
    words = subprocess.run(["bash", "-c", f"echo {command}"], capture_output=True, text=True, check=True)
    believed = Gateway(
        gateway.folder, SMALL | SECRET, options=words.stdout.removeprefix("gateway serve").split()
    )
    with believed:
        assert send(believed, events).status_code == first.status_code == 200


def test_window_shrinking(tmp_path: Path) -> None:
    tight = Gateway(tmp_path, SMALL | {"GATEWAY_PARTITIONS": "1", "GATEWAY_INDEX_KEYS_MAX": "10000"})
    with tight:
        send_made_up(tight, 15_000)
        found = run("window-short", "Diagnosis", tight)
        row = rows(found["gateway partitions list"])[0]
        assert 10_000 <= row["keys"] < 15_000
        assert tight.stats()["partitions"][0]["window_seconds"] < 3_600
        settings = {row["variable"]: row for row in rows(found["gateway config"])}
        assert settings["GATEWAY_INDEX_KEYS_MAX"]["value"] == 10_000
    wide = Gateway(tmp_path, SMALL | {"GATEWAY_PARTITIONS": "1", "GATEWAY_INDEX_KEYS_MAX": "1000000"})
    with wide:
        send_made_up(wide, 5_000)
        assert wide.stats()["partitions"][0]["keys"] > 15_000


def test_retry_storm(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("{defaults: {burst: 1s}, keys: [{key: app, source: app}]}\n")
    gateway = Gateway(
        tmp_path / "gateway",
        SMALL | {"GATEWAY_WRITE_KEYS_FILE": str(keys)},
        constants={"app.round:LOOK_INTERVAL_S": 0.1},
    )
    with gateway:
        storm = ("--seconds", "1", "--batch", "20", "--write-key", "app", "--duplicates", "0.9")
        measured = orjson.loads(cli(gateway, "bench", *storm, "--url", gateway.url).stdout)
        assert measured["shares"]["duplicates"] > 0.75
        found = run("duplicates-unusual", "Diagnosis", gateway)
        (line,) = [line.split() for line in found["gateway sources"].splitlines() if line.startswith("app ")]
        accepted, duplicates = int(line[2]), int(line[3])
        assert duplicates > 3 * accepted
        assert "per s" in found["gateway stats --watch --output table"]

        (quotas,) = re.findall(r"`(quotas: .*?)`", (RUNBOOKS / "duplicates-unusual.md").read_text())
        keys.write_text(f"{{defaults: {{burst: 1s}}, keys: [{{key: app, source: app, {quotas}}}]}}\n")
        until(lambda: gateway.log_path.read_text().count("write keys read") == 2)
        measured = orjson.loads(cli(gateway, "bench", *storm, "--url", gateway.url).stdout)
        assert measured["refusals"]["quota_exceeded"] > 0
        assert measured["events_per_second"] < 100


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"GATEWAY_IDENTITY_SECRET": "another secret of tests"}, "GATEWAY_IDENTITY_SECRET"),
        ({"GATEWAY_PARTITIONS": "3"}, "2 partitions"),
    ],
    ids=["secret", "partitions"],
)
def test_wrong_identity(gateway: Gateway, other: dict[str, str], says: str) -> None:
    events = [new_event() for _ in range(20)]
    with gateway:
        first = send(gateway, events)
    mistaken = Gateway(gateway.folder, SMALL | SECRET | other)
    assert cli(mistaken, "serve").returncode == 3
    found = run("wrong-identity", "Diagnosis", mistaken, codes={"gateway check": 2})
    assert says in "".join(wrong(found["gateway check"]).values())
    shown = {row["variable"]: row["value"] for row in rows(found["gateway config --set"])}
    assert shown["GATEWAY_IDENTITY_SECRET"] == "(set)"

    assert wrong(run("wrong-identity", "Mitigation", gateway)["gateway check"]) == {}
    with gateway:
        assert send(gateway, events).content == first.content


def served(screen: str, worker: str) -> list[int]:
    """Return the partitions that a worker serves, by `gateway group`."""
    found = re.search(rf"^{re.escape(worker)}  +([\d,-]+)", screen, flags=re.MULTILINE)
    parts = found[1].split(",") if found else []
    return [n for ends in (part.split("-") for part in parts) for n in range(int(ends[0]), int(ends[-1]) + 1)]


@pytest.mark.slow
async def test_worker_gone(kafka_bootstrap: str, tmp_path: Path) -> None:
    workers = Workers(tmp_path, kafka_log(kafka_bootstrap).env, 2)
    try:
        await workers.start()
        gone, left = workers.all
        gone.kill()
        await workers.all_answer(left)
        found = run("worker-gone", "Diagnosis", left)
        assert served(found["gateway group"], left.name) == [0, 1, 2, 3]
        assert served(found["gateway group"], gone.name) == []
        gone.start()
        await workers.settle()
        shown = run("worker-gone", "Diagnosis", left)["gateway group"]
        assert sorted(served(shown, left.name) + served(shown, gone.name)) == [0, 1, 2, 3]
    finally:
        await workers.stop()


def test_every_drill_of_the_table_has_its_page_and_its_test() -> None:
    text = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    drills = re.findall(
        r"^\| (.*?) \| (.*?) \| (.*?) \|$", text.partition("## All pages")[0], flags=re.MULTILINE
    )
    for _, pages, tests in drills[1:]:
        for page in re.findall(r"\]\((.*?)\)", pages):
            headings = re.findall(
                r"^## (.*)", (RUNBOOKS / page).read_text(encoding="utf-8"), flags=re.MULTILINE
            )
            assert tuple(headings) == HEADINGS, page
        for name, file in re.findall(r"\[(\w+)\]\((.*?)\)", tests):
            assert f"def {name}(" in (RUNBOOKS / file).read_text(encoding="utf-8"), name
    assert len(drills[1:]) == 12
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text))
    assert listed == {page.name for page in RUNBOOKS.glob("*.md")} - {"README.md"}
