"""
Records that no gateway wrote, each broken in one way: the core refuses them, and the audit names them.

`ODD` are records that break no rule of the record format, and yet are none of a gateway's: the core has
no use for their value, and takes any lane_seq; a reader of the topic is misled all the same.
"""

from collections.abc import Callable
from typing import Any

import orjson

from dedupe.model.cloudevent import cloudevent_id
from dedupe.model.record import FLAG_CHECKSUM, FLAG_CLOUDEVENT, FLAG_SESSION, build_record
from dedupe.model.types import Event, NewRecord, Progress, Session
from tests.support.records import START_MS, RecordMaker

NULL: Any = None  # what a key, a value or a header of Kafka may be
SESSION = Session(b"c" * 16, b"s" * 16, 3, 2, 1)
PROGRESSED = SESSION._replace(before=Progress(1, 2))


def _event(message_id: str, session: Session | None = None) -> Event:
    return RecordMaker(partitions=1).event(message_id, session=session)


def without_checksum(record: NewRecord) -> NewRecord:
    """Return a record as gateways before the checksum wrote it."""
    headers = [
        (name, gw[:1] + bytes([gw[1] & ~FLAG_CHECKSUM]) + gw[2:-4] if name == "gw" else gw)
        for name, gw in record.headers
    ]
    return record._replace(headers=headers)


def _checked(session: Session | None = None, lane_seq: int = 0) -> NewRecord:
    return build_record(_event("id-1", session), lane_seq=lane_seq, timestamp_ms=START_MS)


def cloudevent_record(source: str, event_id: str, *, lane_seq: int = 0, of: str | None = None) -> NewRecord:
    """Return the record of a CloudEvent; `of`: the id in its value, if that is another one."""
    value = {"specversion": "1.0", "type": "t", "source": source, "id": event_id if of is None else of}
    event = _event(cloudevent_id(source, event_id))
    event = event._replace(value=orjson.dumps(value), flags=FLAG_CLOUDEVENT)
    return build_record(event, lane_seq=lane_seq, timestamp_ms=START_MS)


def _record(session: Session | None = None, lane_seq: int = 0) -> NewRecord:
    return without_checksum(_checked(session, lane_seq))


def _gw(change: Callable[[bytes], bytes], session: Session | None = None) -> NewRecord:
    record = _record(session)
    headers = [(name, change(value) if name == "gw" else value) for name, value in record.headers]
    return record._replace(headers=headers)


def _gs(change: Callable[[bytes], bytes]) -> NewRecord:
    record = _record(PROGRESSED)
    headers = [(name, change(value) if name == "gs" else value) for name, value in record.headers]
    return record._replace(headers=headers)


SOURCE, GW = _record().headers

FOREIGN: dict[str, NewRecord] = {
    "no headers": _record()._replace(headers=[]),
    "no gw": _record()._replace(headers=[SOURCE]),
    "no source": _record()._replace(headers=[GW]),
    "source is not UTF-8": _record()._replace(headers=[("source", b"\xff"), GW]),
    "source is null": _record()._replace(headers=[("source", NULL), GW]),
    "gw is null": _record()._replace(headers=[SOURCE, ("gw", NULL)]),
    "a second gw": _record()._replace(headers=[SOURCE, GW, GW]),
    "a second gw at the first place": _record()._replace(headers=[GW, SOURCE, GW]),
    "a second source": _record()._replace(headers=[SOURCE, GW, ("source", b"other")]),
    "key is not UTF-8": _record()._replace(key=b"\xff"),
    "key is null": _record()._replace(key=NULL),
    "gw is empty": _gw(lambda _: b""),
    "gw is cut by one byte": _gw(lambda gw: gw[:33]),
    "version 0": _gw(lambda gw: b"\x00" + gw[1:]),
    "version 2": _gw(lambda gw: b"\x02" + gw[1:]),
    "session is missing": _gw(lambda gw: gw[:1] + bytes([FLAG_SESSION]) + gw[2:]),
    "what was stored of its session is cut": _gs(lambda gs: gs[:7]),
    "what was stored of its session is empty": _gs(lambda _: b""),
    "session is cut by one byte": _gw(lambda gw: gw[:89], SESSION),
}

ODD: dict[str, NewRecord] = {
    "lane_seq of 2**63": _record(lane_seq=2**63),
    "lane_seq of 2**64 - 1": _record(lane_seq=2**64 - 1),
    "value is null": _record()._replace(value=NULL),
    "value is empty": _record()._replace(value=b""),
    "value is no JSON": _record()._replace(value=b"nonsense"),
    "value is cut off": _record()._replace(value=_record().value[:-1]),
    "value is followed by more": _record()._replace(value=_record().value + b" more"),
    "value closes a bracket and goes on": _record()._replace(value=_record().value + b"] more"),
    "value closes a bracket for another event": _record()._replace(
        value=_record().value + b',{"messageId":""}]'
    ),
    "value is two documents": _record()._replace(value=_record().value * 2),
    "value is not UTF-8": _record()._replace(value=b'{"messageId":"id-1","x":"\xff"}'),
    "value is another event's": _record()._replace(value=_event("id-2").value),
    "value is a list": _record()._replace(value=b"[" + _record().value + b"]"),
    "value names two events": _record()._replace(value=b'{"messageId":"id-1","messageId":"id-2"}'),
    "value names no event": _record()._replace(value=b"{}"),
    "value is another CloudEvent's": cloudevent_record("/a", "1", of="2"),
    "value is another CloudEvent's of a long id": cloudevent_record("/a", "é" * 127, of="é" * 128),
    "value names a CloudEvent as a usual event": without_checksum(cloudevent_record("/a", "1"))._replace(
        value=b'{"messageId":"/a 1"}'
    ),
}

CHANGED: dict[str, NewRecord] = {
    "value": _checked()._replace(value=_checked().value.replace(b"Tested", b"Taster")),
    "value is cut off": _checked()._replace(value=_checked().value[:-1]),
    "value is null": _checked()._replace(value=NULL),
    "key": _checked()._replace(key=b"id-2"),
    "source": _checked()._replace(headers=[("source", b"wed"), _checked().headers[1]]),
    "lane_seq": _checked()._replace(
        headers=[SOURCE, ("gw", _checked(lane_seq=1).headers[1][1][:-4] + _checked().headers[1][1][-4:])]
    ),
    "checksum is cut off": _checked()._replace(headers=[SOURCE, ("gw", _checked().headers[1][1][:-4])]),
}
"""Records whose content is another one than was written."""

GENUINE: dict[str, NewRecord] = {
    "message": _record(),
    "message with checksum": _checked(),
    "session with checksum": _checked(PROGRESSED),
    "CloudEvent": cloudevent_record("/a", "1"),
    "CloudEvent of the longest id": cloudevent_record("/a", "é" * 126),
    "CloudEvent of a longer id": cloudevent_record("/a", "é" * 127),
    "CloudEvent whose source has a blank": cloudevent_record("a b", "c"),
    "session": _record(SESSION),
    "session with what was stored before": _record(PROGRESSED),
    "session with more": _gw(lambda gw: gw + b"\x00", PROGRESSED),
    "sequence of 2**64 - 1": _record(SESSION._replace(sequence=2**64 - 1)),
    "headers the other way round": _record()._replace(headers=[GW, SOURCE]),
    "a header of somebody's": _record()._replace(headers=[SOURCE, GW, ("traceparent", b"00-1")]),
    "gw longer than needed": _gw(lambda gw: gw + b"\x00" * 60),
}
