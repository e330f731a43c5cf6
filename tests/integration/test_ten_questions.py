"""
Claim: what operators and developers ask most is answered by the command that docs/operations.md names, in the
first screen of its output.

A screen has 80 columns and 24 lines, and no terminal: as through `kubectl exec`.
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import cli

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
            ([FIRST] * 500, "tv-key", 200),
            (FIRST, "tv-key", 429),
        ):
            answer = httpx.post(f"{running.url}/v1/events", json=document, auth=(key, ""))
            assert answer.status_code == status, answer.text
        yield running


QUESTIONS = {
    question: re.findall(r"`gateway ([^`]+)`", rest)
    for question, rest in re.findall(
        r"^\| ([^|]+\?) \| (.*)$", (ROOT / "docs" / "operations.md").read_text(encoding="utf-8"), re.MULTILINE
    )
}
"""The commands of each question in the page's table, the first of which answers it."""


def screen(gateway: Gateway, command: str, *, code: int = 0) -> str:
    """Return the first screen of what a command says."""
    words = shlex.split(command)
    where = ["--url", gateway.admin_url] if words[0] in ("stats", "sources", "group", "lookup") else []
    done = cli(gateway, *words, *where)
    assert done.returncode == code, done.stderr.decode()
    lines = (done.stdout + done.stderr).decode().splitlines()
    shown = [part for line in lines for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]]
    if words[0] in ("stats", "sources", "group"):
        assert shown == lines, "it needs more columns than a screen has"
    return "\n".join(shown[:LINES])


def answer(gateway: Gateway, question: str, *, code: int = 0) -> str:
    """Return what answers a question of the table."""
    return screen(gateway, QUESTIONS[question][0], code=code)


def test_there_are_ten_and_each_names_its_command() -> None:
    assert len(QUESTIONS) == 10
    assert [question for question, commands in QUESTIONS.items() if not commands] == [
        "Which Kafka may I use?"
    ]


def test_is_anything_wrong(gateway: Gateway) -> None:
    told = answer(gateway, "Is anything wrong?")
    assert re.search(r"refused requests: 1 invalid_write_key, 1 quota_exceeded|1 quota_exceeded, 1 inv", told)
    assert "OUTAGE" not in told
    assert re.search(r"^topic events\n.*\n +0  active", told, flags=re.MULTILINE)


def test_why_503(tmp_path: Path) -> None:
    full = Gateway(tmp_path / "gateway", {"GATEWAY_DISK_FREE_MIN": "100000TiB"})
    full.start(wait=False)
    try:
        full.wait_until_lanes_serve()
        assert "DISK FULL" in answer(full, "Why do clients get 503?")
    finally:
        full.stop()


def test_which_settings_are_wrong(tmp_path: Path) -> None:
    wrong = Gateway(tmp_path, {"GATEWAY_WINDOW": "1h", "GATEWAY_PARTITIONS": "0"})
    told = answer(wrong, "Which settings are wrong?", code=2)
    assert "GATEWAY_WINDOW" in told
    assert "GATEWAY_PARTITIONS" in told


def test_did_my_event_arrive(gateway: Gateway) -> None:
    assert re.search(r'"seen":true,.*"partition":\d+,"offset":\d+', answer(gateway, "Did an event arrive?"))


def test_is_a_restart_safe(gateway: Gateway) -> None:
    head, worker, *rest = answer(gateway, "Is a restart safe now?").splitlines()
    assert head.split() == ["WORKER", "SERVES", "FOLLOWS", "RECEIVED", "RESTART"]
    assert worker.endswith("  safe now")
    assert rest[0].startswith("It is in no group: during a restart clients get no answer")


def test_who_sends_with_a_wrong_key(gateway: Gateway) -> None:
    told = answer(gateway, "Who sends with a wrong key?")
    assert re.search(r"1  127\.0\.0\.1  reti\.\.\.  other", told)


def test_which_source_is_over_its_quota(gateway: Gateway) -> None:
    question = "Which source is over its quota?"
    assert "1 requests over a quota; most of them from\n         1  tv: events" in answer(gateway, question)
    told = screen(gateway, QUESTIONS[question][1])
    assert re.search(r"^ +1  events\n", told.partition("of these over a quota, by limit\n")[2])
    assert re.search(r"\d%  events, 1 a second$", told, flags=re.MULTILINE)


def test_events_of_each_source_today(gateway: Gateway) -> None:
    told = answer(gateway, "How many events of each source today?").splitlines()
    assert told[0].startswith("events since ")
    assert [line.split()[:3] for line in told if line.startswith(("web ", "tv "))] == [
        ["tv", "500", "1"],
        ["web", "3", "2"],
    ]


def test_why_is_it_a_conflict(gateway: Gateway) -> None:
    show, places = QUESTIONS["Why is an event a conflict?"]
    (found,) = re.findall(r'"partition":(\d+),"offset":(\d+)', screen(gateway, places))
    told = screen(gateway, show.replace("0:17", ":".join(found)))
    assert '"differs":["properties"]' in told.replace("\n", "")


def test_which_kafka() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text().splitlines()[:LINES]
    assert [line for line in page if line.startswith("| Apache 3.6") and "tested" in line]
    assert [line for line in page if line.startswith("| Confluent Cloud | expected")]
