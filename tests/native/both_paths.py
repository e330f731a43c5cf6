"""The judge of both paths: the Python code alone, and with the native module, on the same bodies."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import gateway_native
from aiokafka import TopicPartition

from app.auth.write_keys import own_key
from app.http.at_once import at_once, yield_to_nobody
from app.http.errors import RequestError
from app.ingest.advice import advice_on
from app.ingest.client_sessions import FIELDS, ClientSession
from app.ingest.event_limits import EventLimits
from app.ingest.identified import Arrival, Identified
from app.ingest.identify import Identifier
from app.ingest.large_json import JSONLimits
from app.ingest.native import NativeModule
from app.ingest.parse import Parse, parse_batch, parse_event, parse_events
from app.ingest.payload import Expected
from dedupe.decide.recovery import PlainRecords, RecordCheck
from dedupe.model.identity import Identity
from dedupe.model.json_number import Number
from dedupe.model.quarantine import Quarantine
from dedupe.model.record import EventRecords
from dedupe.model.slots import PartitionMap
from dedupe.model.types import Event, Topic
from dedupe.storage.kafka.fetched import fetched_in, native_decoder
from dedupe.storage.kafka.record_batch import encode_batch
from dedupe.storage.kafka.wire import ProducerIdAndEpoch
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

ODDNESSES = (0.0, 0.01, 0.04)
DECODE = native_decoder(gateway_native)
TP = TopicPartition("events", 0)
PRODUCER = ProducerIdAndEpoch(7, 1)
BATCH_BYTES_MAX = 2**20


class Paths:
    """The Python code and the native module of one deployment."""

    def __init__(
        self, *ignore: str, earlier: Sequence[frozenset[str]] = (), gives_advice: bool = False
    ) -> None:
        self.native = NativeModule(
            gateway_native, IDENTITY, PartitionMap(PARTITIONS), LIMITS, gives_advice=gives_advice
        )
        self._gives_advice = gives_advice
        self._panics_before = self.native.use.panics
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

    @property
    def panics(self) -> int:
        """The faults of the module since these paths were made."""
        return self.native.use.panics - self._panics_before

    def compare(
        self, body: bytes, parse: Parse, arrival: Arrival, *, needs_key: bool = False
    ) -> Sequence[Event]:
        """Return the events that both paths make; fail unless these have the same result."""
        (python, events), (native, _) = [
            self._result(by, body, parse, arrival, needs_key=needs_key) for by in self._identifiers
        ]
        if native != python:
            raise AssertionError(f"{body!r}\n{arrival}\n{python}\n{native}")
        return events

    def _result(
        self, by: Identifier, body: bytes, parse: Parse, arrival: Arrival, *, needs_key: bool
    ) -> tuple[object, Sequence[Event]]:
        limits, payload = JSONLimits(ITEMS_MAX, LIMITS.event_bytes_max), None
        try:
            if by.native is not None:
                expected = PARSES[parse]
                reading = by.native.read(body, limits, yield_to_nobody, expected, needs_key=needs_key)
                payload = at_once(reading)
            payload = payload or at_once(parse(body, limits, yield_to_nobody))
        except RequestError as err:
            return (type(err), err.detail), ()
        top = payload.top or {}
        envelope = {name: str(top.get(name)) for name in ENVELOPE if not isinstance(top.get(name), ODD)}
        if payload.native is not None and needs_key:
            assert own_key(payload.top)
        found = Identified()
        found.take(by.identify(payload, arrival, lossy=found.lossy))
        found.work_bytes = 0  # an odd event is read twice
        advice = advice_on(payload.items, arrival) if self._gives_advice else []
        return (len(payload.items), envelope, found, advice), found.events


def compare_records(events: Sequence[Event]) -> int:
    """Fail unless both write the same record batch of plain events, and read and check the same; how many."""
    events = [event for event in events if event.session is None and event.reason is None]
    if not events:
        return 0
    raws = []
    for native in (None, gateway_native.encode_records):
        records = EventRecords(events, (), lane_seq=1, timestamp_ms=RECEIVED_MS)
        raws.append(encode_batch(records, PRODUCER, 0, bytes_max=BATCH_BYTES_MAX, native=native))
    assert raws[0] == raws[1], events
    compare_reading(raws[0])
    return len(events)


def compare_reading(raw: bytes, position: int = 0) -> bool:
    """Fail unless both read and check the same of a response; whether the native module took all of it."""
    python, native = (_reading(raw, position, is_native=each) for each in (False, True))
    assert native[0] == python[0], (raw, position)
    return native[1]


def _reading(raw: bytes, position: int, *, is_native: bool) -> tuple[object, bool]:
    check, found = RecordCheck(IDENTITY, 0, 1), list[object]()
    try:
        fetched = fetched_in(TP, raw, [], position, native=DECODE if is_native else None)
        records = fetched.take(2**20)
        found += [list(records), fetched.next_fetch_offset]
        plain = check.checked_plain(records) if isinstance(records, PlainRecords) else None
        if plain is not None:
            return [*found, plain], True
        found.append([check.checked(record) for record in records])
    except Exception as err:
        found.append(repr(err))
    return found, False


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


def all_paths() -> dict[str, Paths]:
    """Return a deployment of each kind by its name."""
    return {
        "default": Paths(),
        "development": Paths(gives_advice=True),
        "rules": Paths("extra", "timestamp", earlier=[frozenset({"zz", "=numbers"})]),
    }


@dataclass(slots=True)
class Compared:
    """What was generated and compared."""

    bodies: int = 0
    events: int = 0
    """The events that were generated, whatever became of them."""
    records: int = 0
    """The events that became records, written and read again on both paths."""


def compare_generated(paths: Paths, seed: int, events: int) -> Compared:
    """Compare the paths, and their records, on this many generated events: plain, odd and damaged ones."""
    rng, compared = random.Random(seed), Compared()
    for place, oddness in enumerate(ODDNESSES, start=1):
        for body in Bodies(rng.randrange(2**32), oddness=oddness):
            parse = rng.choice(USUAL[body.shape] if rng.random() < 0.9 else tuple(PARSES))
            made = paths.compare(body.content, parse, arrival_of(rng), needs_key=rng.random() < 0.1)
            compared.bodies += 1
            compared.events += body.events
            compared.records += compare_records(made)
            if compared.events > place * events / len(ODDNESSES):
                break
    return compared
