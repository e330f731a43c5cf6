"""
Claim: an operator divides a topic on Kafka by one command while a gateway serves it, into more partitions or
fewer; every id is answered with the same bytes as before, each event is stored once, client sessions go on,
and what cannot be done is said.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from dedupe.storage.signs import NEAR
from tests.fault.conftest import PARTITIONS, kafka_log, sqlite_log
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event
from tests.support.kafka import create_topic, delete_topics
from tests.support.verdict import read_kafka
from tests.support.waiting import PATIENCE_S
from tests.support.workers import SESSION

EVENTS = 60
MANY, BATCH = 200_000, 500
"""Enough that to read them takes longer than a request may."""
SESSIONS = 12


@pytest.fixture
def gateway(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "gateway", kafka_log(kafka_bootstrap).env)
    yield gateway
    gateway.stop()


def posted(gateway: Gateway, events: list[dict[str, Any]], **headers: str) -> bytes:
    """Post events, again while the gateway asks for it, and return the answer."""
    url = f"{gateway.url}/v1/events"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = httpx.post(url, json={"batch": events}, auth=AUTH, headers=headers)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
            return answer.raise_for_status().content
        time.sleep(0.1)


def answers(gateway: Gateway, events: list[dict[str, Any]], first: int) -> list[bytes]:
    """Post events of no session, and one of each session from a sequence on; return all answers."""
    plain = [posted(gateway, [event]) for event in events]
    of_sessions = [
        posted(
            gateway,
            [{"messageId": f"{client}-{first}", "type": "track", "event": "Counted", "sequence": first}],
            **{"Gateway-Client": f"client-{client}", "Gateway-Session": SESSION},
        )
        for client in range(SESSIONS)
    ]
    return plain + of_sessions


def rows(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    done = cli(gateway, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr.decode()
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def refusal(gateway: Gateway, *arguments: str) -> str:
    done = cli(gateway, "reshard", *arguments)
    assert done.returncode == 2, (done.returncode, done.stderr.decode())
    return done.stderr.decode()


def divide(gateway: Gateway, partitions: int) -> None:
    done = cli(gateway, "reshard", "plan", "--partitions", str(partitions), "--notice", "0", "--force")
    assert done.returncode == 0, done.stderr.decode()
    assert b"is divided at offset" in done.stderr


@contextmanager
def requests_meanwhile(gateway: Gateway) -> Iterator[list[int]]:
    """Post an event again and again, over one connection that must not end, and yield the statuses."""
    statuses: list[int] = []
    ended = threading.Event()

    def post() -> None:
        with httpx.Client(auth=AUTH) as client:
            while not ended.is_set():
                answer = client.post(f"{gateway.url}/v1/events", json={"batch": [new_event()]})
                statuses.append(answer.status_code)

    thread = threading.Thread(target=post)
    thread.start()
    try:
        yield statuses
        seen = len(statuses)
        while thread.is_alive() and len(statuses) <= seen:
            time.sleep(0.01)
    finally:
        ended.set()
        thread.join()


def places(answer: bytes) -> set[int]:
    return {receipt["partition"] for receipt in orjson.loads(answer)["receipts"]}


@pytest.mark.kafka
async def test_ids_receipts_and_sessions_stay_known_through_two_divisions(
    gateway: Gateway, kafka_bootstrap: str
) -> None:
    events = [new_event() for _ in range(EVENTS)]
    topic = gateway.environment["GATEWAY_TOPIC"]
    gateway.start()
    first = answers(gateway, events, 1)

    assert "must be a multiple of 4" in refusal(gateway, "plan", "--partitions", "6")
    dry = cli(gateway, "reshard", "plan", "--partitions", "8", "--dry-run")
    assert b"partition 4 gets 512 of 4096 slots of partition 0" in dry.stderr
    assert len(rows(gateway, "reshard", "status")) == PARTITIONS
    with requests_meanwhile(gateway) as statuses:
        divide(gateway, 8)  # under a gateway that runs
        assert answers(gateway, events, 1) == first
    assert set(statuses) <= {200, 503}  # whoever waits for too long is asked to come again
    assert statuses[-1] == 200
    more = [new_event() for _ in range(EVENTS)]
    second = answers(gateway, more, 2)
    assert set.union(*map(places, second)) == set(range(8))
    assert [row["slots"] for row in rows(gateway, "reshard", "status")] == [512] * 8

    gateway.stop()
    divide(gateway, 16)
    gateway.delete_index()
    gateway.start()
    assert answers(gateway, events, 1) == first
    assert answers(gateway, more, 2) == second
    third = [new_event() for _ in range(EVENTS)]
    answers(gateway, third, 3)
    status = rows(gateway, "reshard", "status", "--url", gateway.admin_url)
    assert [row["lag"] for row in status] == [None] * 4 + [0] * 12
    inherits = [row["inherits"] for row in status]
    assert [len(line) for line in inherits] == [0] * 4 + [1] * 4 + [1] * 4 + [2] * 4
    verified = rows(gateway, "verify", "--url", gateway.admin_url)
    assert [row["verified"] for row in verified] == [True] * 16
    gateway.stop()

    stored = [record.message_id for record in await read_kafka(kafka_bootstrap, topic, 16)]
    assert len(stored) == len(set(stored)), "stored twice"
    assert {event["messageId"] for event in [*events, *more, *third]} <= set(stored)


@pytest.mark.kafka
async def test_topic_has_as_many_partitions_as_before_again_and_again(
    gateway: Gateway, kafka_bootstrap: str
) -> None:
    topic = gateway.environment["GATEWAY_TOPIC"]
    told: list[tuple[list[dict[str, Any]], list[bytes]]] = []
    gateway.start()
    for number, partitions in enumerate((8, 4, 8, 4), 1):
        events = [new_event() for _ in range(EVENTS)]
        told.append((events, answers(gateway, events, number)))
        divide(gateway, partitions)  # under a gateway that runs
        for first, (earlier, answer) in enumerate(told, 1):
            assert answers(gateway, earlier, first) == answer

    status = rows(gateway, "reshard", "status", "--url", gateway.admin_url)
    assert [row["slots"] for row in status] == [1024] * 4 + [0] * 4
    assert [row["state"] for row in status] == ["serves"] * 4 + ["rests"] * 4
    verified = rows(gateway, "verify", "--url", gateway.admin_url)
    assert [row["verified"] for row in verified] == [True] * 4
    assert {path.name for path in (gateway.data / "index" / topic).iterdir()} == {f"{n}-4" for n in range(4)}
    gateway.stop()
    checked = cli(gateway, "topics", "check")
    assert b"__consumer_offsets" in checked.stdout, checked  # of a single broker
    assert b"stay empty" not in checked.stdout, checked
    gateway.delete_index()
    gateway.start()  # with partitions of Kafka that rest
    for first, (earlier, answer) in enumerate(told, 1):
        assert answers(gateway, earlier, first) == answer
    gateway.stop()

    stored = [record.message_id for record in await read_kafka(kafka_bootstrap, topic, 8)]
    assert len(stored) == len(set(stored)) == 4 * (EVENTS + SESSIONS), "stored twice, or lost"


@pytest.mark.kafka
def test_new_indexes_are_prepared_and_nobody_is_refused_there_and_back(gateway: Gateway) -> None:
    gateway.start()
    for _ in range(MANY // BATCH):
        posted(gateway, [new_event() for _ in range(BATCH)])

    for plan, partitions in enumerate((2 * PARTITIONS, PARTITIONS, 2 * PARTITIONS), 1):
        with requests_meanwhile(gateway) as statuses:
            divide(gateway, partitions)

        assert set(statuses) == {200}
        lanes = gateway.stats()["partitions"]
        assert [each["state"] for each in lanes] == ["active"] * partitions
        status = rows(gateway, "reshard", "status")
        heirs = [each for each, row in zip(lanes, status, strict=False) if row["inherits"]]
        assert len(heirs) == (PARTITIONS if plan < 3 else 2 * PARTITIONS)
        assert sum(each["restored_records"] for each in heirs[-PARTITIONS:]) < 2 * PARTITIONS * NEAR


async def copied(
    bootstrap_servers: str, topic: str, partitions: int = 2 * PARTITIONS + 1
) -> list[ConsumerRecord[bytes, bytes]]:
    """Return all records of a topic, by partition and offset."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        places = [TopicPartition(topic, each) for each in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends, found = await consumer.end_offsets(places), []
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
    finally:
        await consumer.stop()
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def written_back(
    bootstrap_servers: str, topic: str, records: list[ConsumerRecord[bytes, bytes]]
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers)
    await producer.start()
    try:
        for record in records:
            await producer.send_and_wait(
                topic,
                record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp,
                headers=list(record.headers),
            )
    finally:
        await producer.stop()


