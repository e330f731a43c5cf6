"""
Claim: what operators and developers ask most is answered by one command, in the first screen of its output.

A screen has 80 columns and 24 lines, and no terminal: as through `kubectl exec`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import cli
from tests.unit.cli.test_group import A, B

COLUMNS, LINES = 80, 24

KEYS = """
- {key: web-key, source: web}
- {key: tv-key, source: tv, quotas: {events: 1}}
"""
FIRST = {"messageId": "order-4711", "type": "track", "event": "Sold", "properties": {"price": 10}}
SECOND = {**FIRST, "properties": {"price": 20}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that has seen what the questions are about."""
    folder = tmp_path_factory.mktemp("asked")
    keys = folder / "keys.yaml"
    keys.write_text(KEYS)
    with Gateway(folder / "gateway", {"GATEWAY_WRITE_KEYS_FILE": str(keys)}) as running:
        for document, key, status in (
            ([FIRST, {"messageId": "2"}], "web-key", 200),
            (SECOND, "web-key", 200),
            (FIRST, "retired-key", 401),
            ([FIRST] * 20, "tv-key", 200),
            (FIRST, "tv-key", 429),
        ):
            answer = httpx.post(f"{running.url}/v1/events", json=document, auth=(key, ""))
            assert answer.status_code == status, answer.text
        yield running


def screen(gateway: Gateway, *arguments: str) -> str:
    """Return the first screen of what a command says of a running gateway."""
    lines = cli(gateway, *arguments, "--url", gateway.admin_url).stdout.decode().splitlines()
    assert max(map(len, lines[:LINES]), default=0) <= COLUMNS, lines
    return "\n".join(lines[:LINES])


def test_is_anything_wrong(gateway: Gateway) -> None:
    told = screen(gateway, "stats")
    assert re.search(r"refused requests: 1 invalid_write_key, 1 quota_exceeded|1 quota_exceeded, 1 inv", told)
    assert "OUTAGE" not in told
    assert re.search(r"^topic events\n.*\n +0  active", told, flags=re.MULTILINE)


def test_why_503(tmp_path: Path) -> None:
    full = Gateway(tmp_path / "gateway", {"GATEWAY_DISK_FREE_MIN": "100000TiB"})
    full.start(wait=False)
    try:
        full.wait_until_lanes_serve()
        assert "DISK FULL" in screen(full, "stats")
    finally:
        full.stop()


def test_which_settings_are_wrong(tmp_path: Path) -> None:
    done = cli(Gateway(tmp_path, {"GATEWAY_WINDOW": "1h", "GATEWAY_PARTITIONS": "0"}), "check")
    told = "\n".join((done.stdout + done.stderr).decode().splitlines()[:LINES])
    assert done.returncode == 2
    assert "GATEWAY_WINDOW" in told
    assert "GATEWAY_PARTITIONS" in told


def test_did_my_event_arrive(gateway: Gateway) -> None:
    told = orjson.loads(cli(gateway, "lookup", "web", "order-4711", "--url", gateway.admin_url).stdout)
    assert told["seen"]


def test_is_a_restart_safe() -> None:
    from app.cli.group import _screen_row, rows_of

    rows = [_screen_row(row) for row in rows_of({"workers": {"a": A, "b": B}, "silent": {}})]
    assert [row["restart"] for row in rows] == ["safe now", "wait"]


def test_who_sends_with_a_wrong_key(gateway: Gateway) -> None:
    assert re.search(r"1  127\.0\.0\.1  reti\.\.\.  other", screen(gateway, "sources"))


def test_which_source_is_over_its_quota(gateway: Gateway) -> None:
    (line,) = [line for line in screen(gateway, "sources").splitlines() if line.startswith("tv ")]
    assert re.search(r"1 +1\d\d%$", line), line
    assert re.search(r"1\d\d%  events, 1 a second", screen(gateway, "sources", "tv"))


def test_events_of_each_source_today(gateway: Gateway) -> None:
    told = screen(gateway, "sources").splitlines()
    assert told[0].startswith("events since ")
    assert [line.split()[:3] for line in told if line.startswith(("web ", "tv "))] == [
        ["tv", "20", "1"],
        ["web", "3", "2"],
    ]


def test_why_is_it_a_conflict(gateway: Gateway) -> None:
    (line,) = cli(gateway, "quarantine", "list", "--reason", "conflict").stdout.splitlines()
    place = orjson.loads(line)
    shown = cli(gateway, "quarantine", "show", f"{place['partition']}:{place['offset']}").stdout
    assert b'"properties"' in shown
    assert list(orjson.loads(shown)["conflict"]["differs"]) == ["properties"]


def test_which_kafka() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text().splitlines()[:40]
    assert [line for line in page if line.startswith("| Apache 3.6") and "tested" in line]
    assert [line for line in page if line.startswith("| Redpanda | not supported")]
