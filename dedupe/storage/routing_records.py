"""
The records of a topic's routing topic, which says by what rules the topic is written. Pure and frozen.

A record is bound to its place by a MAC under a key of the identity secret: one of another cluster, of another
topic of that name or of another secret is refused, and so is one that no gateway wrote.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from dedupe.decide.lineage import Mark
from dedupe.decide.resharding import Decision, Marking, Move, Plan
from dedupe.model.errors import IdentityMismatchError
from dedupe.model.identity import Identity
from dedupe.model.types import Headers, LogRecord, NewRecord

HEADER_MAC = "gr"
"""The header of every record: a version byte, and the MAC."""

VERSION, GROWTH_VERSION = 2, 1
"""Plans of the second version give slots to partitions with records of their own, or not all away, and have
marks; gateways that know of the first alone refuse them, and follow all other records."""

MAC_BYTES = 16
KEY_BYTES = 32
NOTE, PLAN, MARK, CUT, KEEP, CLOSE = "note", "plan", "mark", "cut", "keep", "close"
"""The kinds of records that this version knows; a later one may write others."""

_PURPOSE = b"routing"


class Place(NamedTuple):
    """Where a record belongs."""

    log_id: str
    topic_id: bytes  # of the topic whose rules it says; zeros where topics have no ids
    partition: int  # of the routing topic


class Note(NamedTuple):
    """A note about a partition of the topic, or of its quarantine."""

    name: str
    topic: str
    partition: int
    text: str
    once: bool = False  # it counts only if there is none of this name before it


class Close(NamedTuple):
    """The wish that a plan end: parents that have not decided keep their slots."""

    plan: int


Said: TypeAlias = Note | Plan | Marking | Decision | Close
"""What a record may say."""


def routing_topic_of(topic: str) -> str:
    """Return the name of a topic's routing topic."""
    return f"{topic}.routing"


def mac_key_of(identity: Identity) -> bytes:
    """Return the key of all MACs, from which the identity secret does not follow."""
    return hashlib.blake2b(key=identity.secret, person=_PURPOSE, digest_size=KEY_BYTES).digest()