@pytest.mark.kafka
@pytest.mark.regression(
    "A topic that was divided, and had no event since, was adopted as one that never was."
)
async def test_copy_of_the_routing_topic_replaces_the_lost_one_of_a_divided_topic(
    gateway: Gateway, kafka_bootstrap: str
) -> None:
    events = [new_event() for _ in range(EVENTS)]
    routing = f"{gateway.environment['GATEWAY_TOPIC']}.routing"
    gateway.start()
    first = answers(gateway, events, 1)
    divide(gateway, 2 * PARTITIONS)
    assert answers(gateway, events, 1) == first
    gateway.stop()
    copy = await copied(kafka_bootstrap, routing)

    await delete_topics(kafka_bootstrap, [routing])
    await create_topic(
        kafka_bootstrap, routing, partitions=2 * PARTITIONS + 1, configs={"retention.ms": "-1"}
    )
    assert "has, or had, records, and these settings say" in refusal(gateway, "adopt")
    await written_back(kafka_bootstrap, routing, copy)
    gateway.delete_index()
    gateway.start()

    assert answers(gateway, events, 1) == first
    assert len(rows(gateway, "reshard", "status")) == 2 * PARTITIONS


@pytest.mark.kafka
def test_topic_without_a_gateway_is_divided_by_the_command_and_one_partition_is_split(
    gateway: Gateway,
) -> None:
    gateway.start()
    events = [new_event() for _ in range(EVENTS)]
    first = answers(gateway, events, 1)
    gateway.stop()

    assert b"no plan is open" in cli(gateway, "reshard", "close").stderr
    assert "nothing to do" in refusal(gateway, "plan", "--partitions", "4")
    assert "either --partitions or --split" in refusal(gateway, "plan")
    assert "partition 9 has no slots" in refusal(gateway, "plan", "--split", "9")
    assert "plan with --force" in refusal(gateway, "plan", "--partitions", "8", "--url", gateway.admin_url)
    assert "too little for 257 lanes" in refusal(gateway, "plan", "--partitions", "256", "--force")
    divide(gateway, 8)
    assert "nothing to do" in refusal(gateway, "plan", "--partitions", "8")
    done = cli(gateway, "reshard", "plan", "--split", "5", "--notice", "0", "--force")
    assert b"partition 9 gets 256 of 4096 slots of partition 5" in done.stderr
    assert done.returncode == 0, done.stderr.decode()
    slots = {row["partition"]: row["slots"] for row in rows(gateway, "reshard", "status")}
    assert slots == dict.fromkeys(range(8), 512) | {5: 256, 9: 256}

    gateway.start()  # partition 8 rests
    assert answers(gateway, events, 1) == first
    assert [part["slots"] for part in gateway.stats()["partitions"]] == [512] * 5 + [256, 512, 512, 0, 256]
    divide(gateway, 4)
    assert answers(gateway, events, 1) == first
    more = [new_event() for _ in range(EVENTS)]
    assert set.union(*map(places, answers(gateway, more, 2))) == set(range(4))


def test_embedded_log_is_not_divided(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / f"gateway-{uuid.uuid4().hex[:6]}", sqlite_log().env)
    with gateway:
        pass

    assert "only a topic on Kafka can be divided" in refusal(gateway, "plan", "--partitions", "8")
