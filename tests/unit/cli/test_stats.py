"""Claim: an overview of a gateway names what is wrong and how fast what grows, on one screen."""

from typing import Any

from app.cli.stats import overview, partition_rows

TOTALS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")


def partition(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "partition": number,
        "state": "active",
        "window_seconds": 604_800.0,
        "keys": 5,
        "applied_offset": 7,
        "queue_events": 0,
        "restore_lag": 0,
        "accepted": 5,
        "duplicates": 1,
        "last_error": None,
        **fields,
    }


def document(received: int, uptime_s: float, **fields: Any) -> dict[str, Any]:
    return {
        "version": "1.2.3",
        "uptime_seconds": uptime_s,
        "mode": "production",
        "log": "kafka",
        "topic": "events",
        "quarantine_topic": "events.quarantine",
        "outage": None,
        "totals": {"received": received, **dict.fromkeys(TOTALS, 0), "accepted": received},
        "partitions": [
            partition(0),
            partition(1, state="failed", window_seconds=None, keys=None, last_error="E" * 200),
        ],
        "quarantine": [partition(0, window_seconds=90_000.0)],
        **fields,
    }


def test_partitions_of_both_topics_have_a_row() -> None:
    rows = partition_rows(document(5, 60))
    assert [(row["topic"], row["partition"], row["state"], row["window"]) for row in rows] == [
        ("events", 0, "active", "7d0h"),
        ("events", 1, "failed", None),
        ("events.quarantine", 0, "active", "1d1h"),
    ]
    assert rows[1]["last_error"] == "E" * 80
    assert "owner" not in rows[0]


def test_owner_and_standby_are_shown_where_there_is_a_group() -> None:
    shown = document(5, 60, partitions=[partition(0, owner="a", standby=None)], quarantine=[])
    assert "OWNER" in overview(shown)


def test_rates_are_of_what_came_since_the_earlier_look() -> None:
    text = overview(document(3_000, 70.0), document(1_000, 60.0))
    rows = {words[0]: words[1:] for line in reversed(text.splitlines()) if (words := line.split())}
    assert (rows["events"], rows["received"], rows["accepted"]) == (
        ["per", "s"],
        ["3,000", "200"],
        ["3,000", "200"],
    )
    assert "per s" not in overview(document(3_000, 70.0))


def test_restarted_gateway_has_no_rates_of_its_former_life() -> None:
    assert "per s" not in overview(document(10, 2.0), document(9_999, 5_000.0))


def test_outage_stands_at_the_top() -> None:
    lines = overview(document(0, 8_000, outage="Kafka does not answer")).splitlines()
    assert lines[0] == "gateway 1.2.3, up 2h13m, production, log kafka, topic events"
    assert lines[1] == "OUTAGE: Kafka does not answer"


def test_requests_refused_before_their_events_were_known_are_told() -> None:
    refused = {"requests": 1_500, "before_events": 1_234, "codes": {}, "sources": []}
    assert "refused before their events were known: 1,234 requests" in overview(
        document(5, 60, refused_requests=refused)
    )
    assert "before their events" not in overview(
        document(5, 60, refused_requests=refused | {"before_events": 0})
    )


def test_keys_that_go_or_that_nobody_knows_are_named() -> None:
    keys = {"keys": 1, "removed": 2, "unknown_requests": 1_500}
    shown = overview(document(5, 60, write_keys=keys))
    assert "write keys that vanished from the key file and still work: 2\n" in shown
    assert "refused for an unknown write key: 1,500 requests\n" in shown
    assert "write key" not in overview(document(5, 60, write_keys=None))


def test_screen_has_80_columns_whatever_it_shows() -> None:
    busy = partition(
        11, owner="events-gateway-11", standby="events-gateway-2", keys=500_000_000, restore_lag=10**9
    )
    text = overview(
        document(10**12, 10**7, partitions=[busy, partition(1, last_error="E " * 40)], outage="Kafka " * 30),
        document(0, 10.0),
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "events 1: E E" in text
