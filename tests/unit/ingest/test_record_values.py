"""
Claim: a record's value is what was sent and what is known, however it was built, and the usual one is
built without serialising the event again; what identifies an event does not depend on its batch.
"""

import json
from base64 import b64decode
from gzip import decompress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ingest.client_sessions import ClientSession
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.payload import Payload
from app.ingest.record_values import RecordValues
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.record import FLAG_ID_ASSIGNED
from dedupe.model.types import Topic

IDENTITY = Identity(b"a secret of 24 bytes....")
LIMITS = EventLimits(event_bytes_max=2_000, event_depth_max=4, request_bytes_max=1_000_000)
PARTITIONS = 8
IP = "2001:db8::7"
SENT_AT = "2026-11-21T20:11:11.000Z"
RECEIVED_AT = "1970-01-01T00:00:00.001Z"
CAPTURED = Path(__file__).parents[2] / "fixtures" / "sdk_requests.jsonl"
SESSION = "2QhzOoTrgUpVoF7Lfd8tJZkGEoB"
PLAIN = {"messageId": "1", "type": "track"}


def identified(
    items: list[Any],
    arrival: Arrival,
    shared: dict[str, Any] | None = None,
    *,
    ignore: str = "attempt",
    limits: EventLimits = LIMITS,
) -> Identified:
    quarantine = Quarantine(IDENTITY, Topic("events.quarantine", 1))
    identifier = Identifier(
        IDENTITY, PARTITIONS, quarantine, limits, fingerprint_ignore=frozenset({ignore}), random_bytes=bytes
    )
    found = Identified()
    found.take(identifier.identify(Payload(items, None, shared or {}), arrival))
    return found


# ---- the value

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
        "anonymousId": st.sampled_from(
            ["{", ',"context":{', "\\", {"context": {"a": 1}}, ["x"], [{"context": {"a": 1}}]]
        ),
        'a"context': st.just({"a": 1}),
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
SHARED = st.fixed_dictionaries(
    {},
    optional={
        "context": st.sampled_from([{"a": 1}, {"ip": "::1"}, {"ip": None}, {}, None]),
        "integrations": st.sampled_from([{"All": True}, None]),
        "sentAt": st.sampled_from([SENT_AT, None]),
    },
)


def expected_value(
    item: dict[str, Any], shared: dict[str, Any], client_ip: str | None, message_id: str
) -> dict[str, Any]:
    """Say plainly what a record holds."""
    value = {name: own for name, own in item.items() if name != "writeKey"}
    for name in ("context", "integrations"):
        if (batch_level := shared.get(name)) and (value.get(name) is None or isinstance(value[name], dict)):
            value[name] = batch_level | (value.get(name) or {})
    context = value.get("context")
    if client_ip and (context is None or (isinstance(context, dict) and context.get("ip") is None)):
        told = (shared.get("context") or {}).get("ip")
        value["context"] = (context or {}) | {"ip": client_ip if told is None or context else told}
    if value.get("sentAt") is None and shared.get("sentAt"):
        value["sentAt"] = shared["sentAt"]
    if value.get("type") is None:
        value["type"] = "track"
    return value | {"messageId": message_id, "receivedAt": RECEIVED_AT}


