"""Claim: events that are identified many at once become what they become one by one, and nearly all are."""

import json
from base64 import b64decode
from dataclasses import replace
from gzip import decompress
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http import RequestTooLargeError
from app.ingest.event_limits import RETRY_BYTES_FREE, STEP_BYTES, STEP_FIELDS, EventLimits
from app.ingest.identify import Arrival, Identified, Identifier
from app.ingest.payload import Payload
from app.ingest.plain_events import PlainEvents, Taken
from app.ingest.record_values import RecordValues
from app.ingest.session_events import SessionEvents
from app.ingest.session_fields import ClientSession
from dedupe.identity import RETRY_FIELDS, Identity
from dedupe.quarantine import Quarantine
from dedupe.record import FLAG_ID_ASSIGNED
from dedupe.types import Stream

IDENTITY = Identity(b"a secret of 24 bytes....")
LIMITS = EventLimits(event_bytes_max=2_000, event_depth_max=4, request_bytes_max=1_000_000)
PARTITIONS = 8
IP = "2001:db8::7"
SENT_AT = "2026-11-21T20:11:11.000Z"
NO_EVENT = 5
CAPTURED = Path(__file__).parents[2] / "fixtures" / "sdk_requests.jsonl"

SESSION = "2QhzOoTrgUpVoF7Lfd8tJZkGEoB"

PLAIN = {"messageId": "1", "type": "track"}


def identifier(limits: EventLimits = LIMITS, *, ignore: frozenset[str] = frozenset()) -> Identifier:
    quarantine = Quarantine(IDENTITY, Stream("events.quarantine", 1))
    return Identifier(IDENTITY, PARTITIONS, quarantine, limits, fingerprint_ignore=ignore, random_bytes=bytes)


def plain_events(
    limits: EventLimits = LIMITS,
    *,
    client_ip: str | None = IP,
    ignored: frozenset[str] = RETRY_FIELDS,
    in_session: SessionEvents | None = None,
) -> PlainEvents:
    values = RecordValues(
        {"sentAt": SENT_AT}, received_ms=1, default_type="track", client_ip=client_ip, depth_max=4
    )
    return PlainEvents(
        values,
        limits,
        ignored=ignored,
        special=frozenset({"integrations"}),
        source="web",
        key_of=IDENTITY.message_keys("web"),
        partitions=PARTITIONS,
        sessions=in_session,
    )


def taken(*items: object, limits: EventLimits = LIMITS) -> Taken:
    found = plain_events(limits).take(0, items)
    assert found is not None
    return found


# ---- alike

LONG = ("é" * 127, "é" * 128)
"""Message ids of few characters, whose bytes are just few enough, and too many."""

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5))
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "messageId": st.one_of(st.text(max_size=3), st.sampled_from([None, 1, "a", "x" * 256, *LONG])),
        "type": st.sampled_from(["track", "page", "", None, 5, ["track"], "a\x00"]),
        "context": st.one_of(
            SCALARS,
            st.just([1]),
            st.dictionaries(st.sampled_from(["ip", "page", "a"]), SCALARS | st.just({"a": [[[1]]]})),
        ),
        "integrations": SCALARS,
        "anonymousId": st.sampled_from(["{", ',"context":{', "\\", {"context": {"a": 1}}, ["x"]]),
        "properties": st.sampled_from([{"a": {"b": {"c": 1}}}, {"a": {"b": {"c": {}}}}, "x" * 1_950]),
        "sentAt": st.sampled_from([None, "2026", {"a": 1}]),
        "receivedAt": SCALARS,
        "_metadata": st.sampled_from([None, {"retryCount": 1}, {"a": {"b": {"c": {}}}}, "y" * 1_100]),
        "writeKey": SCALARS,
        "attempt": st.integers(0, 3),
    },
)
USUAL = st.builds(
    lambda fields, name: {**PLAIN, "messageId": name, **fields}, FIELDS, st.text("ab", min_size=1)
)


def identified(items: list[Any], shared: dict[str, Any], client_ip: str | None, ignore: str) -> Identified:
    found = identifier(ignore=frozenset({ignore}))
    return found.identify(Payload(items, None, shared), Arrival("web", 1, client_ip=client_ip))


@settings(max_examples=600, deadline=None)
@given(
    items=st.lists(st.one_of(USUAL, FIELDS), min_size=1, max_size=4),
    shared=st.fixed_dictionaries(
        {},
        optional={
            "context": st.sampled_from([{"a": 1}, {"ip": "::1"}, {"a": {"b": {"c": {}}}}, {}, None]),
            "integrations": st.sampled_from([{"All": True}, None]),
            "sentAt": st.sampled_from([SENT_AT, None]),
        },
    ),
    client_ip=st.sampled_from([None, IP]),
    ignore=st.sampled_from(["attempt", "context", "type", "messageId"]),
)
def test_many_at_once_become_what_they_become_one_by_one(
    items: list[dict[str, Any]], shared: dict[str, Any], client_ip: str | None, ignore: str
) -> None:
    together = identified(items, shared, client_ip, ignore)
    each = identified([*items, NO_EVENT], shared, client_ip, ignore)  # which nobody takes for plain
    assert_alike(together, each)


