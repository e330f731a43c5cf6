"""
Reads quarantined events and their reasons, for `gateway quarantine` and for replays.

It needs no fence, lock or index.
"""

import hashlib
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson
import structlog

from dedupe.model.errors import LogCorruptError
from dedupe.model.quarantine import content_of
from dedupe.model.record import FLAG_CLOUDEVENT, HEADER_REASON, parse_identity
from dedupe.model.types import EventKey, Fingerprint, LogRecord, Offset
from dedupe.storage.log import LogStore, PartitionLog

logger = structlog.get_logger(__name__)


class Place(NamedTuple):
    """The partition and offset of a record."""

    partition: int
    offset: Offset

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Parse `PARTITION:OFFSET`. Raises ValueError."""
        if not (match := re.fullmatch(r"(\d{1,9}):(\d{1,18})", text, re.ASCII)):
            raise ValueError(f"{text!r} is not a place such as 0:17 (partition and offset)")
        return cls(int(match[1]), int(match[2]))


class Wanted(NamedTuple):
    """The records to read: those that match every given field."""

    places: frozenset[Place] = frozenset()
    reason: str | None = None
    source: str | None = None
    since_ms: int = 0

    def includes(self, kept: "Kept") -> bool:
        """Whether a record matches; its place is not checked."""
        return (
            kept.timestamp_ms >= self.since_ms
            and self.reason in (None, kept.reason)
            and self.source in (None, kept.source)
        )


class Kept(NamedTuple):
    """One record of the quarantine stream."""

    place: Place
    timestamp_ms: int
    reason: str
    source: str
    message_id: str | None  # None without a valid one
    key: EventKey
    head: Mapping[str, Any]
    """What the value says of the event, see dedupe.model.quarantine."""
    content: bytes
    """The event's bytes or a piece of them; of records of earlier versions perhaps a JSON string of the first
    ones, see `is_truncated`."""
    is_cloudevent: bool = False
    """Whether the event came as a CloudEvent, and is one or was to be one."""

    @property
    def is_truncated(self) -> bool:
        """Whether only the first bytes of the event were stored."""
        return bool(self.head.get("truncated"))

    @property
    def is_json(self) -> bool:
        """Whether the whole is a JSON document."""
        return bool(self.head.get("json", True))

    @property
    def length(self) -> int:
        """The bytes of the whole."""
        return int(self.head["length"])

    @property
    def sha256(self) -> str:
        """The hash of the whole in hex."""
        return str(self.head["sha256"])

    @property
    def piece(self) -> int:
        """The number of this piece, from 0 on."""
        return int(self.head.get("piece", 0))

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return int(self.head.get("pieces", 1))

    @property
    def original(self) -> Place | None:
        """The place of the event that a conflicting one conflicts with, in the clean topic."""
        place = self.head.get("original")
        return None if place is None else Place(*place)

    @property
    def key_sha256(self) -> str | None:
        """The hash of the event's own write key in hex, if that was not valid."""
        digest: str | None = self.head.get("key_sha256")
        return digest

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprint of the event as sent, if it is known and differs from that of the content."""
        digits: str | None = self.head.get("fingerprint")
        return [] if digits is None else [bytes.fromhex(digits)]

    @property
    def whole_id(self) -> tuple[str, str | None, str, str | None, int]:
        """What the pieces of one event have in common, and no other record."""
        return self.source, self.message_id, self.sha256, self.key_sha256, self.pieces

    def described(self) -> dict[str, Any]:
        """Return the record without its content, as a document."""
        return {
            "partition": self.place.partition,
            "offset": self.place.offset,
            "timestamp": self.timestamp_ms,
            "reason": self.reason,
            "source": self.source,
            "messageId": self.message_id,
            "truncated": self.is_truncated,
            "length": self.length,
            "position": self.head.get("position"),
            "keySha256": self.key_sha256,
            "piece": self.piece,
            "pieces": self.pieces,
        }


def shown(kept: Kept, content: bytes) -> dict[str, Any]:
    """Return the content of a record or of its whole as a field: `event`, `head`, or `bytes` as text."""
    if kept.is_truncated:
        return {"head": orjson.Fragment(content)}
    if len(content) == kept.length and (kept.is_json or _is_document(content)):
        return {"event": orjson.Fragment(content)}
    return {"bytes": content.decode(errors="backslashreplace")}


def _is_document(content: bytes) -> bool:
    try:
        orjson.loads(content)
    except ValueError:
        return False
    return True


class Whole:
    """Puts the pieces of one event together, in any order."""

    def __init__(self, kept: Kept) -> None:
        """Begin with one record."""
        self.kept = kept
        self._contents: dict[int, bytes] = {}
        self.add(kept)

    def add(self, kept: Kept) -> None:
        """Add a piece; a known one changes nothing. The one with the lowest number stands for the whole."""
        if kept.whole_id != self.kept.whole_id:
            raise ValueError(f"{kept.place} is no piece of {self.kept.place}")
        self._contents.setdefault(kept.piece, kept.content)
        self.kept = min(self.kept, kept, key=lambda each: each.piece)

    @property
    def missing(self) -> list[int]:
        """The numbers of pieces that were not added."""
        return [number for number in range(self.kept.pieces) if number not in self._contents]

    @property
    def problem(self) -> str | None:
        """One sentence on why there is no whole content; None if there is."""
        if self.kept.is_truncated:
            return "only its first bytes are stored"
        if missing := self.missing:
            return told_missing(self.kept.pieces, missing)
        if self.kept.pieces > 1 and hashlib.sha256(self.content).hexdigest() != self.kept.sha256:
            return "its pieces do not give the event whose hash they name"
        return None

    @property
    def content(self) -> bytes:
        """The pieces that are there, in order."""
        return b"".join(self._contents[number] for number in sorted(self._contents))


class TextSearch:
    """Finds the records with a text, as UTF-8 or escaped in JSON, also where a piece ends within it."""

    def __init__(self, text: str) -> None:
        """Search for a text; "" is in every record."""
        self._needles = {text.encode(), json.dumps(text)[1:-1].encode()}
        self._edge_bytes = max(map(len, self._needles)) - 1
        self._pieces: dict[tuple[object, ...], dict[int, Kept]] = {}
        self._hits: set[tuple[object, ...]] = set()

    def take(self, kept: Kept) -> list[Kept]:
        """Search a record; return it if it is found. Pieces are searched in `rest`."""
        is_found = self._is_in(kept.content)
        if kept.pieces == 1 or self._edge_bytes < 0:
            return [kept] if is_found else []
        if is_found:
            self._hits.add(kept.whole_id)
        edges = kept.content
        if len(edges) > 2 * self._edge_bytes:
            edges = edges[: self._edge_bytes] + edges[len(edges) - self._edge_bytes :]
        self._pieces.setdefault(kept.whole_id, {})[kept.piece] = kept._replace(content=edges)
        return []

    def rest(self) -> list[Kept]:
        """Return all pieces of events that have the text in any piece, or across two."""
        return [
            pieces[number]
            for whole_id, pieces in self._pieces.items()
            if whole_id in self._hits or self._is_across(pieces)
            for number in sorted(pieces)
        ]

    def _is_across(self, pieces: Mapping[int, Kept]) -> bool:
        return any(
            self._is_in(self._end(pieces[number - 1].content) + pieces[number].content[: self._edge_bytes])
            for number in pieces
            if number - 1 in pieces
        )

    def _end(self, content: bytes) -> bytes:
        return content[max(0, len(content) - self._edge_bytes) :]

    def _is_in(self, content: bytes) -> bool:
        return any(needle in content for needle in self._needles)


def told_missing(pieces: int, missing: Sequence[int]) -> str:
    """Return one sentence on missing pieces."""
    named = ", ".join(str(number) for number in missing[:10])
    more = " and more" if missing[10:] else ""
    return f"of its {pieces} pieces (from 0 on) these are missing: {named}{more}"


async def read_quarantine(store: LogStore, topic: str, wanted: Wanted) -> AsyncGenerator[Kept, None]:
    """
    Yield the matching records up to the current end, in order within a partition.

    Records that no gateway wrote are skipped, with a warning.

    Args:
        store: the log; a topic that does not exist is read as an empty one.
        topic: the quarantine topic.
        wanted: the records; if places are given, only those are read.

    Raises:
        RetriableError: the log cannot be read.
    """
    for partition in range(await store.partitions_of(topic)):
        partition_log = store.partition_log(topic, partition)
        for start, end in await _ranges(partition_log, partition, wanted.places):
            async with aclosing(partition_log.read(start, end)) as batches:
                async for records in batches:
                    for record in records:
                        kept = parse_kept(record, partition)
                        if kept is not None and wanted.includes(kept):
                            yield kept


async def read_whole(store: LogStore, topic: str, place: Place) -> Whole | None:
    """
    Return the record at a place with the other pieces of its event; None without a record.

    It reads the whole topic if there are pieces. Raises as `read_quarantine`.
    """
    whole: Whole | None = None
    async with aclosing(read_quarantine(store, topic, Wanted(frozenset({place})))) as records:
        async for kept in records:
            whole = Whole(kept)
    if whole is None or not whole.missing:
        return whole
    async with aclosing(read_quarantine(store, topic, Wanted(source=whole.kept.source))) as records:
        async for kept in records:
            if kept.whole_id == whole.kept.whole_id:
                whole.add(kept)
            if not whole.missing:
                break
    return whole


async def _ranges(log: PartitionLog, partition: int, places: frozenset[Place]) -> list[tuple[Offset, Offset]]:
    offsets = sorted(place.offset for place in places if place.partition == partition)
    if places and not offsets:
        return []
    start, end = await log.bounds()
    if not places:
        return [(start, end)]
    return [(offset, offset + 1) for offset in offsets if start <= offset < end]


def parse_kept(record: LogRecord, partition: int) -> Kept | None:
    """
    Decode a record without parsing its event, which may be nested too deeply for the parser.

    Returns None, with a warning, if no gateway quarantined it.
    """
    try:
        identity = parse_identity(record)
        head, content = content_of(record.value)
    except (LogCorruptError, ValueError) as err:
        reason = str(err)
        if isinstance(err, ValueError):
            reason = f"record at offset {record.offset} was not quarantined by a gateway: {err}"
        logger.warning("record skipped", partition=partition, reason=reason)
        return None
    return Kept(
        place=Place(partition, record.offset),
        timestamp_ms=record.timestamp_ms,
        reason=dict(record.headers).get(HEADER_REASON, b"").decode(errors="replace"),
        source=identity.source,
        message_id=identity.message_id or None,
        key=identity.key,
        head=head,
        content=content,
        is_cloudevent=bool(identity.flags & FLAG_CLOUDEVENT),
    )
