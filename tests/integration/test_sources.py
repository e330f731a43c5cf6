"""Claim: an operator sees who sends what today, who is over a quota or has a wrong key, on one screen."""

from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.support.gateway import Gateway
from tests.support.http import cli

KEYS = """
- {key: web-key, source: web}
- {key: full-key, source: full, quotas: {events: 1}}
- {key: ios-key, source: ios}
- {key: old-key, source: silent}
"""
EVENT = {"messageId": "1", "type": "track", "event": "Seen"}
COLUMNS = 80


def send(gateway: Gateway, document: Any, key: str = "web-key", **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{gateway.url}/v1/events", json=document, auth=(key, ""), headers=names).status_code


def test_sources_are_told_on_one_screen(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    with Gateway(tmp_path / "gateway", {"GATEWAY_WRITE_KEYS_FILE": str(keys)}) as gateway:
        mixed = [EVENT, EVENT, {**EVENT, "event": "Other"}, 5]
        assert send(gateway, mixed, user_agent="analytics-node/3.1.0 (node)") == 200
        assert send(gateway, EVENT, x_retry_count="1", user_agent="analytics-python/2.3.4") == 200
        assert send(gateway, EVENT, key="ios-key") == 200
        assert send(gateway, EVENT, key="unknown-key") == 401
        assert [send(gateway, [EVENT] * 500, key="full-key") for _ in range(2)] == [200, 429]

        table = cli(gateway, "sources", "-o", "table", "--url", gateway.admin_url).stdout.decode()
        details = cli(gateway, "sources", "web", "-o", "table", "--url", gateway.admin_url).stdout.decode()
        lines = cli(gateway, "sources", "-o", "json", "--url", gateway.admin_url).stdout.splitlines()
        missing = cli(gateway, "sources", "nobody", "--url", gateway.admin_url)
        metrics = httpx.get(f"{gateway.admin_url}/metrics").text

    assert max(map(len, (table + details).splitlines())) <= COLUMNS
    rows = {row["source"]: row for row in map(orjson.loads, lines)}
    assert list(rows) == ["full", "web", "ios", "", "silent"]
    web = rows["web"]["today"]
    assert web["events"] == {"accepted": 1, "duplicates": 2, "conflicts": 1, "rejected": 1}
    assert web["duplicate_causes"] == {"same_request": 1, "retry": 1}
    assert web["libraries"] == {"analytics-node 3.1.0": 1, "analytics-python 2.3.4": 1}
    full = rows["full"]["today"]
    assert (full["refused_codes"], full["refused_quotas"]) == ({"quota_exceeded": 1}, {"events": 1})
    assert rows["full"]["quotas"]["events"]["used"] > 1
    assert rows[""]["today"]["refused_codes"] == {"invalid_write_key": 1}
    assert rows["silent"]["total"]["events"] == {}
    assert "unkn..." in table
    assert "1 requests over a quota; most of them from\n         1  full: events" in table
    assert "analytics-python 2.3.4" in details
    assert (missing.returncode, b"'nobody' has sent nothing" in missing.stderr) == (2, True)
    assert 'gateway_source_duplicates_total{cause="retry",source="web"} 1.0' in metrics
    library = 'gateway_source_requests_total{library="analytics-node",source="web",version="3.1.0"} 1.0'
    assert library in metrics
