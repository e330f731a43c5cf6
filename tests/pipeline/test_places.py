"""Claim: an audit finds an event of a client session that is stored in two places, and mistakes no other."""

import json
from datetime import timedelta
from pathlib import Path

import httpx
import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession

from clients.python.src.gateway_client.model import Place, Queued, event_of
from dedupe.model.identity import fingerprint_of
from dedupe.model.record import FLAG_ID_ASSIGNED
from dedupe.model.types import Event, NewRecord, Session
from pipeline.audit import checks
from pipeline.audit.checks import check_records, with_earlier_keys
from pipeline.audit.forgotten import DedupeBounds
from pipeline.audit.places import places, second_places
from tests.pipeline.conftest import JobRunner
from tests.pipeline.test_checks import as_dataframe
from tests.support.gateway import Gateway
from tests.support.http import AUTH
from tests.support.records import RecordMaker

BOUNDS = DedupeBounds(timedelta(days=7), 1000)
PHONE, OTHER_PHONE = bytes([1] * 16), bytes([2] * 16)
FIRST, SECOND, THIRD = (bytes([number] * 16) for number in (11, 12, 13))
"""Sessions, as hashes."""

KSUID = "2dlpu8idjvw2es2uvixfliYNu0q"
"""The name of the first one."""

MADE_AT = "2026-01-01T00:00:00.123Z"


class Phone:
    """Writes the records of a client's events, all in one partition."""

    def __init__(self) -> None:
        self._maker = RecordMaker(1)
        self.lane: list[NewRecord] = []

    def store(
        self,
        session: bytes,
        sequence: int,
        *,
        message_id: str = "",
        client: bytes = PHONE,
        made_at: str | None = MADE_AT,
        about: str = "a",
    ) -> None:
        """Store an event as the gateway does; without an id it is assigned one."""
        given, assigned = {"messageId": message_id}, {"messageId": f"{len(self.lane):027}"}
        content: dict[str, object] = {
            "event": "Seen",
            "properties": {"about": about},
            "timestamp": made_at,
            "type": "track",
        }
        if made_at is None:
            del content["timestamp"]
        arrival = {"receivedAt": f"2026-01-01T00:00:{len(self.lane):02}.000Z", "sentAt": str(len(self.lane))}
        fields = dict(sorted((content | given).items())) if message_id else content | assigned
        place = Session(client, session, sequence)
        event = self._maker.event(str(fields["messageId"]), session=place)
        value = orjson.dumps(fields | arrival)
        self._store(
            event._replace(
                value=value,
                flags=0 if message_id else FLAG_ID_ASSIGNED,
                fingerprint=fingerprint_of(orjson.dumps(content)),
            )
        )

    def _store(self, event: Event) -> None:
        self.lane.append(self._maker.record(event))


def kinds(records: DataFrame, bounds: DedupeBounds = BOUNDS) -> list[tuple[str, int]]:
    linked = with_earlier_keys(places(check_records(records, 1)), None)
    return [(row["kind"], row["offset"]) for row in second_places(linked, bounds).collect()]


def in_spark(spark: SparkSession, phone: Phone) -> DataFrame:
    return as_dataframe(spark, {0: phone.lane})


def test_an_event_that_is_stored_under_its_first_place_and_as_moved_is_found(spark: SparkSession) -> None:
    phone = Phone()
    phone.store(FIRST, 1, about="another")
    phone.store(FIRST, 2)
    phone.store(SECOND, 1, message_id=f"{KSUID}-2")
    assert kinds(in_spark(spark, phone)) == [(checks.SECOND_PLACE, 2)]
    assert kinds(in_spark(spark, phone), DedupeBounds()) == [(checks.REPEATED, 2)]
    short = DedupeBounds(timedelta(milliseconds=10), None)
    assert kinds(in_spark(spark, phone), short) == [(checks.ALLOWED_REPEAT, 2)]


