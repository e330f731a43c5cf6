"""
What the value of an input's record is: the items of payloads, each with its id by the input's rule. Pure.

What cannot be an event becomes a Fragment with the reason, and is quarantined whole. What a record is follows
from its bytes and place alone, so a record that is read again is found to be the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from app.ingest.deep_json import dumps_any
from app.ingest.items import Fragment
from app.ingest.large_json import JSONLimits, is_cheap
from app.ingest.payload import Payload, is_wrapped
from app.inputs.input_file import FieldId, HeaderId, InputSpec
from dedupe.decide.rejection import RejectionCode
from dedupe.model.identity import message_id_of
from dedupe.model.json_document import read_document
from dedupe.model.types import LogRecord

MESSAGE_ID = "messageId"

REGISTRY_PREFIX = b"\0"
"""The first byte of a value that a schema registry's serializer has written: Avro, Protobuf or its JSON."""


class Topic(NamedTuple):
    """Which topic a record is of: names do not tell one that was made anew."""

    cluster_id: str
    topic_id: str


class Read(NamedTuple):
    """What records hold."""

    payload: Payload
    records: Sequence[LogRecord]
    """By item: the record that has it."""


class Values:
    """Reads the values of one input."""

    def __init__(self, spec: InputSpec, topic: Topic, limits: JSONLimits) -> None:
        """`limits`: of one value."""
        self._spec = spec
        self._topic = topic
        self._limits = limits

    def read(self, partition: int, records: Iterable[LogRecord]) -> Iterator[Read]:
        """Yield what records hold, in their order; those without a value hold nothing."""
        if self._spec.format == "batch":
            for record in records:
                if record.value:
                    payload = self._batch_of(partition, record)
                    yield Read(payload, [record] * len(payload.items))
            return
        items: list[object] = []
        owners: list[LogRecord] = []
        for record in records:
            if not record.value:
                continue
            if self._spec.format == "event":
                items.append(self._event_of(partition, record, record.value, None))
            else:
                lines = (line for line in record.value.split(b"\n") if line.strip())
                items += [
                    self._event_of(partition, record, line, number) for number, line in enumerate(lines)
                ]
            owners += [record] * (len(items) - len(owners))
        if items:
            yield Read(Payload(items, None, {}), owners)

    def _batch_of(self, partition: int, record: LogRecord) -> Payload:
        document = self._document_of(record.value)
        batch = document.get("batch") if isinstance(document, dict) else document
        if isinstance(document, Fragment):
            return Payload([document], None, {})
        if not isinstance(batch, list):
            return Payload([Fragment(0, record.value, RejectionCode.UNREADABLE)], None, {})
        if len(batch) > self._limits.events_max:
            return Payload([Fragment(0, record.value, RejectionCode.TOO_MANY_EVENTS)], None, {})
        items = [self._with_id(partition, record, item, number) for number, item in enumerate(batch)]
        return Payload(items, None, document if isinstance(document, dict) else {})

    def _event_of(self, partition: int, record: LogRecord, content: bytes, number: int | None) -> object:
        document = self._document_of(content)
        if isinstance(document, Fragment):
            return document
        if not isinstance(document, dict):
            return Fragment(0, content, RejectionCode.NOT_AN_OBJECT)
        if is_wrapped(document):
            return Fragment(0, content, RejectionCode.UNREADABLE)
        return self._with_id(partition, record, self._limits.judged(document, content), number, content)

    def _document_of(self, content: bytes) -> object:
        """Return the document of a value or a line, or a Fragment with the reason why there is none."""
        if content.startswith(REGISTRY_PREFIX):
            return Fragment(0, content, RejectionCode.SCHEMA_ENCODED)
        if not is_cheap(content):
            return Fragment(0, content, RejectionCode.EVENT_TOO_COMPLEX)
        try:
            return read_document(content)
        except ValueError:
            return Fragment(0, content, RejectionCode.UNREADABLE)

    def _with_id(
        self,
        partition: int,
        record: LogRecord,
        item: object,
        number: int | None,
        content: bytes | None = None,
    ) -> object:
        """Return an item with the id of the rule; where that is none, or not the event's own, a Fragment."""
        if not isinstance(item, dict):
            return item
        found, own = self._id_of(partition, record, item, number), message_id_of(item.get(MESSAGE_ID))
        if not found or own not in {None, found}:
            return Fragment(0, content or dumps_any(item), RejectionCode.MESSAGE_ID_INVALID)
        item[MESSAGE_ID] = found
        return item

    def _id_of(
        self, partition: int, record: LogRecord, item: dict[str, Any], number: int | None
    ) -> str | None:
        """Return the id by the rule, None without one, "" for what is no id."""
        rule = self._spec.id
        if isinstance(rule, FieldId):
            return message_id_of(item.get(rule.field))
        if rule == "place":
            place = f"{self._topic.cluster_id}:{self._topic.topic_id}:{partition}:{record.offset}"
            return place if number is None else f"{place}:{number}"
        given = [record.key] if rule == "key" else []
        if isinstance(rule, HeaderId):
            given = [value for name, value in record.headers if name == rule.header]
        try:
            return message_id_of(given[0].decode()) if len(given) == 1 else None
        except UnicodeDecodeError:
            return ""
