"""Claim: the commands of docs/look-at-data.md and docs/debug-an-event.md show what the pages say."""

from pathlib import Path

import duckdb
import httpx
import orjson
import pytest

from tests.support.documents import ROOT, blocks_of, typed
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post

DATA = ROOT / "docs" / "look-at-data.md"
DEBUG = ROOT / "docs" / "debug-an-event.md"


def send(gateway: Gateway, *events: dict[str, object]) -> None:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        post(client, "/v1/events", {"batch": list(events)}).raise_for_status()


def test_a_log_becomes_tables(gateway: Gateway, tmp_path: Path) -> None:
    send(gateway, *[new_event(event="Looked At", userId=f"u{n % 7}") for n in range(40)])
    sold = {
        "specversion": "1.0",
        "id": "1",
        "source": "/shop",
        "type": "com.example.sold",
        "data": {"price": 10},
    }
    httpx.post(f"{gateway.url}/v1/cloudevents", json=sold, auth=AUTH).raise_for_status()
    commands = blocks_of(DATA, "sh")[0].replace("gateway ", ".venv/bin/gateway ")
    printed = typed(commands, gateway, folder=tmp_path)
    assert len(printed.splitlines()) == 3
    expected = [orjson.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    count, table, cloudevents = (
        sql.replace("'events.", f"'{tmp_path}/events.") for sql in blocks_of(DATA, "sql")
    )
    with duckdb.connect() as session:
        counts = {row[0]: row[1:] for row in session.execute(count).fetchall()}
        assert counts["Looked At"] == (
            sum(line["value"].get("event") == "Looked At" for line in expected),
            7,
        )
        shown = session.execute(cloudevents).fetchall()
        assert ("com.example.sold", "/shop", None, '{"price":10}') in shown
        session.execute(table)
        stored = session.execute(f"SELECT messageId FROM '{tmp_path}/events.parquet'").fetchall()
    assert sorted(row[0] for row in stored) == sorted(line["messageId"] for line in expected)


@pytest.mark.parametrize("command", [block for block in blocks_of(DEBUG, "sh") if "tail" not in block])
def test_an_event_is_found(gateway: Gateway, tmp_path: Path, command: str) -> None:
    send(gateway, new_event(messageId="order-4711"))
    line = command if command.startswith("curl") else command.replace("gateway ", ".venv/bin/gateway ", 1)
    printed = typed(f"export GATEWAY_ADMIN_URL={gateway.admin_url}; {line}", gateway, folder=tmp_path)
    assert printed or "quarantine" in command
