"""
Claim: `audit` proves a clean log clean, and finds and names what was planted in it.

On a real Kafka with aborted and open transactions, and against a real gateway's counters.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from dedupe.model.types import NewRecord
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.records import RecordMaker, fill_topic, open_transaction

PARTITIONS = 2
SECRET = "a secret of the tests"

# The records are of January 2026, and must not be deleted as expired.
KEPT = {"retention.ms": "-1"}

Lanes = dict[int, list[NewRecord]]


async def test_clean_topic_with_aborted_records_is_proven_clean(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await topic("audit", partitions=PARTITIONS, configs=KEPT)
    lanes = clean_lanes(RecordMaker(PARTITIONS))
    await fill_topic(kafka_bootstrap, name, first_half(lanes), batch_records=50)
    await fill_topic(kafka_bootstrap, name, second_half(lanes), commit=False)
    await fill_topic(kafka_bootstrap, name, second_half(lanes), batch_records=50)
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)

    done = job("audit", "--source", f"kafka://{kafka_bootstrap}/{name}", "--deep", "--report", tmp_path)

    assert done.exit_code == 0, done
    assert "CLEAN" in done.stdout
    report = json.loads((tmp_path / "audit.json").read_text())
    assert (report["verdict"], report["records"], report["violations"]) == ("clean", 400, {})
    assert report["reconciliation"]["state"] == "not reconciled"
    assert [p["last_lane_seq"] + 1 for p in report["partitions"]] == [len(lanes[0]), len(lanes[1])]
    page = (tmp_path / "audit.html").read_text()
    assert "<svg" in page
    assert not any(word in page for word in ("http://", "https://", "<script", "<link", "src="))


def duplicate(maker: RecordMaker, lanes: Lanes) -> NewRecord:
    return lanes[0][3]._replace(timestamp_ms=lanes[0][-1].timestamp_ms)


def gap(maker: RecordMaker, lanes: Lanes) -> NewRecord:
    maker.skip(0)
    return maker.record(maker.event_of(0))


def foreign(maker: RecordMaker, lanes: Lanes) -> NewRecord:
    return NewRecord(lanes[0][-1].timestamp_ms, b"planted", b'{"messageId":"planted"}', [])


def wrong_partition(maker: RecordMaker, lanes: Lanes) -> NewRecord:
    return maker.record(maker.event_of(1), partition=0)


@pytest.mark.parametrize("plant", [duplicate, gap, foreign, wrong_partition])
async def test_planted_record_is_found_and_named(
    plant: Callable[[RecordMaker, Lanes], NewRecord],
    job: JobRunner,
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    name = await topic("planted", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    lanes = clean_lanes(maker)
    planted = plant(maker, lanes)
    lanes[0].append(planted)
    await fill_topic(kafka_bootstrap, name, lanes, batch_records=100)

    source = f"kafka://{kafka_bootstrap}/{name}"
    bounds = ("--window", "7d", "--index-keys-max", 1000)
    done = job("audit", "--source", source, *bounds, "--report", tmp_path)

    assert done.exit_code == 1, done
    report = json.loads((tmp_path / "audit.json").read_text())
    finding = report["violations"][plant.__name__]
    assert finding["count"] == 1
    (named,) = finding["first"]
    place = report["partitions"][0]
    assert (named["partition"], named["offset"]) == (0, place["last_offset"])
    assert named["message_id"] == planted.key.decode()
    assert named["source"] == ("web" if planted.headers else None)
    line = f"partition 0 offset {place['last_offset']} key {planted.key.decode()!r}"
    assert line in done.stdout


async def test_offset_span_leaves_out_what_lies_outside(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("span", partitions=PARTITIONS, configs=KEPT)
    maker = RecordMaker(PARTITIONS)
    lanes = clean_lanes(maker)
    lanes[0].append(foreign(maker, lanes))
    await fill_topic(kafka_bootstrap, name, lanes)
    source = f"kafka://{kafka_bootstrap}/{name}"

    before = job("audit", "--source", source, "--to-offsets", f"0:{len(lanes[0]) - 1}")
    since = job("audit", "--source", source, "--from-offsets", "0:10,1:10", "--report", tmp_path)

    assert (before.exit_code, since.exit_code) == (0, 1)
    report = json.loads((tmp_path / "audit.json").read_text())
    assert [p["first_offset"] for p in report["partitions"]] == [10, 10]


async def test_open_transaction_is_a_stall_and_no_verdict(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory
) -> None:
    name = await topic("stalled", partitions=PARTITIONS, configs=KEPT)
    lanes = clean_lanes(RecordMaker(PARTITIONS))
    await fill_topic(kafka_bootstrap, name, first_half(lanes))
    hung = await open_transaction(kafka_bootstrap, name, 1, lanes[1][100:])

    done = job("audit", "--source", f"kafka://{kafka_bootstrap}/{name}")

    await hung.abort_transaction()
    await hung.stop()
    assert done.exit_code == 2, done
    assert "partition 1 is stalled" in done.stdout
    assert "CLEAN" not in done.stdout


async def test_open_transaction_outside_the_range_is_of_no_concern(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("outside", partitions=PARTITIONS, configs=KEPT)
    lanes = clean_lanes(RecordMaker(PARTITIONS))
    await fill_topic(kafka_bootstrap, name, first_half(lanes))
    hung = await open_transaction(kafka_bootstrap, name, 1, lanes[1][100:])
    source = f"kafka://{kafka_bootstrap}/{name}"
    first_open_us = lanes[1][100].timestamp_ms * 1000
    until = datetime.fromtimestamp(first_open_us / 1e6, UTC).isoformat()

    by_offset = job("audit", "--source", source, "--to-offsets", "1:100")
    by_time = job("audit", "--source", source, "--until", until, "--report", tmp_path)

    await hung.abort_transaction()
    await hung.stop()
    assert (by_offset.exit_code, by_time.exit_code) == (0, 0), (by_offset, by_time)
    partitions = json.loads((tmp_path / "audit.json").read_text())["partitions"]
    assert [p["last_lane_seq"] for p in partitions] == [99, 99]


async def test_time_on_kafka_means_the_offset_of_its_first_record(
    job: JobRunner, kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("since", partitions=PARTITIONS, configs=KEPT)
    lanes = clean_lanes(RecordMaker(PARTITIONS))
    await fill_topic(kafka_bootstrap, name, lanes)
    source = f"kafka://{kafka_bootstrap}/{name}"
    since = datetime.fromtimestamp(lanes[1][150].timestamp_ms / 1000, UTC).isoformat()

    done = job("audit", "--source", source, "--since", since, "--report", tmp_path)
    beyond = job("audit", "--source", source, "--from-offsets", "0:5000")

    assert done.exit_code == 0, done
    partitions = json.loads((tmp_path / "audit.json").read_text())["partitions"]
    assert [(p["partition"], p["records"], p["first_offset"]) for p in partitions] == [(1, 50, 150)]
    # Reads the selected offsets, and each partition's last marker, which is as new as the broker's clock.
    assert "reading 52 offsets" in done.stderr
    assert beyond.exit_code == 2
    assert "offset 5000 of partition 0, which ends at 201" in beyond.stderr


def test_counters_behind_a_token_are_asked_with_it_and_those_of_another_log_are_refused(
    job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway(tmp_path / "gateway", {"GATEWAY_ADMIN_TOKEN": "a token of the tests"}) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            post(client, "/v1/events", new_event())
        arguments = ("audit", "--source", f"log://{gateway.data}", "--stats", gateway.admin_url)
        without = job(*arguments)
        monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "a token of the tests")
        done = job(*arguments, "--report", tmp_path)
        with Gateway(tmp_path / "other") as other:
            with httpx.Client(base_url=other.url, auth=AUTH) as client:
                post(client, "/v1/events", new_event())
            refused = job("audit", "--source", f"log://{other.data}", "--stats", gateway.admin_url)

    assert (without.exit_code, done.exit_code, refused.exit_code) == (2, 0, 2), (without, done, refused)
    assert "answered 401: set GATEWAY_ADMIN_TOKEN" in without.stderr
    assert "reconciliation: agrees: 1 accepted, 1 committed" in done.stdout
    report = json.loads((tmp_path / "audit.json").read_text())
    assert (report["window_seconds"], report["partition_count"]) == (7 * 86_400, 8)
    assert report["index_keys_max_of_partition"] == 500_000_000 // 8
    assert "--stats are of a gateway of another log" in refused.stderr


def test_quarantine_of_a_gateway_is_clean_by_its_own_rules(
    job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    with Gateway(tmp_path / "gateway", {"GATEWAY_IDENTITY_SECRET": SECRET}) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            post(client, "/v1/events", {"batch": [new_event() | {"messageId": "x" * 300}, 1, new_event()]})
            post(client, "/v1/events", [new_event(properties={"text": "ü" * 500_000})])  # six pieces
        source = f"log://{gateway.data}?topic=events.quarantine"
        done = job("audit", "--source", source, "--deep", "--stats", gateway.admin_url)

    assert done.exit_code == 0, done
    assert "reconciliation: agrees: 8 accepted, 8 committed" in done.stdout


def test_gateways_counters_are_reconciled_with_its_log(
    job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    with Gateway(tmp_path / "gateway", {"GATEWAY_IDENTITY_SECRET": SECRET}) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            for _ in range(5):
                batch = {"batch": [new_event() for _ in range(20)]}
                assert post(client, "/v1/events", batch).status_code == httpx.codes.OK
                assert post(client, "/v1/events", batch).status_code == httpx.codes.OK
        stats = gateway.stats()
        source = f"log://{gateway.data}"

        agreeing = job(
            "audit", "--source", source, "--deep", "--stats", gateway.admin_url, "--report", tmp_path
        )

    assert agreeing.exit_code == 0, agreeing
    assert "reconciliation: agrees: 100 accepted, 100 committed" in agreeing.stdout
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["reconciliation"]["totals"]["duplicates"] == 100

    stats["partitions"][3]["accepted"] += 1
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    differing = job("audit", "--source", source, "--stats", tmp_path / "stats.json")
    assert differing.exit_code == 1
    assert "reconciliation: differs" in differing.stdout
    assert "partition 3" in differing.stdout


def test_key_of_another_secret_is_named_by_a_deep_audit(
    job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway(tmp_path / "gateway", {"GATEWAY_IDENTITY_SECRET": SECRET}) as gateway:
        with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
            post(client, "/v1/events", new_event())
        monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", "another secret of 16 bytes")

        done = job("audit", "--source", f"log://{gateway.data}", "--deep")

    assert done.exit_code == 1
    assert "1 x wrong_key" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--source", "nonsense"], "is no source"),
        (["--source", "log://nowhere"], "there is no embedded log"),
        (["--source", "log://nowhere", "--since", "noon"], "is no time"),
        (["--source", "kafka://127.0.0.1:1/events"], "did not describe topic 'events'"),
        (["--source", "parquet:///nowhere"], "PATH_NOT_FOUND"),
    ],
)
def test_what_cannot_be_judged_ends_with_2_and_a_sentence(
    arguments: list[str], sentence: str, job: JobRunner
) -> None:
    done = job("audit", *arguments)

    assert done.exit_code == 2
    assert sentence in done.stderr


def clean_lanes(maker: RecordMaker) -> Lanes:
    """Two lanes, each with 200 records."""
    return {
        lane: [maker.record(maker.event_of(lane)) for _ in range(200)] for lane in range(maker.partitions)
    }


def first_half(lanes: Lanes) -> Lanes:
    return {lane: records[:100] for lane, records in lanes.items()}


def second_half(lanes: Lanes) -> Lanes:
    return {lane: records[100:] for lane, records in lanes.items()}