def sessions(
    first_sequence: int | None, epoch: int, acknowledged: int, others: frozenset[str]
) -> ClientSession:
    own = frozenset({"sequence", *others})
    return ClientSession("c", SESSION, epoch, acknowledged, first_sequence, own, b"c" * 16, b"s" * 16)


SEQUENCES = st.sampled_from([1, 2, 7, 2**64 - 1, 0, float(2**64), -1, True, None, "1", 1.0])
OF_A_SESSION = st.one_of(
    st.lists(st.builds(lambda said, at: {**said, "sequence": at}, USUAL, SEQUENCES), min_size=1, max_size=3),
    st.lists(
        st.builds(
            lambda said, at: {**{name: said[name] for name in said if name != "messageId"}, "sequence": at},
            USUAL,
            SEQUENCES,
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.fixed_dictionaries({"type": st.just("track"), "sequence": st.integers(1, 3)}),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.fixed_dictionaries({"type": st.just("track")}), min_size=1, max_size=4),
    st.lists(st.one_of(USUAL, FIELDS), min_size=1, max_size=4),
)


@settings(max_examples=600, deadline=None)
@given(
    items=OF_A_SESSION,
    session=st.builds(
        sessions,
        st.sampled_from([None, 1, 5, 2**64 - 9]),
        st.sampled_from([0, 3]),
        st.sampled_from([0, 4]),
        st.sampled_from([frozenset(), frozenset({"attempt", "epoch"})]),
    ),
    key=st.sampled_from([None, None, b"k"]),
    is_strict=st.booleans(),
)
def test_many_of_a_session_become_what_they_become_one_by_one(
    items: list[dict[str, Any]], session: ClientSession, key: bytes | None, is_strict: bool
) -> None:
    arrival = Arrival("web", 1, session=session, idempotency_key=key, is_strict=is_strict)
    together = identifier().identify(Payload(items, None, {}), arrival)
    each = identifier().identify(Payload([*items, NO_EVENT], None, {}), arrival)
    assert_alike(together, each)


def test_events_of_a_session_are_plain_with_ids_of_their_own_or_without_any() -> None:
    session = sessions(11, 0, 4, frozenset())
    events = SessionEvents(IDENTITY, PARTITIONS, "web", session=session, stored=(), is_strict=False)
    plain = plain_events(in_session=events)
    found = plain.take(3, [{"type": "track"}] * 2)
    assert found is not None
    assert [event.session and event.session.sequence for event in found.events] == [14, 15]
    assert [event.flags for event in found.events] == [FLAG_ID_ASSIGNED] * 2
    found = plain.take(0, [PLAIN, PLAIN | {"messageId": "2", "sequence": 20}])
    assert found is not None
    assert [event.session and event.session.sequence for event in found.events] == [11, 20]
    assert [event.message_id for event in found.events] == ["1", "2"]
    assert plain.take(0, [PLAIN, {"type": "track"}]) is None
    assert plain.take(0, [{"type": "track", "sequence": 0}]) is None


def assert_alike(together: Identified, each: Identified) -> None:
    """Check that items became the same as beside one more, NO_EVENT."""
    for event, other in zip(together.events, each.events, strict=True):
        assert json.loads(event.value, object_pairs_hook=dict_of) == orjson.loads(other.value)
        assert event._replace(value=b"") == other._replace(value=b"")
    assert together.places == each.places
    assert together.rejections == each.rejections[:-1]
    assert together.quarantined == each.quarantined[:-1]


def dict_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of names that stand in it once."""
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


# ---- nearly all


def captured() -> list[Any]:
    """Return each batch of a captured request that SDKs of today send."""
    found = []
    for line in CAPTURED.read_bytes().splitlines():
        request = orjson.loads(line)
        body = b64decode(request["body_b64"])
        try:
            document = orjson.loads(decompress(body) if body[:2] == b"\x1f\x8b" else body)
        except orjson.JSONDecodeError:
            continue
        if isinstance(document, dict) and isinstance(document.get("batch"), list):
            found.append(pytest.param(document["batch"], id=request["sdk"]))
    return found


@pytest.mark.parametrize("batch", captured())
def test_what_sdks_send_is_plain(batch: list[Any]) -> None:
    limits = replace(LIMITS, event_bytes_max=100_000, event_depth_max=32)
    found = plain_events(limits).take(0, [event | {"integrations": 1} for event in batch])
    assert found is None, "batch-level fields that would have to be merged"
    batch = [{name: event[name] for name in event if name != "integrations"} for event in batch]
    assert len(taken(*batch, limits=limits).events) == len(batch)


@pytest.mark.parametrize(
    "item",
    [
        NO_EVENT,
        {"type": "track"},
        {"messageId": "1"},
        PLAIN | {"messageId": None},
        PLAIN | {"messageId": 1},
        PLAIN | {"messageId": ""},
        PLAIN | {"messageId": "x" * 256},
        PLAIN | {"messageId": LONG[1]},
        PLAIN | {"type": None},
        PLAIN | {"type": ["track"]},
        PLAIN | {"type": "a\x00"},
        PLAIN | {"integrations": {}},
        PLAIN | {"context": {}},
        PLAIN | {"context": {"ip": None}},
        PLAIN | {"anonymousId": {"context": {"a": 1}}, "context": {"a": 1}},
        PLAIN | {"anonymousId": [{"context": {"a": 1}}], "context": {"a": 1}},
        PLAIN | {'a"context': {"a": 1}, "context": {"a": 1}},
        PLAIN | {"properties": "x" * 2_000},
        PLAIN | {"properties": {"a": {"b": {"c": {}}}}},
        PLAIN | {"properties": orjson.loads(b"[" * 300 + b"]" * 300)},
        PLAIN | {"_metadata": "y" * (RETRY_BYTES_FREE - len('{"_metadata":""}') + 1)},
        PLAIN | {"_metadata": orjson.loads(b"[" * 300 + b"]" * 300)},
    ],
    ids=repr,
)
def test_what_needs_a_look_of_its_own_is_not_plain(item: object) -> None:
    assert plain_events().take(0, [PLAIN, item]) is None
    assert taken(PLAIN).events[0].message_id == "1"


def test_fingerprint_of_a_stored_event_and_place_in_a_session_are_kept() -> None:
    payload, client, session = Payload([PLAIN | {"sequence": 1}], None, {}), b"c" * 16, b"s" * 16
    fields = ClientSession("c", "s", 1, 0, None, frozenset({"sequence"}), client, session)
    stored = b"12345678"
    assert (
        identifier().identify(payload, Arrival("web", 1, fingerprints=[stored])).events[0].fingerprint
        == stored
    )
    assert identifier().identify(payload, Arrival("web", 1, session=fields)).events[0].session is not None


def test_field_with_a_meaning_is_never_left_out() -> None:
    ignored = RETRY_FIELDS | {"context"}
    assert plain_events(ignored=ignored).take(0, [PLAIN | {"context": {"a": 1}}]) is None
    assert plain_events(ignored=ignored).take(0, [PLAIN]) is not None


def test_size_is_that_of_what_events_say() -> None:
    said = PLAIN | {"context": {"page": "/"}}
    size = len(orjson.dumps(said))
    assert taken(said, said).size_bytes == 2 * size
    assert taken(said | {"_metadata": {"a": 1}, "sentAt": SENT_AT, "writeKey": "k"}).size_bytes == size


@pytest.mark.parametrize("others", [[], [NO_EVENT]], ids=["at once", "one by one"])
@pytest.mark.parametrize("shared", [{}, {"context": {"a": 1}, "integrations": {"All": True}}], ids=repr)
def test_what_is_merged_counts_for_the_size_of_a_request(others: list[Any], shared: dict[str, Any]) -> None:
    items = [PLAIN, PLAIN, *others]
    size = 2 * len(orjson.dumps(PLAIN)) + sum(len(orjson.dumps(other)) for other in others)
    if shared:
        size += 2 * len(orjson.dumps(shared))
    payload, arrival = Payload(items, None, shared), Arrival("web", 1)
    found = identifier(replace(LIMITS, request_bytes_max=size)).identify(payload, arrival)
    assert len(found.events) == 2
    with pytest.raises(RequestTooLargeError):
        identifier(replace(LIMITS, request_bytes_max=size - 1)).identify(payload, arrival)


def test_as_many_are_taken_as_a_step_may_hold() -> None:
    limits = EventLimits(800 * 1024, 32, request_bytes_max=200 * 1024**2)
    large = PLAIN | {"properties": "x" * 40_000}
    found = taken(*[large] * 50, limits=limits)
    assert len(found.events) == STEP_BYTES // 40_000 + 1

    done, whole = [0], Identified([], [], [], [])
    payload = Payload([large | {"messageId": str(place)} for place in range(50)], None, {})
    for _ in identifier(limits).steps(payload, Arrival("web", 1), whole):
        done.append(len(whole.events))
    assert max(after - before for before, after in pairwise(done)) == len(found.events)
    assert [event.message_id for event in whole.events] == [str(place) for place in range(50)]
    assert whole.places == list(range(50))


def test_events_of_many_fields_are_not_looked_at_before_their_turn() -> None:
    limits = replace(LIMITS, event_bytes_max=800 * 1024)
    wide = PLAIN | {str(place): 1 for place in range(STEP_FIELDS - len(PLAIN))}
    assert len(taken(wide, limits=limits).events) == 1
    assert plain_events(limits).take(0, [wide, PLAIN]) is None


def test_what_retries_change_is_not_looked_at_before_its_turn() -> None:
    limits = replace(LIMITS, event_bytes_max=800 * 1024)
    large, other = PLAIN | {"properties": "x" * STEP_BYTES}, PLAIN | {"_metadata": "y" * RETRY_BYTES_FREE}
    assert plain_events(limits).take(0, [other]) is None
    assert len(taken(large, other, limits=limits).events) == 1
