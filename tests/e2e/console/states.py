"""
States of a gateway that take long to get into, as answers of its admin port: made of what a real one answers.
"""

import math
import random
from typing import Any

import orjson
from playwright.sync_api import Page, Route

Document = dict[str, Any]

HOUR_STEPS, STEP_S = 360, 10


def answer(page: Page, path: str, document: Any) -> None:
    """Have a page be answered so, wherever it asks for the path."""

    def fulfill(route: Route) -> None:
        route.fulfill(body=orjson.dumps(document), content_type="application/json")

    page.route(f"**/{path}", fulfill)


def with_partitions(stats: Document, count: int) -> Document:
    """Return a stats document of so many partitions, each like the first one."""
    like = stats["partitions"][0]
    return stats | {"partitions": [like | {"partition": number} for number in range(count)]}


def changed(stats: Document, changes: dict[int, Document]) -> Document:
    """Return a stats document with other fields in some partitions."""
    partitions = [part | changes.get(part["partition"], {}) for part in stats["partitions"]]
    return stats | {"partitions": partitions}


def restoring(end: int, lag: int) -> Document:
    """Return the fields of a partition that is being restored."""
    return {
        "state": "restoring",
        "applied_offset": end - lag,
        "restore_end_offset": end,
        "restore_lag": lag,
        "window_seconds": 500_000.0,
    }


def failed(error: str) -> Document:
    """Return the fields of a partition that failed."""
    index = dict.fromkeys(("applied_offset", "next_lane_seq", "window_seconds", "keys", "bytes"))
    return {"state": "failed", "last_error": error, "failing_since_ms": 1_795_000_000_000, **index}


def with_inputs(stats: Document, stopped: str | None) -> Document:
    """Return statistics with two inputs, of which the second is stopped for a reason."""
    counts: Document = dict.fromkeys(
        ("records", "empty", "accepted", "duplicates", "conflicts", "rejected"), 0
    )
    counts |= {"misdelivered": 0, "throttled_s": 0.0, "lag": None, "records_per_s": None}
    place = {
        "partition": 3,
        "position": 10,
        "committed": 10,
        "end": 1_500,
        "lag": 1_490,
        "records_per_s": 12.5,
    }
    read = counts | {"accepted": 7, "duplicates": 2, "conflicts": 1, "rejected": 1}
    common = {"topic": "raw", "source": "web", "paused": False}
    first = common | read | {"input": "web", "stopped": None, "partitions": [read | place]}
    second = common | counts | {"input": "old", "stopped": stopped, "partitions": []}
    return stats | {"inputs": [first, second]}


def lost_keys(now_ms: int) -> Document:
    """Return the fields on write keys of a gateway with two that vanished, and with unknown ones."""
    hour_ms = 3_600_000
    removed = [
        {"key_sha256": f"{number:012}", "source": source, "since_ms": now_ms, "until_ms": until_ms}
        for number, (source, until_ms) in enumerate(
            [("app", now_ms + 2 * hour_ms + 30_000), ("<b>shop</b>", now_ms + 20 * hour_ms)]
        )
    ]
    senders = [
        {"address": "198.51.100.7", "key": "x", "library": "curl", "requests": 9, "last_ms": now_ms},
        {
            "address": "192.0.2.1",
            "key": "old-",
            "library": "analytics-swift",
            "requests": 90,
            "last_ms": now_ms,
        },
        {"address": "192.0.2.9", "key": "", "library": "other", "requests": 999, "last_ms": now_ms - hour_ms},
    ]
    return {"is_stale": False, "removed_keys": removed, "unknown_senders": senders}


def in_group(stats: Document, workers: list[str], silent: dict[str, str]) -> tuple[Document, Document]:
    """Return the stats of one of several workers that own the partitions by turns, and the group's."""
    places = [
        {
            "owner": workers[number % len(workers)],
            "standby": workers[(number + 1) % len(workers)],
            "caught_up": True,
        }
        for number in range(len(stats["partitions"]))
    ]

    def of(worker: str) -> Document:
        parts = [
            part | place | ({} if place["owner"] == worker else {"state": "unassigned", "queue_events": 0})
            for part, place in zip(stats["partitions"], places, strict=True)
        ]
        group = {"worker": worker, "generation": 4, "leaving": False, "workers": {}}
        return stats | {"partitions": parts, "group": group}

    documents = {worker: of(worker) for worker in workers}
    totals = {name: count * len(workers) for name, count in stats["totals"].items()}
    group = {"asked": workers[0], "generation": 4, "silent": silent, "totals": totals, "workers": documents}
    return documents[workers[0]], group


def history(now_ms: int, *, down_steps: int = 0, seed: int = 1) -> Document:
    """Return an hour: a slow wave, noise, a client that retries in a storm, and an outage in the end."""
    rng = random.Random(seed)
    end = now_ms // 10_000 * 10_000
    columns: dict[str, list[int]] = {
        name: [] for name in ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
    }
    for step in range(HOUR_STEPS):
        rate = 3400 + 700 * math.sin(step / 70) + 180 * math.sin(step / 9) + rng.gauss(0, 90)
        storm = 0.16 * math.exp(-(((step - 236) / 16) ** 2))
        duplicates = rate * (0.006 + storm + 0.0015 * abs(rng.gauss(0, 1)))
        counts = (rate, duplicates, rng.random() * 0.8, rng.random() * 1.4, 0, 0)
        if step >= HOUR_STEPS - down_steps:
            counts = (0.0, 0.0, 0.0, 0.0, 0, round(0.7 * rate))
        for column, count in zip(columns.values(), counts, strict=True):
            column.append(round(count * STEP_S))
    return {
        "now_ms": now_ms,
        "step_seconds": STEP_S,
        "steps_max": HOUR_STEPS,
        "silent": {},
        "time_ms": [end - (HOUR_STEPS - 1 - step) * STEP_S * 1000 for step in range(HOUR_STEPS)],
        **columns,
    }
