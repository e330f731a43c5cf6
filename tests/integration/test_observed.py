"""
Claim: with GATEWAY_OBSERVE every decided event is in a topic of its own with its verdict in `gw`, the answers
are as without it, and the gateway says how many duplicates there are, by cause, source and library.
"""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx

from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli
from tests.support.waiting import until


def event(message_id: object, **fields: object) -> dict[str, object]:
    return {"messageId": message_id, "type": "track", "event": "Seen", **fields}


def observed_in(folder: Path) -> list[tuple[str, str, bytes]]:
    """Return id, verdict and value of the records of the topic."""
    with closing(sqlite3.connect(f"file:{folder / 'log.sqlite'}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT r.key, r.gw, r.value FROM partitions AS p JOIN records AS r"
            " ON r.id >= p.first_id AND r.id < p.first_id + p.next_offset"
            " WHERE p.topic = 'events.observed' ORDER BY r.id"
        ).fetchall()
    return [(key.decode(), gw.decode(), value) for key, gw, value in rows]


def test_every_event_is_there_with_its_verdict(tmp_path: Path) -> None:
    with Gateway(tmp_path / "gateway", {"GATEWAY_OBSERVE": "true"}) as gateway:
        sent = [event("a"), event("b"), event("a"), event("b", other=1), event({})]
        response = httpx.post(f"{gateway.url}/v1/events", json=sent, auth=AUTH)
        assert (response.status_code, response.headers["Gateway-Accepted"]) == (200, "2")
        retried = httpx.post(
            f"{gateway.url}/v1/events",
            json=event("a"),
            auth=AUTH,
            headers={"x-retry-count": "1", "user-agent": "analytics-python/2.3.4"},
        )
        assert retried.headers["Gateway-Duplicates"] == "1"
        until(lambda: gateway.stats()["observed"]["appended"] >= 6)
        told = gateway.stats()["observed"]
        source = AUTH[0]
        details = cli(gateway, "sources", source, "-o", "table", "--url", gateway.admin_url).stdout.decode()
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text
        found = observed_in(gateway.data)
    assert told["verdicts"] == {"accepted": 2, "duplicate": 2, "conflict": 1, "rejected": 1}
    assert told["dropped"] == 0
    verdicts = Counter((message_id, verdict) for message_id, verdict, _ in found)
    assert verdicts == Counter(
        [
            *[("a", "accepted"), ("b", "accepted"), ("a", "duplicate"), ("a", "duplicate")],
            *[("b", "conflict"), ("", "rejected")],
        ]
    )
    assert json.loads(next(value for _, verdict, value in found if verdict == "conflict"))["other"] == 1
    assert "retry: analytics-python 2.3.4" in details
    assert 'gateway_observed_records_total{result="appended"} 6.0' in metrics
