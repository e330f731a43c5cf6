"""
Notes that are kept with the log, for every process that opens it. Pure.

The *pin* says under which rules a topic was begun; they cannot change any more. The *skips* are the
places where an operator lets recovery pass over records that no gateway wrote. The *fingerprint
rules* say how contents were compared, and until when, so that a retry is compared as its original was.
*Sessions* says whether any record may be of a client session: what it says can only be added, since two
gateways may write at once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from dedupe.model.errors import ConfigurationError, IdentityMismatchError
from dedupe.model.record import VERSION
from dedupe.model.types import Offset, Topic
from dedupe.storage.log import NOTE_BYTES_MAX

PIN = "pin"
"""Name of the note, kept for partition 0 of each topic."""

SKIPS = "skips"
"""Name of the note, kept for each partition that has any."""

FINGERPRINTS = "fingerprints"
"""Name of the note, kept for partition 0 of the clean topic."""

BEGUN_EMPTY = "begun-empty"
"""Name of the note, kept for each partition that a gateway has seen empty. It notes all sessions since."""

SESSIONS = "sessions"
"""Name of the note, kept for each partition since its first event of a client session."""


class Pin(NamedTuple):
    """What decides where copies of an event meet, and whether they are known for copies."""

    partitions: int
    key_check: str  # hex of dedupe.model.identity.Identity.check_value
    record_version: int = VERSION

    def encoded(self) -> str:
        """Return the note's text."""
        return orjson.dumps(self._asdict()).decode()

    @classmethod
    def decode(cls, text: str) -> "Pin":
        """
        Read a note's text; fields that a later version added are passed over.

        Raises:
            ConfigurationError: it is none of a gateway's.
        """
        try:
            fields = orjson.loads(text)
            return cls(**{name: fields[name] for name in cls._fields})
        except (ValueError, TypeError, KeyError) as err:
            raise _unreadable(PIN, text) from err

    def check(self, topic: Topic, key_check: bytes) -> None:
        """
        Compare what was noted with what this process is set to.

        Raises:
            IdentityMismatchError: final; it would let duplicates in.
        """
        if self.record_version > VERSION:
            raise IdentityMismatchError(
                f"topic {topic.name} has records of version {self.record_version}, and this gateway knows "
                f"version {VERSION}: run the newer gateway that wrote them"
            )
        if self.partitions != topic.partitions:
            raise IdentityMismatchError(
                f"topic {topic.name} was begun with {self.partitions} partitions and this gateway is set "
                f"to {topic.partitions}. The number decides where copies of an event meet, so it can never "
                f"change: set it back to {self.partitions}. If the topic itself was given more, begin a new "
                "topic (GATEWAY_TOPIC) once no client retries events of the old one"
            )
        if self.key_check != key_check.hex():
            raise IdentityMismatchError(
                f"topic {topic.name} was begun with another GATEWAY_IDENTITY_SECRET; "
                "with this one no copy of an event would be recognised"
            )


class Skips:
    """Offset ranges of one partition in which records that cannot be read are passed over."""

    def __init__(self, ranges: Iterable[tuple[Offset, Offset]] = ()) -> None:
        self.ranges = sorted(ranges)

    def __contains__(self, offset: Offset) -> bool:
        return any(first <= offset <= last for first, last in self.ranges)

    def with_range(self, first: Offset, last: Offset, *, log_start: Offset) -> "Skips":
        """Return these and one more, without those that retention has deleted."""
        kept = [(low, high) for low, high in self.ranges if high >= log_start]
        return Skips({*kept, (first, last)})

    def encoded(self) -> str:
        """Return the note's text. Raises ConfigurationError: it is too long for a note."""
        text = orjson.dumps(self.ranges).decode()
        if len(text) > NOTE_BYTES_MAX:
            raise ConfigurationError("too many places are skipped already: skip ranges instead of offsets")
        return text

    @classmethod
    def decode(cls, text: str) -> "Skips":
        """Read a note's text. Raises ConfigurationError: it is none of a gateway's."""
        try:
            return cls((int(first), int(last)) for first, last in orjson.loads(text))
        except (ValueError, TypeError) as err:
            raise _unreadable(SKIPS, text) from err


class FingerprintRule(NamedTuple):
    """Which fields, besides those of every retry, are no part of what an event says."""

    ignored: tuple[str, ...]  # sorted
    until_ms: int | None = None  # log time of the start that changed it; None for the one in force

    @staticmethod
    def decode(text: str) -> "list[FingerprintRule]":
        """Read a note's text, oldest rule first. Raises ConfigurationError: it is none of a gateway's."""
        try:
            return [FingerprintRule(tuple(ignored), until_ms) for ignored, until_ms in orjson.loads(text)]
        except (ValueError, TypeError) as err:
            raise _unreadable(FINGERPRINTS, text) from err


def adopt_rule(
    rules: Sequence[FingerprintRule], ignored: Iterable[str], *, now_ms: int, remembered_ms: int
) -> list[FingerprintRule]:
    """
    Put a rule in force, and drop those under which nothing was stored that is still remembered.

    Args:
        rules: so far, oldest first, the last one in force; none in a new log.
        ignored: fields of the rule from now on.
        now_ms: log time.
        remembered_ms: how long an id is remembered at most.
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
    """Return the note's text. Raises ConfigurationError: it is too long for a note."""
    text = orjson.dumps([list(rule) for rule in rules]).decode()
    if len(text) > NOTE_BYTES_MAX:
        raise ConfigurationError("GATEWAY_FINGERPRINT_IGNORE was changed too often within a window: wait")
    return text


def _unreadable(name: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"the note {name!r} of the log is none of a gateway's: {text[:100]!r}")
