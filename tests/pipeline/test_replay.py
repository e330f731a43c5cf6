"""Claim: a replay stores what the gateway lacks, once, however often it is run, and goes on after a kill."""

from pathlib import Path

import httpx
import pytest

from dedupe.model.types import Session
from tests.conftest import TopicFactory
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.jobs import kill_at_work
from tests.support.records import RecordMaker, fill_topic
from tests.support.verdict import assert_sequences_whole, read_sqlite

SEED = 5
KEPT = {"retention.ms": "-1"}
KEYS = """
- {key: web, source: web, scopes: [ingest, replay]}
- {key: app, source: app, scopes: [ingest, replay]}
- {key: public, source: web}
"""


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Settings of a gateway that lets stored events in."""
    path = tmp_path / "replay-keys.yaml"
    path.write_text(KEYS)
    return {"GATEWAY_WRITE_KEYS_FILE": str(path)}


def test_log_of_one_gateway_is_replayed_into_another(
    job: JobRunner, keys: dict[str, str], tmp_path: Path
) -> None:
    with Gateway(tmp_path / "old") as old, httpx.Client(base_url=old.url, auth=AUTH) as client:
        for _ in range(5):
            post(client, "/v1/events", {"batch": [new_event() for _ in range(30)]})
        post(client, "/v1/events", new_event(), **{"Authorization": "Basic YXBwOg=="})
    sent = read_sqlite(old.data)

    with Gateway(tmp_path / "new", keys | {"GATEWAY_PARTITIONS": "3"}) as new:
        command = ["replay", "--source", f"log://{old.data}", "--gateway", new.url]
        first = job(*command, "--checkpoint", tmp_path / "first", "--write-key", "web=web")
        again = job(*command, "--checkpoint", tmp_path / "first")
        anew = job(*command, "--checkpoint", tmp_path / "anew")
        stored = read_sqlite(new.data)

    assert (first.exit_code, again.exit_code, anew.exit_code) == (0, 0, 0), (first, again, anew)
    assert first.stdout == "151 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"
    assert again.stdout == "0 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"
    assert anew.stdout == "0 accepted, 151 duplicates, 0 conflicts, 0 rejected\n"
    assert {record.message_id for record in stored} == {record.message_id for record in sent}
    assert len(stored) == len(sent) == 151
    assert {record.partition for record in stored} == {0, 1, 2}
    assert_sequences_whole(stored)


def test_replayed_events_are_those_that_the_client_sent(
    job: JobRunner, keys: dict[str, str], tmp_path: Path
) -> None:
    """What a gateway adds to an event makes it no other, there and for the retry of its client."""
    batch = {"batch": [new_event() for _ in range(30)], "context": {"app": {"name": "shop"}}}
    cloudevents = [
        {"specversion": "1.0", "source": "/shop", "type": "sold", "id": f"{n}" * 150} for n in (1, 2, 3)
    ]
    with Gateway(tmp_path / "old", keys) as old:
        with httpx.Client(base_url=old.url, auth=AUTH) as client:
            post(client, "/v1/batch", batch)
            post(client, "/v1/page", {"messageId": "without-type"})
            post(client, "/v1/cloudevents", cloudevents)
        command = ["replay", "--source", f"log://{old.data}", "--write-key", "web=web"]
        there = job(*command, "--gateway", old.url, "--checkpoint", tmp_path / "there")
        with Gateway(tmp_path / "new", keys) as new, httpx.Client(base_url=new.url, auth=AUTH) as client:
            elsewhere = job(*command, "--gateway", new.url, "--checkpoint", tmp_path / "elsewhere")
            late = post(client, "/v1/batch", batch)
            known = post(client, "/v1/cloudevents", cloudevents)

    assert there.stdout == "0 accepted, 34 duplicates, 0 conflicts, 0 rejected\n"
    assert elsewhere.stdout == "34 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"
    assert known.headers["Gateway-Duplicates"] == "3"
    assert (late.headers["Gateway-Duplicates"], late.content) == ("30", b'{"success":true}')


@pytest.mark.parametrize("lake_format", ["parquet", "delta", "iceberg"])
async def test_part_of_an_archive_is_replayed(
    lake_format: str,
    job: JobRunner,
    keys: dict[str, str],
    kafka_bootstrap: str,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    name = await topic("archived", partitions=2, configs=KEPT)
    maker = RecordMaker(2, step_ms=60_000)
    await fill_topic(kafka_bootstrap, name, maker.lanes(maker.event(f"id-{n}") for n in range(100)))
    source, out = f"kafka://{kafka_bootstrap}/{name}", tmp_path / "events"
    assert job("archive", "--source", source, "--out", out, "--format", lake_format, "--once").exit_code == 0

    with Gateway(tmp_path / "gateway", keys) as gateway:
        command = ["replay", "--source", f"{lake_format}://{out}", "--gateway", gateway.url]
        command += ["--since", "2026-01-01T00:30Z", "--until", "2026-01-01T01:00Z"]
        done = job(*command, "--checkpoint", tmp_path / "checkpoint")
        stored = read_sqlite(gateway.data)

    assert done.exit_code == 0, done
    assert done.stdout == "30 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"
    assert len(stored) == 30


@pytest.mark.slow
async def test_killed_replay_goes_on_and_stores_nothing_twice(
    job: JobRunner, keys: dict[str, str], kafka_bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    name = await topic("replayed", partitions=2, configs=KEPT)
    maker = RecordMaker(2)
    session = Session(b"c" * 16, b"s" * 16, sequence=1)
    events = [maker.event(f"id-{n}") for n in range(2000)]
    await fill_topic(
        kafka_bootstrap, name, maker.lanes([*events, maker.event("in-session", session=session)])
    )

    with Gateway(tmp_path / "gateway", keys) as gateway:
        command: list[object] = [
            "replay",
            "--source",
            f"kafka://{kafka_bootstrap}/{name}",
            "--gateway",
            gateway.url,
        ]
        command += ["--checkpoint", tmp_path / "checkpoint", "--connections", 2]
        kill_at_work(tmp_path, [*command, "--batch-offsets", 200, "--rate", 500], seed=SEED)
        after_kill = len(read_sqlite(gateway.data))
        last = job(*command)
        stored = read_sqlite(gateway.data)

    assert 0 < after_kill < 2000
    assert last.exit_code == 0, last
    assert len(stored) == 2_001
    assert {record.message_id for record in stored} == {"in-session", *(event.message_id for event in events)}


def test_events_of_client_sessions_keep_their_places(
    job: JobRunner, keys: dict[str, str], tmp_path: Path
) -> None:
    session = {"Gateway-Client": "phone", "Gateway-Session": "0ujtsYcgvSTl8PAuAdqWYSMnLOv"}
    batch = [new_event() | {"sequence": n} for n in (1, 2, 4, 7)]
    with Gateway(tmp_path / "old", keys) as old:
        with httpx.Client(base_url=old.url, auth=AUTH) as client:
            post(client, "/v1/events", {"batch": [new_event()]})
            post(client, "/v1/events", {"batch": batch}, **session)
        command = ["replay", "--source", f"log://{old.data}", "--write-key", "web=web"]
        there = job(*command, "--gateway", old.url, "--checkpoint", tmp_path / "there")
        new_keys = keys | {"GATEWAY_PARTITIONS": "3"}
        with Gateway(tmp_path / "new", new_keys) as new, httpx.Client(base_url=new.url, auth=AUTH) as client:
            elsewhere = job(*command, "--gateway", new.url, "--checkpoint", tmp_path / "elsewhere")
            late = post(client, "/v1/events", {"batch": batch}, **session)

    assert there.stdout == "0 accepted, 5 duplicates, 0 conflicts, 0 rejected\n"
    assert elsewhere.stdout == "5 accepted, 0 duplicates, 0 conflicts, 0 rejected\n"
    assert late.headers["Gateway-Duplicates"] == "4"
    assert (late.headers["Gateway-Session-Watermark"], late.headers["Gateway-Session-Missing"]) == (
        "2",
        "3,5-6",
    )


@pytest.mark.parametrize(
    ("key", "refusal"), [("unknown", "the gateway refused: 401"), ("public", "the gateway refused: 403")]
)
def test_gateway_that_refuses_ends_the_replay(
    key: str, refusal: str, job: JobRunner, keys: dict[str, str], tmp_path: Path
) -> None:
    with Gateway(tmp_path / "old") as old, httpx.Client(base_url=old.url, auth=AUTH) as client:
        post(client, "/v1/events", new_event())
    with Gateway(tmp_path / "new", keys) as new:
        command = ["replay", "--source", f"log://{old.data}", "--gateway", new.url]
        command += ["--checkpoint", str(tmp_path / "checkpoint")]

        refused = job(*command, "--write-key", f"web={key}")
        let_in = job(*command, "--write-key", "web=web")

    assert refused.exit_code == 2
    assert refusal in refused.stderr
    assert let_in.stdout.startswith("1 accepted")