def note_record(note: Note, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of a note."""
    return _record(NOTE, note._asdict(), place, key, now_ms)


def plan_record(plan: Plan, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of a plan, in partition 0; growth into logs without offsets has only its moves."""
    before = [_of_decision(decision) for decision in plan.before]
    moves = [list(move) for move in plan.moves]
    fields = {"before": before, "moves": moves, "number": plan.number, "partitions": plan.partitions}
    if not (plan.read_from_ms or plan.empty_until):
        return _record(PLAN, fields, place, key, now_ms)
    fields |= {"marks": [list(mark) for mark in plan.marks], "read_from_ms": plan.read_from_ms}
    if plan.empty_until:
        fields["empty_until"] = [list(each) for each in plan.empty_until]
    return _record(PLAN, fields, place, key, now_ms, version=VERSION)


def marking_record(marking: Marking, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of more marks, in partition 0."""
    fields = marking._asdict() | {"marks": [list(mark) for mark in marking.marks]}
    return _record(MARK, fields, place, key, now_ms, version=VERSION)


def decision_record(decision: Decision, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of a parent's cut, or of its keeping, in the partition beside its own."""
    return _record(CUT if decision.is_cut else KEEP, _of_decision(decision), place, key, now_ms)


def close_record(close: Close, place: Place, key: bytes, *, now_ms: int) -> NewRecord:
    """Return the record of the wish that a plan end, in partition 0."""
    return _record(CLOSE, close._asdict(), place, key, now_ms)


def read_record(record: LogRecord, places: Sequence[Place], key: bytes) -> Said:
    """
    Return what a record says that belongs to one of some places.

    Raises:
        IdentityMismatchError: it belongs elsewhere, no gateway wrote it, or a later version did.
    """
    sealed = _mac_in(record.headers)
    if sealed[:1] > bytes([VERSION]):
        raise IdentityMismatchError(f"{_where(record)} was written by a newer gateway: run that one")
    macs = (sealed[:1] + _mac(key, place, record.key, record.value) for place in places)
    if not any(hmac.compare_digest(sealed, mac) for mac in macs):
        raise IdentityMismatchError(
            f"{_where(record)} was written under another GATEWAY_IDENTITY_SECRET, for another cluster or for "
            "another topic of this name; or no gateway wrote it"
        )
    fields = orjson.loads(record.value)
    kind, version = fields.pop("kind"), fields.pop("v")
    if kind not in _READERS or version > VERSION:
        raise IdentityMismatchError(f"{_where(record)} was written by a newer gateway: run that one")
    return _READERS[kind](fields)


class Seal(NamedTuple):
    """Whose routing topic it is, and how its records are proved."""

    log_id: str
    topic_ids: Sequence[bytes]  # of the clean topic; records are of the first one
    key: bytes

    def places(self, partition: int) -> list[Place]:
        """Return where records of a partition of the routing topic belong."""
        return [Place(self.log_id, topic_id, partition) for topic_id in self.topic_ids]

    def read(self, record: LogRecord, partition: int) -> Said:
        """Return what a record of a partition of the routing topic says; raises as read_record does."""
        return read_record(record, self.places(partition), self.key)

    def decisions_in(self, partition: int, records: Sequence[LogRecord]) -> list[Decision]:
        """Return what was decided beside a clean partition; raises as read_record does."""
        said = [self.read(record, partition + 1) for record in records]
        return [each for each in said if isinstance(each, Decision) and each.partition == partition]

    def record_of(self, decision: Decision, *, now_ms: int) -> NewRecord:
        """Return the record of a decision, beside its clean partition."""
        place = self.places(decision.partition + 1)[0]
        return decision_record(decision, place, self.key, now_ms=now_ms)


def _record(
    kind: str,
    fields: Mapping[str, object],
    place: Place,
    key: bytes,
    now_ms: int,
    *,
    version: int = GROWTH_VERSION,
) -> NewRecord:
    value = orjson.dumps({**fields, "kind": kind, "v": version}, option=orjson.OPT_SORT_KEYS)
    mac = _mac(key, place, kind.encode(), value)
    return NewRecord(now_ms, kind.encode(), value, [(HEADER_MAC, bytes([version]) + mac)])


def _of_decision(decision: Decision) -> dict[str, object]:
    if not decision.is_cut:
        return {"partition": decision.partition, "plan": decision.plan}
    return {**decision._asdict(), "last_key": decision.last_key.hex()}


def _read_decision(fields: Mapping[str, Any]) -> Decision:
    if "offset" not in fields:
        return Decision(fields["plan"], fields["partition"], None)
    known = {name: fields[name] for name in Decision._fields}
    return Decision(**{**known, "last_key": bytes.fromhex(fields["last_key"])})


def _read_plan(fields: Mapping[str, Any]) -> Plan:
    moves = tuple(Move(*each) for each in fields["moves"])
    before = tuple(_read_decision(each) for each in fields["before"])
    read_from_ms, marks = fields.get("read_from_ms", 0), _read_marks(fields.get("marks", ()))
    empty_until = tuple((partition, end) for partition, end in fields.get("empty_until", ()))
    return Plan(fields["number"], fields["partitions"], moves, before, read_from_ms, marks, empty_until)


def _read_marks(marks: Iterable[Sequence[int]]) -> tuple[Mark, ...]:
    return tuple(Mark(*each) for each in marks)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Said]] = {
    NOTE: lambda fields: Note(*(fields[name] for name in Note._fields)),
    PLAN: _read_plan,
    MARK: lambda fields: Marking(fields["plan"], _read_marks(fields["marks"]), fields["is_last"]),
    CUT: _read_decision,
    KEEP: _read_decision,
    CLOSE: lambda fields: Close(fields["plan"]),
}


class Notes:
    """What the notes of a routing topic say so far."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], dict[int, str]] = {}

    def add(self, note: Note) -> None:
        """Add the next note of the topic, in its order."""
        texts = self._texts.setdefault((note.name, note.topic), {})
        if not (note.once and note.partition in texts):
            texts[note.partition] = note.text

    def of(self, name: str, topic: str) -> dict[int, str]:
        """Return the notes of this name by partition."""
        return dict(self._texts.get((name, topic), {}))


def _mac(key: bytes, place: Place, kind: bytes, value: bytes) -> bytes:
    digest = hashlib.blake2b(key=key, person=_PURPOSE, digest_size=MAC_BYTES)
    for part in (place.log_id.encode(), place.topic_id, place.partition.to_bytes(4, "big"), kind, value):
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


def _mac_in(headers: Headers) -> bytes:
    return next((value or b"" for name, value in headers if name == HEADER_MAC), b"")


def _where(record: LogRecord) -> str:
    return f"the record at offset {record.offset} of the routing topic"
