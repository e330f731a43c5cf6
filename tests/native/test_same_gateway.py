"""Claim: a gateway with the native module answers and stores the same as one without, on a real Kafka."""

import json
import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.http import cli, stored
from tests.support.odd_bodies import Bodies

REQUESTS = int(os.environ.get("NATIVE_REQUESTS", "600"))
SEED = int(os.environ.get("NATIVE_SEED", "1"))
PATHS = {"batch": "/v1/batch", "array": "/v1/events", "event": "/v1/track"}
SESSION = "2dlpu8idjvw2es2uvixfliYNu0q"


def requests() -> list[tuple[str, bytes, dict[str, str]]]:
    """Return path, body and headers of requests, of which some are sent again."""
    rng = random.Random(SEED)
    bodies = iter(Bodies(SEED, oddness=0.02))
    made: list[tuple[str, bytes, dict[str, str]]] = []
    while len(made) < REQUESTS:
        if made and rng.random() < 0.2:
            made.append(rng.choice(made))
            continue
        body = next(bodies)
        path = PATHS[body.shape] if rng.random() < 0.7 else "/v1/events"
        headers = {"Idempotency-Key": f"request-{len(made)}", "Prefer": "return=representation"}
        if path == "/v1/events" and rng.random() < 0.4:
            headers |= {"Gateway-Client": f"phone-{rng.randrange(9)}", "Gateway-Session": SESSION}
            del headers["Idempotency-Key"]
        made.append((path, body.content, headers))
    return made


def answer_of(client: httpx.Client, path: str, body: bytes, headers: dict[str, str]) -> tuple[Any, ...]:
    """Return what a retry would have to find again."""
    answer = client.post(path, content=body, headers=headers)
    told = {name: value for name, value in answer.headers.items() if name.startswith("gateway-")}
    del told["gateway-request-id"]
    return answer.status_code, told, answer.content


def records_of(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the events and the quarantined ones without the times of arrival."""
    quarantined = cli(gateway, "quarantine", "list")
    assert quarantined.returncode == 0, quarantined.stderr
    found = [*stored(gateway), *map(json.loads, quarantined.stdout.splitlines())]
    for record in found:
        record.pop("timestamp", None)
        if isinstance(value := record.get("value"), dict):
            value.pop("receivedAt", None)
            value.pop("rejectedAt", None)
    return found


@pytest.mark.slow
def test_both_answer_and_store_the_same(kafka_bootstrap: str, tmp_path: Path) -> None:
    topic = f"native-{uuid4().hex[:8]}"
    on_kafka = {"GATEWAY_LOG": "kafka", "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap}
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                Gateway(
                    tmp_path / choice,
                    on_kafka
                    | {
                        "GATEWAY_NATIVE": choice,
                        "GATEWAY_TOPIC": f"{topic}-{choice}",
                        "GATEWAY_PARTITIONS": "4",
                    },
                )
            )
            for choice in ("off", "required")
        ]
        clients = [
            stack.enter_context(httpx.Client(base_url=gateway.url, auth=("web", ""))) for gateway in gateways
        ]
        for path, body, headers in requests():
            python, native = [answer_of(client, path, body, headers) for client in clients]
            assert native == python, (path, body, headers)
        use = gateways[1].stats()["native"]
        assert use["events"] > REQUESTS
        assert use["odd_events"] > 0
        assert use["other_events"] > 0
        assert sum(use["other_bodies"].values()) > 0
        assert use["panics"] == 0
        assert gateways[0].stats()["native"] is None
        python_records, native_records = map(records_of, gateways)
    assert native_records == python_records
    assert len(python_records) > REQUESTS
