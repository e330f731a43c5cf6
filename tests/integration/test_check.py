"""Claim: `gateway check` names everything that a start would refuse, at once, and changes nothing."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import orjson
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post
from tests.support.processes import HOST, free_port

Finding = tuple[str, str, str]

SERVED = {
    "GATEWAY_PARTITIONS": "2",
    "GATEWAY_IDENTITY_SECRET": "an identity secret of tests",
}


def findings(gateway: Gateway, *, code: int) -> list[Finding]:
    """Return what the command prints, and demand its exit code."""
    done = cli(gateway, "check", "-o", "json")
    assert (done.returncode, done.stderr) == (code, b""), done.stdout.decode()
    lines = [orjson.loads(line) for line in done.stdout.splitlines()]
    return [(line["result"], line["about"], line["says"]) for line in lines]


def of(found: list[Finding], *results: str) -> list[tuple[str, str]]:
    return [(about, says) for result, about, says in found if result in results]


def files_of(folder: Path) -> dict[Path, bytes]:
    """Return what is in a folder, but for what every reader of SQLite leaves there."""
    kept = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {path: path.read_bytes() for path in kept}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that has stored an event, and stopped."""
    gateway = Gateway(tmp_path, SERVED)
    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(client, "/v1/batch", {"batch": [new_event() for _ in range(20)]}).raise_for_status()
    yield gateway
    gateway.stop()


