"""
Claim: events of a topic are stored once each, through kills, repeated deliveries and the HTTP port; what is
no event is kept in quarantine; and an input that must not be read on stops with a sentence, alone.
"""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from dedupe.model.types import Headers
from tests.support.documents import ROOT
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli
from tests.support.kafka import create_topic, delete_records, delete_topics
from tests.support.verdict import Committed, read_kafka, read_sqlite
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka

PARTITIONS = 2
SCHEMA = ROOT / "app" / "admin" / "stats.schema.json"
Record = tuple[bytes | None, bytes | None]


class Pair:
    """A gateway with one input, and the topics on both sides."""

    def __init__(self, folder: Path, servers: str, **settings: str) -> None:
        name = uuid.uuid4().hex[:12]
        self.servers, self.folder = servers, folder
        self.input, self.clean = f"raw-{name}", f"events-{name}"
        self.inputs_file = folder / "inputs.yaml"
        self.gateway = Gateway(
            folder / "gateway",
            {
                "GATEWAY_LOG": "kafka",
                "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
                "GATEWAY_TOPIC": self.clean,
                "GATEWAY_PARTITIONS": str(PARTITIONS),
                "GATEWAY_INPUTS_FILE": str(self.inputs_file),
                **settings,
            },
        )
        self.tell()

    @property
    def group(self) -> str:
        return f"gateway-{self.clean}-input-raw"

    def tell(self, **fields: object) -> None:
        """Write the file of inputs with the one input."""
        spec: dict[str, object] = {"name": "raw", "topic": self.input, "source": "web", "start": "earliest"}
        spec |= {"id": {"field": "messageId"}} | fields
        self.inputs_file.write_text(json.dumps({"inputs": [spec]}))

    async def create(self) -> None:
        await create_topic(self.servers, self.input, partitions=PARTITIONS, configs={"retention.ms": "-1"})

    async def send(self, records: Sequence[Record], partition: int | None = None) -> None:
        """Append to the input topic: partition by partition, round robin unless one is told."""
        producer = AIOKafkaProducer(bootstrap_servers=self.servers)
        await producer.start()
        try:
            for number, (key, value) in enumerate(records):
                place = number % PARTITIONS if partition is None else partition
                await producer.send(self.input, value=value, key=key, partition=place)
            await producer.flush()
        finally:
            await producer.stop()

    async def send_with(self, *records: tuple[bytes | None, Headers]) -> None:
        """Append values with headers to partition 0."""
        producer = AIOKafkaProducer(bootstrap_servers=self.servers)
        await producer.start()
        try:
            for value, headers in records:
                await producer.send_and_wait(self.input, value=value, key=b"k", headers=headers, partition=0)
        finally:
            await producer.stop()

    async def post(self, content: bytes, path: str = "/v1/events", **headers: str) -> httpx.Headers:
        async with httpx.AsyncClient(base_url=self.gateway.url, auth=AUTH, headers=headers) as client:
            return (await client.post(path, content=content)).raise_for_status().headers

    async def stored(self) -> list[Committed]:
        return await read_kafka(self.servers, self.clean, PARTITIONS)

    async def quarantined(self) -> list[Committed]:
        return await read_kafka(self.servers, f"{self.clean}.quarantine", 1)

    async def wait_for(self, ids: set[str]) -> list[Committed]:
        """Wait until all ids are stored."""
        found: list[Committed] = []
        async with asyncio.timeout(PATIENCE_S):
            while {each.message_id for each in found} < ids:
                await asyncio.sleep(0.2)
                found = await self.stored()
        return found

    async def wait_for_log(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while text not in self.gateway.log_path.read_text():
                await asyncio.sleep(0.1)

    async def committed(self) -> dict[int, int]:
        """Return the committed offsets of the input's group."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers, group_id=self.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            places = [TopicPartition(self.input, number) for number in range(PARTITIONS)]
            return {place.partition: await consumer.committed(place) or 0 for place in places}
        finally:
            await consumer.stop()

    async def reset_to(self, offsets: dict[int, int]) -> None:
        """Commit other offsets for the group, as kafka-consumer-groups --reset-offsets does."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers, group_id=self.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(self.input, number) for number in offsets])
            await consumer.commit(
                {
                    TopicPartition(self.input, number): OffsetAndMetadata(at, "")
                    for number, at in offsets.items()
                }
            )
        finally:
            await consumer.stop()


@pytest.fixture
def pair(tmp_path: Path, kafka_bootstrap: str) -> Iterator[Pair]:
    pair = Pair(tmp_path, kafka_bootstrap)
    yield pair
    pair.gateway.stop()


def event(message_id: str, **fields: object) -> bytes:
    return json.dumps({"messageId": message_id, "type": "track", "event": "Seen", **fields}).encode()


def records_of(values: Sequence[bytes]) -> list[Record]:
    return [(None, value) for value in values]


async def test_each_event_is_stored_once_through_kills(pair: Pair) -> None:
    await pair.create()
    ids = [f"m-{number}" for number in range(6_000)]
    rng = random.Random(7)
    sent = [*ids, *rng.choices(ids, k=600)]  # the producer repeats a tenth
    await pair.send(records_of([event(each, n=each) for each in sent]))
    for _ in range(3):
        pair.gateway.start()
        before = len(await pair.stored())
        async with asyncio.timeout(PATIENCE_S):
            while before == len(await pair.stored()) < len(ids):
                await asyncio.sleep(0.05)
        pair.gateway.kill()
    pair.gateway.start()
    found = await pair.wait_for(set(ids))
    assert Counter(each.message_id for each in found) == Counter(ids)
    assert await pair.quarantined() == []


async def test_embedded_log_stores_each_event_once_through_a_kill(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    pair = Pair(tmp_path, kafka_bootstrap, GATEWAY_LOG="sqlite")
    pair.tell(cluster={"bootstrap_servers": kafka_bootstrap})
    await pair.create()
    ids = [f"m-{number}" for number in range(3_000)]
    await pair.send(records_of([event(each) for each in [*ids, *ids[:300]]]))

    def stored() -> list[str]:
        return [each.message_id for each in read_sqlite(pair.gateway.data, pair.clean)]

    try:
        pair.gateway.start()
        async with asyncio.timeout(PATIENCE_S):
            while not stored():
                await asyncio.sleep(0.02)
        pair.gateway.kill()
        pair.gateway.start()
        async with asyncio.timeout(PATIENCE_S):
            while len(stored()) < len(ids) or await pair.committed() != {0: 1_650, 1: 1_650}:
                await asyncio.sleep(0.2)
        assert Counter(stored()) == Counter(ids)
        assert (await told(pair, "pause", "raw"))[0] == 0
    finally:
        pair.gateway.stop()


async def test_topic_that_is_read_again_stores_nothing_twice(pair: Pair) -> None:
    await pair.create()
    ids = [f"m-{number}" for number in range(500)]
    await pair.send(records_of([event(each) for each in ids]))
    pair.gateway.start()
    await pair.wait_for(set(ids))
    async with asyncio.timeout(PATIENCE_S):
        while await pair.committed() != {0: 250, 1: 250}:
            await asyncio.sleep(0.2)
    pair.gateway.kill()
    await pair.reset_to({0: 0, 1: 0})
    await pair.send(records_of([event("last")]), 0)
    pair.gateway.start()
    found = await pair.wait_for({*ids, "last"})
    assert Counter(each.message_id for each in found) == Counter([*ids, "last"])


async def test_event_of_both_doors_is_a_duplicate(pair: Pair) -> None:
    await pair.create()
    pair.gateway.start()
    assert (await pair.post(event("both", a=1.50)))["Gateway-Accepted"] == "1"
    await pair.send(records_of([event("both", a=1.5), event("end")]), 0)
    found = await pair.wait_for({"both", "end"})
    assert Counter(each.message_id for each in found) == Counter(["both", "end"])
    assert await pair.quarantined() == []
    assert (await pair.post(event("end")))["Gateway-Duplicates"] == "1"


async def read_topic(servers: str, topic: str) -> list[Any]:
    """Return the records of a topic of Kafka, as far as they are there."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        found = await consumer.getmany(timeout_ms=2_000)
        return [record for records in found.values() for record in records]
    finally:
        await consumer.stop()


async def headers_in(servers: str, topic: str) -> list[dict[str, bytes]]:
    """Return the headers of the events of a topic of Kafka."""
    headers = [dict(record.headers) for record in await read_topic(servers, topic)]
    return [each for each in headers if "gw" in each]


def headers_of(attributes: dict[str, str]) -> Headers:
    return [(f"ce_{name}", text.encode()) for name, text in attributes.items()]


async def test_cloudevents_of_both_doors_and_modes_are_one(pair: Pair) -> None:
    pair.tell(id=None, format="cloudevents")
    await pair.create()
    attributes = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
    structured = json.dumps({**attributes, "datacontenttype": "application/json", "data": {"n": 1}}).encode()
    json_type = [("content-type", b"application/json")]
    await pair.send_with(
        (b'{"n":1}', [*json_type, *headers_of(attributes)]),
        (structured, [("content-type", b"application/cloudevents+json; charset=UTF-8")]),
        (None, headers_of(attributes | {"id": "2"})),
        (None, []),
        (b"no event", []),
    )
    pair.gateway.start()
    found = await pair.wait_for({"/shop 1", "/shop 2"})
    assert Counter(each.message_id for each in found) == Counter(["/shop 1", "/shop 2"])
    assert json.loads(next(each.value for each in found if each.message_id == "/shop 1"))["data"] == {"n": 1}
    headers = {"content-type": "application/cloudevents+json"}
    posted = await pair.post(structured, "/v1/cloudevents", **headers)
    assert posted["Gateway-Duplicates"] == "1"
    assert len(await pair.quarantined()) == 1


async def test_records_say_where_their_event_comes_from(pair: Pair) -> None:
    pair.tell(keep_headers=["traceparent"])
    await pair.create()
    trace = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    sent = [(event("a"), [trace, ("other", b"x")]), (b"no event", []), (event("a", more=1), [trace])]
    await pair.send_with(*sent)
    pair.gateway.start()
    await pair.wait_for({"a"})
    await pair.wait_for_log("records of an input are in quarantine")
    (clean,) = await headers_in(pair.servers, pair.clean)
    assert clean["origin"] == b"raw:%b/0/0" % pair.input.encode()
    assert int(clean["origin-time"]) > 1_700_000_000_000
    assert clean["traceparent"] == trace[1]
    assert "other" not in clean
    async with asyncio.timeout(PATIENCE_S):
        while len(kept := await headers_in(pair.servers, f"{pair.clean}.quarantine")) < 2:
            await asyncio.sleep(0.1)
    origins = {headers["reason"]: headers["origin"].rpartition(b"/")[2] for headers in kept}
    assert origins == {b"unreadable": b"1", b"conflict": b"2"}


async def test_what_is_no_event_is_kept_and_stops_nothing(pair: Pair) -> None:
    await pair.create()
    avro, cut, anonymous = b"\0\0\0\0\7avro", b'{"messageId":"cut', b'{"type":"track"}'
    values = [event("a"), avro, cut, anonymous, b"[1]", None, b"", event("b")]
    await pair.send([(b"k", value) for value in values], 1)
    pair.gateway.start()
    found = await pair.wait_for({"a", "b"})
    assert len(found) == 2
    kept = {each.value for each in await pair.quarantined()}
    reasons = Counter(json.loads(value.split(b"\n")[0])["reason"] for value in kept)
    assert reasons == {"schema_encoded": 1, "unreadable": 1, "message_id_invalid": 1, "not_an_object": 1}
    for content in (avro, cut, anonymous, b"[1]"):
        assert any(value.endswith(b"\n" + content) for value in kept)


async def test_records_without_ids_are_named_by_their_place(pair: Pair) -> None:
    pair.tell(id="place", format="batch")
    await pair.create()
    batch = json.dumps({"context": {"app": 1}, "batch": [{"event": "A"}, {"event": "A"}]}).encode()
    await pair.send([(None, batch), (None, batch)], 0)
    pair.gateway.start()
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await pair.stored()) < 4:
            await asyncio.sleep(0.1)
    places = [each.message_id.split(":")[2:] for each in found]
    assert sorted(places) == [["0", "0", "0"], ["0", "0", "1"], ["0", "1", "0"], ["0", "1", "1"]]
    assert all(json.loads(each.value)["context"] == {"app": 1} for each in found)


async def stop_by_new_topic(pair: Pair) -> None:
    await delete_topics(pair.servers, [pair.input])
    await pair.create()


async def stop_by_expiry(pair: Pair) -> None:
    await pair.reset_to({0: 0, 1: 0})
    await delete_records(pair.servers, pair.input, {0: 3})


async def stop_by_lost_tail(pair: Pair) -> None:
    await pair.reset_to({0: 1_000})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (stop_by_new_topic, "was made anew: its id was"),
        (stop_by_expiry, "has lost its records 0 to 2 before they were read"),
        (stop_by_lost_tail, "below offset 1000 that was read already"),
    ],
)
async def test_input_stops_with_a_sentence(
    pair: Pair, change: Callable[[Pair], Awaitable[None]], sentence: str
) -> None:
    await pair.create()
    ids = {f"m-{number}" for number in range(20)}
    await pair.send(records_of([event(each) for each in sorted(ids)]))
    pair.gateway.start()
    await pair.wait_for(ids)
    async with asyncio.timeout(PATIENCE_S):
        while await pair.committed() != {0: 10, 1: 10}:
            await asyncio.sleep(0.2)
    pair.gateway.stop()
    await change(pair)
    pair.gateway.start()
    await pair.wait_for_log(sentence)
    assert (await pair.post(event("http")))["Gateway-Accepted"] == "1"


async def test_start_before_the_window_is_refused_unless_told(pair: Pair) -> None:
    await pair.create()
    producer = AIOKafkaProducer(bootstrap_servers=pair.servers)
    await producer.start()
    await producer.send_and_wait(pair.input, value=event("old"), partition=0, timestamp_ms=1_600_000_000_000)
    await producer.stop()
    pair.gateway.start()
    await pair.wait_for_log("older than the window")
    pair.gateway.stop()
    pair.tell(reads_past_window=True)
    pair.gateway.start()
    await pair.wait_for({"old"})


async def test_own_topic_is_refused_by_its_id(pair: Pair) -> None:
    """Under another cluster's name in the file, its name alone does not tell."""
    pair.tell(topic=pair.clean, cluster={"bootstrap_servers": pair.servers})
    pair.gateway.start()
    await pair.wait_for_log("it would read its own events")


async def test_conflicts_stop_an_input(pair: Pair) -> None:
    await pair.create()
    values = [event(f"m-{number % 1_000}", n=number) for number in range(2_000)]
    await pair.send(records_of(values), 0)
    pair.gateway.start()
    await pair.wait_for_log("are conflicts")
    told = await asyncio.to_thread(
        cli, pair.gateway, "inputs", "list", "--url", pair.gateway.admin_url, "-o", "json"
    )
    (row,) = [json.loads(line) for line in told.stdout.splitlines()]
    assert told.returncode == 1
    assert "are conflicts" in row["stopped"]
    assert row["conflicts"] > 50
    stats = await asyncio.to_thread(pair.gateway.stats)
    jsonschema.validate(stats, json.loads(SCHEMA.read_text()))
    assert [each["stopped"] for each in stats["inputs"]] == [row["stopped"]]
    page = (await asyncio.to_thread(httpx.get, f"{pair.gateway.admin_url}/metrics")).text
    assert f'gateway_input_stopped{{input="{row["input"]}"}} 1.0' in page


async def told(pair: Pair, *arguments: str) -> tuple[int, str]:
    """Return what a command on inputs answers."""
    done = await asyncio.to_thread(cli, pair.gateway, "inputs", *arguments, "--url", pair.gateway.admin_url)
    return done.returncode, (done.stdout + done.stderr).decode()


async def test_operators_pause_resume_and_seek(pair: Pair) -> None:
    await pair.create()
    ids = [f"m-{number}" for number in range(100)]
    await pair.send(records_of([event(each) for each in ids]))
    pair.gateway.start()
    await pair.wait_for(set(ids))
    assert await told(pair, "pause", "raw") == (0, "gateway: raw is paused\n")
    pair.gateway.kill()
    pair.gateway.start()
    await pair.send(records_of([event("later")]), 0)
    assert await told(pair, "seek", "raw", "--to", "earliest") == (
        0,
        "gateway: partition 0 is read on from offset 0\ngateway: partition 1 is read on from offset 0\n",
    )
    assert "has the offsets 0 to 50" in (await told(pair, "seek", "raw", "--partition", "1", "--to", "51"))[1]
    assert "there is no input no" in (await told(pair, "pause", "no"))[1]
    assert len(await pair.stored()) == len(ids)
    assert (await told(pair, "resume", "raw"))[0] == 0
    found = await pair.wait_for({*ids, "later"})
    async with asyncio.timeout(PATIENCE_S):
        while await pair.committed() != {0: 51, 1: 50}:
            await asyncio.sleep(0.1)
    assert Counter(each.message_id for each in found) == Counter([*ids, "later"])
    code, listed = await told(pair, "list", "--partitions", "-o", "json")
    rows = [json.loads(line) for line in listed.splitlines()]
    assert code == 0
    assert [(row["input"], row["partition"], row["records"], row["duplicates"]) for row in rows] == [
        ("raw", 0, 51, 50),
        ("raw", 1, 50, 50),
    ]


async def test_stopped_input_reads_on_when_it_is_resumed(pair: Pair) -> None:
    await pair.create()
    await pair.send(records_of([event("a"), event("b"), event("c")]), 0)
    await delete_records(pair.servers, pair.input, {0: 1})
    await pair.reset_to({0: 0, 1: 0})
    pair.gateway.start()
    await pair.wait_for_log("has lost its records 0 to 0")
    assert (await told(pair, "seek", "raw", "--to", "earliest"))[0] == 0
    assert (await told(pair, "resume", "raw"))[0] == 0
    await pair.wait_for({"b", "c"})


async def test_trial_has_every_event_of_both_doors_with_its_verdict_and_duplicates_are_sampled(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    pair = Pair(tmp_path, kafka_bootstrap, GATEWAY_OBSERVE="true", GATEWAY_DUPLICATE_SAMPLES="5")
    await pair.create()
    await pair.send(records_of([event("a"), event("a"), event("a", other=1), b"no event"]), 0)
    pair.gateway.start()
    try:
        assert (await pair.post(event("b")))["Gateway-Accepted"] == "1"
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await headers_in(pair.servers, f"{pair.clean}.observed")) < 5:
                await asyncio.sleep(0.1)
            while not (samples := await read_topic(pair.servers, f"{pair.clean}.duplicates")):
                await asyncio.sleep(0.1)
        code, document = await asyncio.to_thread(sources_of, pair.gateway)
    finally:
        pair.gateway.stop()
    told_of = [json.loads(each.value) for each in samples]
    assert [(each["message_id"], each["cause"]) for each in told_of] == [("a", "input")]
    verdicts = Counter((each["gw"], each.get("origin", b"").rpartition(b"/")[2]) for each in found)
    places = {b"accepted": b"0", b"duplicate": b"1", b"conflict": b"2", b"rejected": b"3"}
    assert verdicts == Counter([*places.items(), (b"accepted", b"")])
    assert next(each["original"] for each in found if each["gw"] == b"conflict").count(b"/") == 1
    assert code == 0
    assert document["total"]["duplicate_libraries"] == {"same_request: input topic": 1}


def sources_of(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    """Return what `gateway sources web` tells."""
    done = cli(gateway, "sources", "web", "-o", "json", "--url", gateway.admin_url)
    return done.returncode, json.loads(done.stdout.splitlines()[0])