def loads_strictly(value: bytes) -> Any:
    """Parse JSON, and fail on a name that stands twice."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in items}) == len(items), items
        return dict(items)

    return json.loads(value, object_pairs_hook=pairs)


@settings(max_examples=1_000, deadline=None)
@given(
    item=st.one_of(USUAL, FIELDS),
    shared=SHARED,
    client_ip=st.sampled_from([None, IP]),
    ignore=st.sampled_from(["attempt", "context", "type", "messageId"]),
)
def test_value_is_what_was_sent_and_what_is_known(
    item: dict[str, Any], shared: dict[str, Any], client_ip: str | None, ignore: str
) -> None:
    found = identified([item], Arrival("web", 1, client_ip=client_ip), shared, ignore=ignore)
    for event in found.events:
        assert loads_strictly(event.value) == expected_value(item, shared, client_ip, event.message_id)


def serialised_again(item: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the value of an item takes a merge."""
    merged: list[dict[str, Any]] = []
    value_of = RecordValues._merged_value

    def merge(self: RecordValues, item: dict[str, Any], assigned_id: str | None) -> bytes:
        merged.append(item)
        return value_of(self, item, assigned_id)

    monkeypatch.setattr(RecordValues, "_merged_value", merge)
    limits = EventLimits(event_bytes_max=100_000, event_depth_max=32, request_bytes_max=1_000_000)
    found = identified([item], Arrival("web", 1, client_ip=IP), {"sentAt": SENT_AT}, limits=limits)
    assert len(found.events) == 1
    return bool(merged)


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
def test_what_sdks_send_is_not_serialised_again(
    batch: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for event in batch:
        assert not serialised_again(event, monkeypatch)


@pytest.mark.parametrize(
    "more",
    [
        {"messageId": None},
        {"type": None},
        {"sentAt": None},
        {"context": {}},
        {"context": {"ip": None}},
        {"anonymousId": {"context": {"a": 1}}, "context": {"a": 1}},
        {"anonymousId": [{"context": {"a": 1}}], "context": {"a": 1}},
        {'a"context': {"a": 1}, "context": {"a": 1}},
    ],
    ids=repr,
)
def test_what_has_no_place_between_the_bytes_is_merged(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert serialised_again(PLAIN | more, monkeypatch)


def test_ids_that_are_assigned_stand_behind_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not serialised_again({"type": "track", "event": "x"}, monkeypatch)


# ---- what identifies an event


def sessions(
    first_sequence: int | None, epoch: int, acknowledged: int, others: frozenset[str]
) -> ClientSession:
    own = frozenset({"sequence", *others})
    return ClientSession("c", SESSION, epoch, acknowledged, first_sequence, own, b"c" * 16, b"s" * 16)


SEQUENCES = st.sampled_from([1, 2, 7, 2**64 - 1, 0, float(2**64), -1, True, None, "1", 1.0])


@settings(max_examples=400, deadline=None)
@given(
    items=st.lists(
        st.one_of(USUAL, FIELDS, st.builds(lambda said, at: {**said, "sequence": at}, FIELDS, SEQUENCES)),
        min_size=1,
        max_size=4,
    ),
    session=st.none()
    | st.builds(
        sessions,
        st.sampled_from([None, 1, 5, 2**64 - 9]),
        st.sampled_from([0, 3]),
        st.sampled_from([0, 4]),
        st.sampled_from([frozenset(), frozenset({"attempt", "epoch"})]),
    ),
    is_strict=st.booleans(),
)
def test_an_item_becomes_what_it_becomes_alone(
    items: list[dict[str, Any]], session: ClientSession | None, is_strict: bool
) -> None:
    arrival = Arrival("web", 1, session=session, is_strict=is_strict)
    together = identified(items, arrival)
    events, rejections = [], []
    for index, item in enumerate(items):
        if session is not None and session.first_sequence is not None:
            arrival = arrival._replace(
                session=session._replace(first_sequence=session.first_sequence + index)
            )
        alone = identified([item], arrival)
        events += alone.events
        rejections += [rejection._replace(item_index=index) for rejection in alone.rejections]
    assert (together.events, together.rejections) == (events, rejections)
    assert sorted([*together.indexes(), *(r.item_index for r in together.rejections)]) == list(
        range(len(items))
    )


def test_place_in_a_session_identifies_its_event() -> None:
    session = sessions(11, 0, 4, frozenset())
    items = [PLAIN, {"type": "track"}, PLAIN | {"messageId": "2", "sequence": 20}, PLAIN | {"sequence": 0}]
    found = identified(items, Arrival("web", 1, session=session))
    assert [event.session and event.session.sequence for event in found.events] == [11, 12, 20]
    assert [event.flags for event in found.events] == [0, FLAG_ID_ASSIGNED, 0]
    for event, sequence in zip(found.events, (11, 12, 20), strict=True):
        assert event.key == IDENTITY.sequence_key(b"c" * 16, b"s" * 16, sequence)
        secondary_key = None if event.flags else IDENTITY.secondary_key("web", b"c" * 16, event.message_id)
        assert event.secondary_key == secondary_key
    assert [(r.item_index, r.code) for r in found.rejections] == [(3, "sequence_invalid")]


@pytest.mark.parametrize("shared", [{}, {"context": {"a": 1}, "integrations": {"All": True}}], ids=repr)
def test_what_is_merged_counts_for_the_size_of_a_request(shared: dict[str, Any]) -> None:
    size = 2 * len(orjson.dumps(PLAIN)) + (2 * len(orjson.dumps(shared)) if shared else 0)
    for size_max in (size, size - 1):
        limits = EventLimits(2_000, 4, request_bytes_max=size_max)
        found = identified([PLAIN, PLAIN], Arrival("web", 1), shared, limits=limits)
        assert [rejection.code for rejection in found.rejections] == ["request_too_large"] * (size - size_max)
        assert len(found.events) + len(found.quarantined) == 2
