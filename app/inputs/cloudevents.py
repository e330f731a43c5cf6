"""
Reads records of CloudEvents, by their Kafka protocol binding 1.0.2.

    structured    the header content-type names CloudEvents' format, and the value is the event
    binary        headers ce_* are the attributes, content-type is that of the data, and the value is the data

A record of neither is read as structured. What is no CloudEvent is kept whole, as at the HTTP door.
"""

from app.http.errors import RequestError
from app.http.fair_scheduler import YieldToOthers
from app.ingest.cloudevents import Attributes, parser_of
from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits
from app.ingest.payload import Payload
from app.inputs.values import REGISTRY_PREFIX
from dedupe.decide.rejection import RejectionCode
from dedupe.model.types import LogRecord

PREFIX = "ce_"
CONTENT_TYPE = "content-type"


def attributes_of(record: LogRecord) -> Attributes:
    """Return the attributes of a record in binary mode; one that is no UTF-8, or twice there, is damaged."""
    found = Attributes()
    for name, value in record.headers:
        if name.lower().startswith(PREFIX):
            attribute = name[len(PREFIX) :].lower()
            try:
                text = value.decode()
            except UnicodeDecodeError:
                text, found.is_damaged = value.decode(errors="surrogateescape"), True
            found.is_damaged |= attribute in found
            found[attribute] = text
    return found


def is_empty(record: LogRecord) -> bool:
    """Whether a record has neither a value nor attributes, which alone are an event without data."""
    return not record.value and not attributes_of(record)


async def payload_of(record: LogRecord, limits: JSONLimits, yield_to_others: YieldToOthers) -> Payload:
    """Return what a record holds."""
    types = [value for name, value in record.headers if name.lower() == CONTENT_TYPE]
    attributes = attributes_of(record)
    if not attributes and record.value.startswith(REGISTRY_PREFIX):
        return _whole(record, RejectionCode.SCHEMA_ENCODED)
    content_type = types[0].decode("latin-1") if types else ""
    try:
        return await parser_of(content_type, attributes)(record.value, limits, yield_to_others)
    except RequestError:
        return _whole(record, RejectionCode.UNREADABLE)


def _whole(record: LogRecord, reason: RejectionCode) -> Payload:
    return Payload([Fragment(0, record.value, reason)], None, {})
