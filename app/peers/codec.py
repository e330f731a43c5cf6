"""
Encoding of submissions and outcomes in columns: one msgpack array for each field of all events; keys and
fingerprints are one byte string.

All submissions of a turn of the event loop to one worker are one frame, and so are its answers, since a frame
costs more than an event. A field that no event uses is one byte; the types of a column are checked at once.
Headers are a column only if any event has some; earlier versions ignore it.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, cast

from app.peers.errors import refuse
from app.peers.frames import packed, unpacked
from dedupe.decide.admission import Admission
from dedupe.model.clock import Clock, Deadline
from dedupe.model.types import (
    Event,
    Headers,
    Order,
    Progress,
    Session,
    event_of,
    have_headers,
    with_headers,
)
from dedupe.submission import Outcomes, Submission

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
    Admission.TOO_LARGE,
    Admission.REFUSED,
)
"""By encoded number: never changed; only a new version adds members."""

ORDERS = (Order.ANY, Order.STRICT, Order.REPLAYED)
"""As ADMISSIONS."""

_ADMISSION_NUMBERS = {admission.value: number for number, admission in enumerate(ADMISSIONS)}
_ORDER_NUMBERS = {order: number for number, order in enumerate(ORDERS)}

_U64_MAX = 2**64 - 1
_LANE_MAX = 2**31 - 1
_HASH_BYTES, _KEY_BYTES, _FINGERPRINT_BYTES = 16, 16, 8
_ABOVE_BYTES = 64
_FLAGS_MAX = 255
_FIELDS = 12
_HEAD_FIELDS = 6
_NAME = struct.Struct(f"{_KEY_BYTES}s{_FINGERPRINT_BYTES}s")
_NOTHING_EARLIER: tuple[bytes, ...] = ()


class Forwarded(NamedTuple):
    """A submission to a lane of another worker."""

    number: int  # relates the answer to it
    lane: int
    submission: Submission


def submissions_body(forwarded: Sequence[Forwarded]) -> bytes:
    """Encode n >= 1 submissions, with what remains of their deadlines."""
    heads: list[int] = []
    events: list[Event] = []
    for number, lane, (own, received_ms, deadline, size_bytes) in forwarded:
        heads += (number, lane, received_ms, int(deadline.remaining_s * 1000), size_bytes, len(own))
        events += own
    (
        keys,
        partitions,
        prints,
        sources,
        ids,
        values,
        flags,
        sessions,
        reasons,
        earlier,
        secondary_keys,
        orders,
    ) = zip(*events, strict=True)
    count = len(events)
    names = b"".join(chain.from_iterable(zip(keys, prints, strict=True)))
    assert len(names) == count * _NAME.size
    headers = [[event.headers for event in events]] if have_headers(events) else []
    return packed(
        (
            heads,
            names,
            partitions[0] if partitions.count(partitions[0]) == count else partitions,
            sources[0] if sources.count(sources[0]) == count else sources,
            ids,
            values,
            flags[0] if flags.count(flags[0]) == count else flags,
            None if sessions.count(None) == count else [_session_fields(session) for session in sessions],
            None if reasons.count(None) == count else reasons,
            None if not any(earlier) else earlier,
            None if secondary_keys.count(None) == count else secondary_keys,
            None if orders.count(Order.ANY) == count else [_ORDER_NUMBERS[order] for order in orders],
            *headers,
        )
    )


def submissions_of(body: memoryview, clock: Clock, *, events_max: int) -> list[Forwarded]:
    """
    Decode what `submissions_body` has encoded.

    Args:
        body: the received body.
        clock: of the deadlines, which begin now.
        events_max: accepted number of events of all submissions.

    Raises:
        FrameRefusedError: malformed.
    """
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < _FIELDS:
        refuse("malformed")
    heads, names, partitions, sources, ids, values, flags, *rare = fields[:_FIELDS]
    sessions, reasons, earlier, secondary_keys, orders = rare
    if type(names) is not bytes or type(values) is not list or not values:
        refuse("malformed")
    count = len(values)
    if count > events_max or len(names) != count * _NAME.size or set(map(type, values)) != {bytes}:
        refuse("malformed")
    keys, prints = zip(*_NAME.iter_unpack(names), strict=True)
    columns = (
        keys,
        _numbers(partitions, _LANE_MAX, count),
        prints,
        _texts(sources, count),
        _texts(ids, count),
        values,
        _numbers(flags, _FLAGS_MAX, count),
        _each(sessions, None, _session_of, count),
        _each(reasons, None, _text_or_none, count),
        _each(earlier, _NOTHING_EARLIER, _prints_of, count),
        _each(secondary_keys, None, _key_or_none, count),
        _each(orders, Order.ANY, _order_of, count),
    )
    events = list(map(event_of, zip(*columns, strict=True)))
    if len(fields) > _FIELDS and fields[_FIELDS] is not None:
        each = _column(fields[_FIELDS], count)
        events = [
            with_headers(event, _headers_of(own)) if own else event
            for event, own in zip(events, each, strict=True)
        ]
    return _split(heads, events, list(map(len, values)), clock)


def _split(heads: Any, events: Sequence[Event], sizes: Sequence[int], clock: Clock) -> list[Forwarded]:
    """Split the events by submission; `sizes` are those of their values."""
    if type(heads) is not list or not heads or len(heads) % _HEAD_FIELDS:
        refuse("malformed")
    _check_range(heads, _U64_MAX)
    if max(heads[1::_HEAD_FIELDS]) > _LANE_MAX or sum(heads[5::_HEAD_FIELDS]) != len(events):
        refuse("malformed")
    forwarded, end = [], 0
    for place in range(0, len(heads), _HEAD_FIELDS):
        number, lane, received_ms, remaining_ms, size_bytes, count = heads[place : place + _HEAD_FIELDS]
        begin, end = end, end + count
        own = events[begin:end]
        if not own or sum(sizes[begin:end]) > size_bytes:
            refuse("malformed")
        deadline = Deadline(clock, remaining_ms / 1000)
        forwarded.append(Forwarded(number, lane, Submission(own, received_ms, deadline, size_bytes)))
    return forwarded


def outcomes_body(decided: Sequence[tuple[int, Outcomes]]) -> bytes:
    """Encode the outcomes of n >= 1 submissions, by number: a byte for each admission, and the offsets."""
    numbers = _ADMISSION_NUMBERS
    return packed(
        (
            [number for number, _ in decided],
            bytes([numbers[admission._value_] for _, own in decided for admission in own.admissions]),
            [offset for _, own in decided for offset in own.offsets],
        )
    )


def outcomes_of(body: memoryview, count_of: Callable[[int], int]) -> list[tuple[int, Outcomes]]:
    """
    Decode what `outcomes_body` has encoded.

    Args:
        body: the received body.
        count_of: returns the number of events of a submission; may raise FrameRefusedError.

    Raises:
        FrameRefusedError: malformed, or not the outcomes of these submissions.
    """
    fields = unpacked(body)
    if type(fields) is not list or len(fields) < 3:
        refuse("malformed")
    numbers, admissions, offsets = fields[:3]
    if type(numbers) is not list or type(admissions) is not bytes or type(offsets) is not list:
        refuse("malformed")
    if set(map(type, numbers)) != {int} or len(set(numbers)) != len(numbers):
        refuse("malformed")
    counts = list(map(count_of, numbers))
    if not len(admissions) == len(offsets) == sum(counts) or max(admissions) >= len(ADMISSIONS):
        refuse("malformed")
    if set(map(type, offsets)) != {int}:
        refuse("malformed")
    kinds, decided, end = list(map(ADMISSIONS.__getitem__, admissions)), [], 0
    for number, count in zip(numbers, counts, strict=True):
        begin, end = end, end + count
        decided.append((number, Outcomes(kinds[begin:end], offsets[begin:end])))
    return decided


def _numbers(column: Any, largest: int, count: int) -> Iterable[int]:
    """Decode a column of numbers; a single number is that of all events."""
    if type(column) is int and 0 <= column <= largest:
        return repeat(column, count)
    _check_range(_column(column, count), largest)
    return cast(list[int], column)


def _texts(column: Any, count: int) -> Iterable[str]:
    """Decode a column of strings; a single string is that of all events."""
    if type(column) is str:
        return repeat(column, count)
    if set(map(type, _column(column, count))) != {str}:
        refuse("malformed")
    return cast(list[str], column)


def _each(column: Any, default: Any, decode: Callable[[Any], Any], count: int) -> Iterable[Any]:
    """Decode a column of a field that few events use; None is the default of all events."""
    return repeat(default, count) if column is None else map(decode, _column(column, count))


def _column(column: Any, count: int | None = None) -> list[Any]:
    if type(column) is not list or (count is not None and len(column) != count):
        refuse("malformed")
    return column


def _check_bytes(column: Iterable[Any], size: int) -> None:
    if not set(map(type, column)) <= {bytes} or not set(map(len, column)) <= {size}:
        refuse("malformed")


def _text_or_none(field: Any) -> str | None:
    if field is not None and type(field) is not str:
        refuse("malformed")
    return field


def _key_or_none(field: Any) -> bytes | None:
    if field is not None:
        _check_bytes((field,), _KEY_BYTES)
    return cast(bytes | None, field)


def _check_range(column: Sequence[Any], largest: int) -> None:
    if set(map(type, column)) != {int} or min(column) < 0 or max(column) > largest:
        refuse("malformed")


def _prints_of(fields: Any) -> tuple[bytes, ...]:
    _check_bytes(_column(fields), _FINGERPRINT_BYTES)
    return tuple(fields)


def _order_of(number: Any) -> Order:
    _check_range((number,), len(ORDERS) - 1)
    return ORDERS[number]


def _headers_of(fields: Any) -> Headers:
    headers = [tuple(_column(each, 2)) for each in _column(fields)]
    if not {tuple(map(type, each)) for each in headers} <= {(str, bytes)}:
        refuse("malformed")
    return cast(Headers, headers)


def _session_fields(session: Session | None) -> Any:
    """Encode a session; its `before.above` has more bits than an integer of msgpack."""
    if session is None or session.before is None:
        return session
    watermark, above = session.before
    return (*session[:5], (watermark, above.to_bytes(_ABOVE_BYTES, "big")))


def _session_of(fields: Any) -> Session | None:
    if fields is None:
        return None
    if type(fields) is not list or len(fields) < len(Session._fields):
        refuse("malformed")
    client_hash, session_hash, sequence, epoch, acknowledged_through, before, *_ = fields
    _check_bytes((client_hash, session_hash), _HASH_BYTES)
    _check_range((sequence, epoch, acknowledged_through), _U64_MAX)
    if before is not None:
        before = _progress_of(before)
    return Session(client_hash, session_hash, sequence, epoch, acknowledged_through, before)


def _progress_of(fields: Any) -> Progress:
    if type(fields) is not list or len(fields) < len(Progress._fields):
        refuse("malformed")
    watermark, above, *_ = fields
    _check_range((watermark,), _U64_MAX)
    _check_bytes((above,), _ABOVE_BYTES)
    return Progress(watermark, int.from_bytes(above, "big"))
