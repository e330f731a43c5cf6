"""
Events and outcomes as they travel: by columns, one msgpack array for each field of all events.

So a field that no event of a submission uses takes a byte, and the types of a column are checked in one go.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from app.peers.errors import refuse
from app.peers.frames import packed, unpacked
from dedupe.admission import Admission
from dedupe.lane import Outcomes
from dedupe.types import Event, Order, Progress, Session

ADMISSIONS = (
    Admission.NEW,
    Admission.REPEAT,
    Admission.DUPLICATE,
    Admission.CONFLICT,
    Admission.STALE,
    Admission.GAP,
    Admission.TOO_FAR,
    Admission.FENCED,
    Admission.EXPIRED,
)
"""By the number that travels: never changed, only added to, in a new version."""

ORDERS = (Order.ANY, Order.STRICT, Order.REPLAYED)
"""As ADMISSIONS."""

_ADMISSION_NUMBERS = {admission.value: number for number, admission in enumerate(ADMISSIONS)}
_ORDER_NUMBERS = {order: number for number, order in enumerate(ORDERS)}

_U64_MAX = 2**64 - 1
_LANE_MAX = 2**31 - 1
_HASH_BYTES, _KEY_BYTES, _FINGERPRINT_BYTES = 16, 16, 8
_ABOVE_BYTES = 64
_HEAD_FIELDS, _EVENT_FIELDS = 4, len(Event._fields)
_NOTHING_EARLIER: tuple[bytes, ...] = ()


class Submitted(NamedTuple):
    """A submission as its owner gets it."""

    lane: int
    received_ms: int
    remaining_ms: int
    size_bytes: int
    events: list[Event]


def submission_body(
    lane: int, events: Sequence[Event], *, size_bytes: int, received_ms: int, remaining_ms: int
) -> bytes:
    """Return the body of a submission of n >= 1 events; `remaining_ms` of its deadline are left."""
    keys, partitions, prints, sources, ids, values, flags, sessions, reasons, earlier, guards, orders = zip(
        *events, strict=True
    )
    count = len(events)
    return packed(
        (
            lane,
            received_ms,
            remaining_ms,
            size_bytes,
            keys,
            partitions[0] if partitions.count(partitions[0]) == count else partitions,
            prints,
            sources[0] if sources.count(sources[0]) == count else sources,
            ids,
            values,
            flags[0] if flags.count(flags[0]) == count else flags,
            None if sessions.count(None) == count else [_session_fields(session) for session in sessions],
            None if reasons.count(None) == count else reasons,
            None if not any(earlier) else earlier,
            None if guards.count(None) == count else guards,
            None if orders.count(Order.ANY) == count else [_ORDER_NUMBERS[order] for order in orders],
        )
    )


def submission_of(body: memoryview, *, events_max: int) -> Submitted:
    """Return what `submission_body` was given. Raises FrameRefusedError."""
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < _HEAD_FIELDS + _EVENT_FIELDS:
        refuse("malformed")
    lane, received_ms, remaining_ms, size_bytes = fields[:_HEAD_FIELDS]
    columns = fields[_HEAD_FIELDS : _HEAD_FIELDS + _EVENT_FIELDS]
    _check_range((lane,), _LANE_MAX)
    _check_range((received_ms, remaining_ms, size_bytes), _U64_MAX)
    keys = columns[0]
    if type(keys) is not list or not 1 <= len(keys) <= events_max:
        refuse("malformed")
    _fill_columns(columns, len(keys))
    _check_columns(columns, len(keys), size_bytes)
    return Submitted(
        lane, received_ms, remaining_ms, size_bytes, list(map(Event._make, zip(*columns, strict=True)))
    )


def outcomes_body(outcomes: Outcomes) -> bytes:
    """Return the body of an answer to a submission: a byte for each admission, and the offsets."""
    numbers = _ADMISSION_NUMBERS
    return packed(
        (bytes([numbers[admission._value_] for admission in outcomes.admissions]), outcomes.offsets)
    )


def outcomes_of(body: memoryview, count: int) -> Outcomes:
    """Return the outcomes of `count` events. Raises FrameRefusedError."""
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < 2:
        refuse("malformed")
    admissions, offsets = fields[:2]
    if type(admissions) is not bytes or type(offsets) is not list:
        refuse("malformed")
    if not len(admissions) == len(offsets) == count or max(admissions) >= len(ADMISSIONS):
        refuse("malformed")
    if set(map(type, offsets)) != {int}:
        refuse("malformed")
    return Outcomes(list(map(ADMISSIONS.__getitem__, admissions)), offsets)


def _fill_columns(columns: list[Any], count: int) -> None:
    """Write out the columns that were said in short."""
    _, partitions, _, sources, _, _, flags, sessions, reasons, earlier, guards, orders = columns
    if type(partitions) is int:
        columns[1] = [partitions] * count
    if type(sources) is str:
        columns[3] = [sources] * count
    if type(flags) is int:
        columns[6] = [flags] * count
    columns[7] = [None] * count if sessions is None else list(map(_session_of, _column(sessions)))
    columns[8] = [None] * count if reasons is None else reasons
    columns[9] = [_NOTHING_EARLIER] * count if earlier is None else list(map(_prints_of, _column(earlier)))
    columns[10] = [None] * count if guards is None else guards
    columns[11] = [Order.ANY] * count if orders is None else list(map(_order_of, _column(orders)))


def _check_columns(columns: list[Any], count: int, size_bytes: int) -> None:
    """Refuse what the core would stumble over."""
    for column in columns:
        if type(column) is not list or len(column) != count:
            refuse("malformed")
    keys, partitions, prints, sources, ids, values, flags, _, reasons, _, guards, _ = columns
    _check_bytes(keys, _KEY_BYTES)
    _check_bytes(prints, _FINGERPRINT_BYTES)
    _check_range(partitions, _LANE_MAX)
    _check_range(flags, 255)
    if set(map(type, sources)) != {str} or set(map(type, ids)) != {str} or set(map(type, values)) != {bytes}:
        refuse("malformed")
    if not set(map(type, reasons)) <= {str, type(None)}:
        refuse("malformed")
    _check_bytes([guard for guard in guards if guard is not None], _KEY_BYTES)
    if sum(map(len, values)) > size_bytes:
        refuse("malformed")


def _column(column: Any) -> list[Any]:
    if type(column) is not list:
        refuse("malformed")
    return column


def _check_bytes(column: Iterable[Any], size: int) -> None:
    if not set(map(type, column)) <= {bytes} or not set(map(len, column)) <= {size}:
        refuse("malformed")


def _check_range(column: Sequence[Any], largest: int) -> None:
    if set(map(type, column)) != {int} or min(column) < 0 or max(column) > largest:
        refuse("malformed")


def _prints_of(fields: Any) -> tuple[bytes, ...]:
    _check_bytes(_column(fields), _FINGERPRINT_BYTES)
    return tuple(fields)


def _order_of(number: Any) -> Order:
    _check_range((number,), len(ORDERS) - 1)
    return ORDERS[number]


def _session_fields(session: Session | None) -> Any:
    """Return a session as msgpack says it: its `before.above` has more bits than a number may have."""
    if session is None or session.before is None:
        return session
    watermark, above = session.before
    return (*session[:5], (watermark, above.to_bytes(_ABOVE_BYTES, "big")))


def _session_of(fields: Any) -> Session | None:
    if fields is None:
        return None
    if type(fields) is not list or len(fields) != len(Session._fields):
        refuse("malformed")
    client_hash, session_hash, sequence, epoch, acknowledged_through, before = fields
    _check_bytes((client_hash, session_hash), _HASH_BYTES)
    _check_range((sequence, epoch, acknowledged_through), _U64_MAX)
    if before is not None:
        before = _progress_of(before)
    return Session(client_hash, session_hash, sequence, epoch, acknowledged_through, before)


def _progress_of(fields: Any) -> Progress:
    if type(fields) is not list or len(fields) != len(Progress._fields):
        refuse("malformed")
    watermark, above = fields
    _check_range((watermark,), _U64_MAX)
    _check_bytes((above,), _ABOVE_BYTES)
    return Progress(watermark, int.from_bytes(above, "big"))
