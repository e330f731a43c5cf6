"""Claim: the native module gives the same events and rejections as the Python code, byte by byte."""

import os
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import gateway_native
import pytest

from app.auth.write_keys import own_key
from app.http.errors import RequestError
from app.ingest.advice import advice_on
from app.ingest.client_sessions import FIELDS, ClientSession
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativeModule
from app.ingest.parse import Parse, parse_batch, parse_event, parse_events
from app.ingest.payload import Expected, Payload
from dedupe.model.identity import Identity
from dedupe.model.json_number import Number
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Topic
from tests.support.odd_bodies import Bodies

IDENTITY = Identity(b"a secret of 24 bytes....")
QUARANTINE = Quarantine(IDENTITY, Topic("events.quarantine", 1))
PARTITIONS = 8
LIMITS = EventLimits(
    event_bytes_max=2_000, event_depth_max=32, request_bytes_max=20_000, growth_bytes_max=5_000
)
ITEMS_MAX = 50
RECEIVED_MS = 1_795_291_872_007
PARSES: dict[Parse, Expected] = {
    parse_batch: Expected.BATCH,
    parse_events: Expected.EVENTS,
    parse_event: Expected.EVENT,
}
ENVELOPE = (*FIELDS, "firstSequence", "writeKey", "sentAt")
USUAL: dict[str, tuple[Parse, ...]] = {
    "batch": (parse_batch, parse_events),
    "array": (parse_events,),
    "event": (parse_events, parse_event),
}
ODD = (Number, list, dict)
"""What is no field of an envelope, and may hold Numbers, whose text has an address of memory."""
ADDRESSES = (None, "203.0.113.9", "2001:db8::7")
SEED = int(os.environ.get("NATIVE_SEED", "1"))
EVENTS = int(os.environ.get("NATIVE_EVENTS", "200000"))


class Paths:
    """The Python code and the native module of one deployment."""

    def __init__(
        self, *ignore: str, earlier: Sequence[frozenset[str]] = (), gives_advice: bool = False
    ) -> None:
        self.native = NativeModule(gateway_native, IDENTITY, PARTITIONS, LIMITS, gives_advice=gives_advice)
        self._gives_advice = gives_advice
        self._identifiers = [
            Identifier(
                IDENTITY,
                PARTITIONS,
                QUARANTINE,
                LIMITS,
                fingerprint_ignore=frozenset(ignore),
                earlier_ignore=earlier,
                random_bytes=bytes,
            )
            for _ in range(2)
        ]
        self._identifiers[1].native = self.native

    def compare(self, body: bytes, parse: Parse, arrival: Arrival, *, needs_key: bool = False) -> None:
        """Fail unless both paths have the same result."""
        python, native = [
            self._result(by, body, parse, arrival, needs_key=needs_key) for by in self._identifiers
        ]
        if native != python:
            raise AssertionError(f"{body!r}\n{arrival}\n{python}\n{native}")

    def _result(
        self, by: Identifier, body: bytes, parse: Parse, arrival: Arrival, *, needs_key: bool
    ) -> object:
        limits, payload = JSONLimits(ITEMS_MAX, LIMITS.event_bytes_max), None
        try:
            if by.native is not None:
                reading = by.native.read(body, limits, turn, PARSES[parse], needs_key=needs_key)
                payload = result_of(reading)
            payload = payload or result_of(parse(body, limits, turn))
        except RequestError as err:
            return type(err), err.detail
        assert payload is not None
        top = payload.top or {}
        envelope = {name: str(top.get(name)) for name in ENVELOPE if not isinstance(top.get(name), ODD)}
        if payload.native is not None and needs_key:
            assert own_key(payload.top)
        found = Identified()
        found.take(by.identify(payload, arrival, lossy=found.lossy))
        found.work_bytes = 0  # an odd event is read twice
        advice = advice_on(payload.items, arrival) if self._gives_advice else []
        return len(payload.items), envelope, found, advice


async def turn(_work_bytes: int) -> None:
    """Run on."""


def result_of(coroutine: Coroutine[Any, Any, Payload | None]) -> Payload | None:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        payload: Payload | None = stop.value
        return payload
    raise AssertionError("it waits")


def arrival_of(rng: random.Random) -> Arrival:
    """Return the properties of a request, with or without a client session."""
    arrival = Arrival("web", RECEIVED_MS, client_ip=rng.choice(ADDRESSES))
    kind = rng.randrange(4)
    if kind == 0:
        own = frozenset({"sequence", *(FIELDS if rng.random() < 0.2 else ())})
        first = rng.choice((None, 1, 2**64 - 50))
        client, ksuid = "phone-1", "2dlpu8idjvw2es2uvixfliYNu0q"
        hashes = IDENTITY.client_hash("web", client), IDENTITY.session_hash("web", client, ksuid)
        session = ClientSession(client, ksuid, rng.choice((0, 3)), 7, first, own, *hashes)
        arrival = arrival._replace(session=session, is_strict=rng.random() < 0.2)
    if rng.random() < 0.2:
        arrival = arrival._replace(idempotency_key=b"once")
    return arrival


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param(Paths(), id="default"),
        pytest.param(Paths(gives_advice=True), id="development"),
        pytest.param(Paths("extra", "timestamp", earlier=[frozenset({"zz", "=numbers"})]), id="rules"),
    ],
)
def test_both_paths_give_the_same_events_and_rejections(paths: Paths) -> None:
    rng = random.Random(SEED)
    for oddness in (0.0, 0.01, 0.04):
        compared = 0
        for body in Bodies(rng.randrange(2**32), oddness=oddness):
            parse = rng.choice(USUAL[body.shape] if rng.random() < 0.9 else tuple(PARSES))
            paths.compare(body.content, parse, arrival_of(rng), needs_key=rng.random() < 0.1)
            compared += body.events
            if compared > EVENTS // 9:
                break
    assert paths.native.use.events > EVENTS / 40
    assert paths.native.use.odd_events > EVENTS / 200
    assert paths.native.use.other_bodies > 0
    assert paths.native.use.panics == 0


@pytest.mark.parametrize(
    "body", [b'{"messageId":"1","type":"track","p":[%b]}', b'{"p":[%b],"batch":[{"a":1}]}']
)
@pytest.mark.regression("What stood beside events that the native module read held up all other requests.")
def test_much_beside_the_events_is_read_in_pieces_by_the_python_code(body: bytes) -> None:
    limits = JSONLimits(ITEMS_MAX, LIMITS.event_bytes_max)
    for count, is_native in ((40_000, True), (50_000, False)):
        reading = Paths().native.read(body % b",".join([b"[]"] * count), limits, turn, Expected.EVENTS)
        assert (result_of(reading) is not None) is is_native


@pytest.mark.regression("The native module took an event that Python sets aside as too expensive to parse.")
@pytest.mark.parametrize("value", [b"[" + b"[1]," * 170_000 + b"1]", b'"%b"' % (b"x" * 200_000)])
def test_event_that_may_be_too_expensive_for_python_is_left_to_it(value: bytes) -> None:
    paths = Paths()
    event = b'{"messageId":"m","type":"track","event":"Seen","value":%b}' % value
    small = b'{"messageId":"n","type":"track","event":"Seen"}'
    for body in (event, b"[%b,%b]" % (small, event), b'{"batch":[%b,%b]}' % (event, small)):
        paths.compare(body, parse_events, Arrival("web", RECEIVED_MS))
    paths.compare(
        b'{"batch":[%b],"context":{"v":%b}}' % (small, value), parse_batch, Arrival("web", RECEIVED_MS)
    )
    assert paths.native.use.events == 0