def test_folder_that_was_never_used_is_fine_and_stays_unmade(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    found = findings(gateway, code=0)
    assert of(found, "wrong", "unknown") == []
    assert ("ok", "log", f"there is none yet in {gateway.data}: a start begins one") in found
    assert not gateway.data.exists()


def test_log_that_was_served_is_fine_and_stays_as_it_is(served: Gateway) -> None:
    before = files_of(served.data)
    found = findings(served, code=0)
    assert of(found, "wrong", "unknown") == []
    assert ("ok", "identity secret", "the log was begun with it") in found
    assert ("ok", "clock", "it fits the log") in found
    assert files_of(served.data) == before


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- source: web\n")
    folder = tmp_path / "a-file"
    folder.write_text("")
    gateway = Gateway(
        tmp_path,
        {
            "GATEWAY_PARTITION": "3",
            "GATEWAY_DATA_DIR": str(folder),
            "GATEWAY_WRITE_KEYS_FILE": str(keys),
            "GATEWAY_PEER_TLS_CA_FILE": str(tmp_path / "missing.pem"),
            "GATEWAY_PEER_TLS_CERT_FILE": str(keys),
            "GATEWAY_PEER_TLS_KEY_FILE": str(keys),
            "GATEWAY_DISK_FREE_MIN": "900TiB",
        },
    )
    wrong = of(findings(gateway, code=2), "wrong")
    assert [about for about, _ in wrong] == ["variables", "files", "write keys", "data folder", "disk"]
    assert wrong[0][1].startswith("GATEWAY_PARTITION is not a setting")


@pytest.mark.regression("One malformed setting hid everything else that was wrong.")
def test_malformed_and_contradicting_settings_hide_nothing_else(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- source: web\n")
    folder = tmp_path / "a-file"
    folder.write_text("")
    gateway = Gateway(
        tmp_path,
        {
            "GATEWAY_PARTITION": "3",
            "GATEWAY_PARTITIONS": "three",
            "GATEWAY_ANSWER_TIMEOUT": "soon",
            "GATEWAY_WINDOW": "1h",
            "GATEWAY_DATA_DIR": str(folder),
            "GATEWAY_WRITE_KEYS_FILE": str(keys),
            "GATEWAY_PEER_TLS_CA_FILE": str(tmp_path / "missing.pem"),
            "GATEWAY_DISK_FREE_MIN": "900TiB",
        },
    )
    wrong = of(findings(gateway, code=2), "wrong")
    assert [(about, says.partition(" ")[0].rstrip(":")) for about, says in wrong[:5]] == [
        ("variables", "GATEWAY_PARTITION"),
        ("settings", "GATEWAY_PARTITIONS"),
        ("settings", "GATEWAY_ANSWER_TIMEOUT"),
        ("settings", "GATEWAY_WINDOW"),
        ("settings", "GATEWAY_PEER_TLS_CERT_FILE,"),
    ]
    assert [about for about, _ in wrong[5:]] == ["files", "write keys", "data folder", "disk"]


def test_other_secret_is_found_beside_a_malformed_setting(served: Gateway, tmp_path: Path) -> None:
    changed = {"GATEWAY_IDENTITY_SECRET": "another secret of tests", "GATEWAY_REQUEST_EVENTS_MAX": "many"}
    both = Gateway(tmp_path, SERVED | {"GATEWAY_DATA_DIR": str(served.data)} | changed)
    found = findings(both, code=2)
    assert [about for about, _ in of(found, "wrong")] == ["settings", "identity secret"]
    assert of(found, "unknown") == []


@pytest.mark.parametrize(
    ("broken", "unknown"),
    [
        ({"GATEWAY_SESSIONS_MAX": "few"}, []),
        ({"GATEWAY_DISK_FREE_MIN": "much"}, ["disk"]),
        ({"GATEWAY_PARTITIONS": "two"}, ["topics", "identity secret"]),
        ({"GATEWAY_IDENTITY_SECRET": "short"}, ["identity secret"]),
        ({"GATEWAY_WINDOW": "long"}, ["clock"]),
        ({"GATEWAY_MODE": "try"}, []),
        ({"GATEWAY_LOG": "paper"}, ["data folder", "log"]),
        ({"GATEWAY_LOG": "kafka"}, ["log"]),
    ],
)
def test_what_needs_a_wrong_setting_is_not_judged(
    served: Gateway, tmp_path: Path, broken: dict[str, str], unknown: list[str]
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: k, source: web}\n")
    here = {"GATEWAY_DATA_DIR": str(served.data), "GATEWAY_WRITE_KEYS_FILE": str(keys)}
    found = findings(Gateway(tmp_path, SERVED | here | broken), code=2)
    ((about, _),) = of(found, "wrong")
    assert about == "settings"
    assert [about for about, _ in of(found, "unknown")] == unknown
    assert all(says.startswith("this is checked once GATEWAY_") for _, says in of(found, "unknown"))


def test_settings_that_contradict_each_other_are_said_together(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {"GATEWAY_MODE": "production", "GATEWAY_WINDOW": "1h"})
    wrong = of(findings(gateway, code=2), "wrong")
    assert [says.partition(" ")[0] for _, says in wrong] == [
        "GATEWAY_IDENTITY_SECRET",
        "GATEWAY_WRITE_KEYS_FILE",
        "GATEWAY_WINDOW",
    ]


@pytest.mark.parametrize("has_pin", [True, False], ids=["pinned", "by its records"])
@pytest.mark.parametrize(
    ("other", "about"),
    [
        ({"GATEWAY_IDENTITY_SECRET": "another secret of tests"}, "identity secret"),
        ({"GATEWAY_PARTITIONS": "3"}, "topics"),
    ],
)
def test_other_secret_or_partition_count_is_found(
    served: Gateway, tmp_path: Path, other: dict[str, str], about: str, has_pin: bool
) -> None:
    if not has_pin:
        with closing(sqlite3.connect(served.data / "log.sqlite")) as database, database:
            assert database.execute("DELETE FROM meta WHERE key LIKE 'note/pin/%'").rowcount == 2
    changed = Gateway(tmp_path, SERVED | {"GATEWAY_DATA_DIR": str(served.data)} | other)
    wrong = dict(of(findings(changed, code=2), "wrong"))
    assert next(iter(other)) in wrong[about]


def test_gateway_that_runs_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    with Gateway(tmp_path, {"GATEWAY_PARTITIONS": "1"}) as gateway:
        found = findings(gateway, code=0)
        (says,) = [says for about, says in of(found, "warning") if about == "data folder"]
        assert f"process {gateway.process.pid}:" in says
        assert gateway.is_ready()


def test_clock_far_from_the_log_is_found(served: Gateway, tmp_path: Path) -> None:
    def move(ms: int) -> None:
        with closing(sqlite3.connect(served.data / "log.sqlite")) as database, database:
            database.execute("UPDATE records SET timestamp_ms = ?", (ms,))
            database.execute("DELETE FROM meta WHERE key LIKE 'note/clock/%'")

    now_ms = round(time.time() * 1000)
    move(now_ms - 30 * 86_400_000)
    ((about, says),) = of(findings(served, code=2), "wrong")
    assert about == "clock"
    assert "start with --accept-clock " in says
    move(now_ms + 3_600_000)
    ((_, says),) = [each for each in of(findings(served, code=0), "warning") if each[0] == "clock"]
    assert "behind the log's newest event" in says


def test_lost_log_is_found_by_its_index(served: Gateway) -> None:
    for file in served.data.glob("log.sqlite*"):
        file.unlink()
    ((about, says),) = of(findings(served, code=2), "wrong")
    assert about == "data folder"
    assert "restore it from a backup" in says


def test_brokers_that_do_not_answer_are_unknown_and_not_wrong(tmp_path: Path) -> None:
    kafka = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{free_port()}",
        "GATEWAY_KAFKA_REQUEST_TIMEOUT": "5s",
    }
    ((about, says),) = of(findings(Gateway(tmp_path, kafka), code=1), "unknown")
    assert about == "log"
    assert says.startswith("no Kafka broker answers at ")
    broken = kafka | {"GATEWAY_WINDOW": "1h"}
    found = findings(Gateway(tmp_path, broken), code=2)
    assert ([about for about, _ in of(found, "wrong")], [about for about, _ in of(found, "unknown")]) == (
        ["settings"],
        ["log"],
    )
