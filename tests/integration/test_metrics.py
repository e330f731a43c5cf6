"""Claim: docs/metrics.md has every metric that a real gateway shows, and these follow what it did."""

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway import Gateway
from tests.support.http import new_event, post

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"^\| `(gateway_\w+)` \|", PAGE, flags=re.MULTILINE))
OF_A_GROUP = (
    "gateway_group_",
    "gateway_peer_up",
    "gateway_peer_connections",
    "gateway_peer_forwarded",
    "gateway_peer_received",
    "gateway_peer_reconnects",
    "gateway_peer_refused",
    "gateway_standby_",
    "gateway_worker_",
    "gateway_lane_moves",
    "gateway_lane_claims",
)
OF_INPUTS = "gateway_input_"


def shown_by(gateway: Gateway) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of each family, by the values of their labels in the order of their names."""
    text = httpx.get(f"{gateway.admin_url}/metrics").text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        samples = found.setdefault(name, {})
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name).removeprefix("_total")
            samples[(*sample.labels.values(), *([suffix] if suffix else []))] = sample.value
    return found


@pytest.fixture
def keyed(tmp_path: Path) -> Gateway:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: k, source: shop}\n")
    return Gateway(
        tmp_path / "gateway",
        {
            "GATEWAY_WRITE_KEYS_FILE": str(keys),
            "GATEWAY_PARTITIONS": "1",
            "GATEWAY_SNAPSHOTS_URL": f"file://{tmp_path}/bucket",
            "GATEWAY_OBSERVE": "true",
            "GATEWAY_DUPLICATE_SAMPLES": "1",
        },
    )


def test_page_has_what_is_shown_and_nothing_else(keyed: Gateway) -> None:
    with keyed as gateway:
        shown = {name for name in shown_by(gateway) if name.startswith("gateway_")}
    alone = {name for name in NAMES if not name.startswith((*OF_A_GROUP, OF_INPUTS))}
    assert shown == alone
    assert not re.findall(r"^(?!gateway_|process_)\w+ ", "\n".join(shown), flags=re.MULTILINE)


def test_metrics_follow_what_the_gateway_did(keyed: Gateway) -> None:
    with keyed as gateway, httpx.Client(base_url=gateway.url, auth=("k", "")) as client:
        event = new_event()
        post(client, "/v1/batch", {"batch": [event, new_event(), event | {"event": "x"}, 5]})
        post(client, "/v1/batch", {"batch": [event]})
        assert client.post("/v1/events", content=b"{").status_code == 400
        assert client.post("/v1/batch", auth=("unknown", ""), json={"batch": []}).status_code == 401
        shown = shown_by(gateway)
    sources = shown["gateway_source_events_total"]
    assert {result: count for (result, source), count in sources.items() if source == "shop"} == {
        "accepted": 2,
        "duplicates": 1,
        "conflicts": 1,
        "rejected": 1,
        "unknown": 0,
        "refused": 0,
    }
    assert shown["gateway_rejected_events_total"] == {("not_an_object",): 1}
    assert shown["gateway_source_rejected_events_total"] == {
        ("conflict", "shop"): 1,
        ("not_an_object", "shop"): 1,
    }
    senders = shown["gateway_source_refused_requests_total"]  # labels in their order
    assert senders == {
        ("invalid_json", "other", "shop", "400"): 1,
        ("invalid_write_key", "other", "", "401"): 1,
    }
    refused = shown["gateway_http_refused_requests_total"]
    assert (refused[("invalid_json",)], refused[("invalid_write_key",)]) == (1, 1)
    for name in ("gateway_commit_seconds", "gateway_queue_wait_seconds", "gateway_batch_events"):
        samples = shown[name]
        assert samples[("events", "_count")] == samples[("+Inf", "events", "_bucket")] >= 1
        assert samples[("events", "_sum")] > 0
    ages = shown["gateway_duplicate_age_seconds"]
    assert ages[("events", "_count")] == 1
    assert ages[("60.0", "events", "_bucket")] == 1
    assert shown["gateway_index_size_bytes"][("0", "events")] > 0
    assert shown["gateway_in_doubt_events"][("0", "events")] == 0
    assert shown["gateway_restore_progress_ratio"][("0", "events")] == 1
    assert shown["gateway_disk_size_bytes"][()] > shown["gateway_disk_free_bytes"][()] > 0
    assert shown["gateway_window_limit_seconds"][()] == 7 * 86_400
