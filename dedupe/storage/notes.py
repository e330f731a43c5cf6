"""
The notes in the log, which every process that opens it can read. Pure.

`pin`: the rules of a topic, which must not change; the first one counts. `skips`: the records that an
operator allows recovery to skip. `fingerprints`: the rules by which contents are compared, and the end of
each, so that a retry is compared like its original. `begun-empty` and `sessions`: whether a partition may
have records of client sessions; they are only added, never removed, since two gateways may write at once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from dedupe.model.errors import ConfigurationError, IdentityMismatchError
from dedupe.model.record import VERSION
from dedupe.model.types import Offset, Topic
from dedupe.storage.log import NOTE_BYTES_MAX

PIN_FORMAT = 2
"""The record version that a gateway of before the routing topic is told, and therefore refuses."""

PIN = "pin"
"""A note of partition 0 of each topic."""

SKIPS = "skips"
"""A note of each partition with skipped records."""

FINGERPRINTS = "fingerprints"
"""A note of partition 0 of the clean topic."""

BEGUN_EMPTY = "begun-empty"
"""A note of each partition that was empty when a gateway first read it; SESSIONS follows if it has any."""

SESSIONS = "sessions"
"""A note of each partition, written before its first event of a client session."""


class Pin(NamedTuple):
    """The rules that decide the partition of an event, and whether a copy is recognised."""

    partitions: int
    key_check: str  # hex of dedupe.model.identity.Identity.check_value
    record_version: int = VERSION  # PIN_FORMAT on Kafka, in what older gateways read

    def encoded(self) -> str:
        """Encode the note."""
        return orjson.dumps(self._asdict()).decode()

    @classmethod
    def decode(cls, text: str) -> "Pin":
        """
        Decode a note; unknown fields, of later versions, are ignored.

        Raises:
            ConfigurationError: no gateway wrote the note.
        """
        try:
            fields = orjson.loads(text)
            return cls(**{name: fields[name] for name in cls._fields})
        except (ValueError, TypeError, KeyError) as err:
            raise _unreadable(PIN, text) from err

    def check(self, topic: Topic, key_check: bytes) -> None:
        """
        Compare the note with the settings of this process.

        Raises:
            IdentityMismatchError: final; with these settings the log would accept duplicates.
        """
        if self.record_version > VERSION:
            raise IdentityMismatchError(
                f"topic {topic.name} has records of version {self.record_version}, and this gateway knows "
                f"version {VERSION}: run the newer gateway that wrote them"
            )
        if self.partitions != topic.partitions:
            raise IdentityMismatchError(
                f"topic {topic.name} was begun with {self.partitions} partitions and this gateway is set "
                f"to {topic.partitions}. The number decides the partition of an event, so it must not "
                f"change: set it back to {self.partitions}. If the topic itself has more partitions now, "
                "begin a new topic (GATEWAY_TOPIC) once no client retries events of the old one"
            )
        if self.key_check != key_check.hex():
            raise IdentityMismatchError(
                f"topic {topic.name} was begun with another GATEWAY_IDENTITY_SECRET; "
                "with this one no copy of an event would be recognised"
            )


class Skips:
    """The offset ranges of one partition in which recovery skips unreadable records."""

    def __init__(self, ranges: Iterable[tuple[Offset, Offset]] = ()) -> None:
        self.ranges = sorted(ranges)

    def __contains__(self, offset: Offset) -> bool:
        return any(first <= offset <= last for first, last in self.ranges)

    def with_range(self, first: Offset, last: Offset, *, log_start: Offset) -> "Skips":
        """Return the ranges with one more, without those below the log start."""
        kept = [(low, high) for low, high in self.ranges if high >= log_start]
        return Skips({*kept, (first, last)})

    def encoded(self) -> str:
        """Encode the note. Raises ConfigurationError: it is too long."""
        text = orjson.dumps(self.ranges).decode()
        if len(text) > NOTE_BYTES_MAX:
            raise ConfigurationError("too many places are skipped already: skip ranges instead of offsets")
        return text

    @classmethod
    def decode(cls, text: str) -> "Skips":
        """Decode a note. Raises ConfigurationError: no gateway wrote it."""
        try:
            return cls((int(first), int(last)) for first, last in orjson.loads(text))
        except (ValueError, TypeError) as err:
            raise _unreadable(SKIPS, text) from err


class FingerprintRule(NamedTuple):
    """The fields that a fingerprint ignores, besides those that retries change."""

    ignored: tuple[str, ...]  # sorted
    until_ms: int | None = None  # log time of the start that changed it; None for the rule in force

    @staticmethod
    def decode(text: str) -> "list[FingerprintRule]":
        """Decode a note, oldest rule first. Raises ConfigurationError: no gateway wrote it."""
        try:
            return [FingerprintRule(tuple(ignored), until_ms) for ignored, until_ms in orjson.loads(text)]
        except (ValueError, TypeError) as err:
            raise _unreadable(FINGERPRINTS, text) from err


def adopt_rule(
    rules: Sequence[FingerprintRule], ignored: Iterable[str], *, now_ms: int, remembered_ms: int
) -> list[FingerprintRule]:
    """
    Return the rules with a new one in force, without those older than every remembered id.

    Args:
        rules: the rules so far, oldest first, the last one in force; none in a new log.
        ignored: the fields of the new rule.
        now_ms: log time.
        remembered_ms: the maximum time that an id is remembered.
    """
    rule = FingerprintRule(tuple(sorted(ignored)))
    if not rules:
        return [rule]
    *past, last = rules
    if last.ignored != rule.ignored:
        past.append(last._replace(until_ms=now_ms))
    kept = [old for old in past if old.until_ms is not None and now_ms - old.until_ms <= remembered_ms]
    return [*(old for old in kept if old.ignored != rule.ignored), rule]


def encode_rules(rules: Sequence[FingerprintRule]) -> str:
    """Encode the note. Raises ConfigurationError: it is too long."""
    text = orjson.dumps([list(rule) for rule in rules]).decode()
    if len(text) > NOTE_BYTES_MAX:
        raise ConfigurationError("GATEWAY_FINGERPRINT_IGNORE was changed too often within a window: wait")
    return text


def _unreadable(name: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"no gateway wrote the note {name!r} of the log: {text[:100]!r}")