def test_it_is_found_too_if_the_moved_one_is_stored_first_or_twice(spark: SparkSession) -> None:
    phone = Phone()
    phone.store(SECOND, 4, message_id=f"{KSUID}-2")
    phone.store(FIRST, 2)
    phone.store(THIRD, 9, message_id=f"{KSUID}-2")
    assert sorted(kinds(in_spark(spark, phone))) == [(checks.SECOND_PLACE, 1), (checks.SECOND_PLACE, 2)]


def test_an_own_id_in_two_places_of_a_client_is_found_whatever_the_content(spark: SparkSession) -> None:
    phone = Phone()
    phone.store(FIRST, 1, message_id="mine", made_at=None)
    phone.store(SECOND, 1, message_id="mine", made_at=None, about="b")
    phone.store(SECOND, 1, message_id="mine", client=OTHER_PHONE)
    assert kinds(in_spark(spark, phone)) == [(checks.SECOND_PLACE, 1)]


@pytest.mark.parametrize(
    "other",
    [
        {"sequence": 3},
        {"client": OTHER_PHONE},
        {"about": "b"},
        {"made_at": "2026-01-01T00:00:00.124Z"},
    ],
    ids=["sequence", "client", "content", "time"],
)
def test_what_differs_from_a_moved_event_is_another_one(
    spark: SparkSession, other: dict[str, object]
) -> None:
    phone = Phone()
    phone.store(FIRST, **{"sequence": 2, **other})  # type: ignore[arg-type]
    phone.store(SECOND, 1, message_id=f"{KSUID}-2")
    assert kinds(in_spark(spark, phone)) == []


def test_events_without_a_time_or_that_were_not_moved_are_not_compared(spark: SparkSession) -> None:
    phone = Phone()
    for session in (FIRST, SECOND):  # as of an application that says the same at each start
        phone.store(session, 2)
        phone.store(session, 3, made_at=None)
    phone.store(THIRD, 1, message_id=f"{KSUID}-3", made_at=None)
    assert kinds(in_spark(spark, phone)) == []


@pytest.mark.regression("The audit did not see that a moved event was stored in its first place, too.")
def test_what_a_gateway_stored_in_two_places_is_named_also_by_an_audit_of_new_records(
    job: JobRunner, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    event = Queued.of(
        {"type": "track", "event": "Seen", "timestamp": MADE_AT, "properties": {"b": [1], "a": 2.50}}
    )
    with Gateway(tmp_path / "gateway", {"GATEWAY_PARTITIONS": "1"}) as gateway:
        promise = ("--window", "7d", "--index-keys-max", 1000)
        audit = ("audit", "--source", f"log://{gateway.data}", "--report", report, *promise)
        since = (*audit, "--since-last", tmp_path / "memory")
        with httpx.Client(base_url=gateway.url, auth=AUTH) as http:
            send(http, KSUID, event_of(event.content), {"event": "Later", "timestamp": MADE_AT})
            assert job(*since).exit_code == 0
            moved = event_of(event.moved_from(Place(KSUID, 1)).content)
            send(http, "0ujsszwN8NRY24YaXiTIE2VWDTS", moved)
            send(http, "0ujsszgFvbiEr7CDgE3z8MAUPFt", moved)  # which the gateway knows
            for arguments in (audit, since):
                done = job(*arguments)
                assert done.exit_code == 1, done
                (found,) = json.loads((report / "audit.json").read_text())["violations"][checks.SECOND_PLACE][
                    "first"
                ]
                assert found["offset"] == 2
                assert found["detail"] == "the same client's event is in partition 0 at offset 0"


def send(http: httpx.Client, session: str, *batch: dict[str, object]) -> None:
    document = {
        "client": "phone",
        "session": session,
        "firstSequence": 1,
        "sentAt": MADE_AT,
        "batch": list(batch),
    }
    assert http.post("/v1/events", json=document).json()["success"]
