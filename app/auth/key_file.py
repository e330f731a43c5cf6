"""
The write key file: read at start, and after each change.

After a 401, some SDKs never retry. So a file that is missing, cannot be parsed or has no key does not change
the keys in use, and is reported; and a key that vanishes from the file goes on into its source for a grace
period, which is reported, too. `enabled: false` ends a key at once. A changed file is read once it has not
changed for one interval, or LOOKS_MAX intervals later at the latest.
"""

import asyncio
import hashlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from app.auth.key_entries import Contents, read_key_file
from app.auth.key_memory import KeyMemory, Remembered
from app.auth.quotas import Allowance, Quota, QuotaPolicy
from app.auth.unknown_keys import UnknownKeys
from app.auth.write_keys import INGEST, Source
from app.http.errors import DisabledWriteKeyError, InvalidWriteKeyError
from dedupe.file_signature import signature_of
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.errors import ConfigurationError

LOOK_INTERVAL_S = 1.0
"""The interval of checks; a change is used once the file has not changed for one interval."""

LOOKS_MAX = 10
"""A file that changes all the time is read nevertheless: half of it only lets keys vanish for a moment."""

REPORT_INTERVAL_S = 60.0
"""The interval of log lines on keys that have vanished and are still used."""

SOURCES_SHOWN = 20
"""The sources that one log line names."""

PREFIX_DIGITS = 12
"""The digits of a key's SHA-256 by which operators see it, and name it."""

PREFIX_DIGITS_MIN = 6

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class KnownKey:
    """A key of the file, or one that has vanished from it."""

    source: Source
    removed_ms: int | None = None
    """When it was found to have vanished; None while it is in the file."""
    requests: int = 0
    """Since the start of the process, or since it has vanished."""
    refused: int = 0
    """Those of them that were refused, for any reason."""
    last_used_ms: int | None = None


class KeyFileStatus(NamedTuple):
    """The state of the keys in use, relative to the file."""

    keys: int
    age_s: float  # since they were read
    is_stale: bool  # the file cannot be read, or has other keys
    failures: int  # changes that could not be used
    removed: int  # further keys, which have vanished and still work


class KeyFile:
    """The keys of a file, by the SHA-256 of each key; several keys may share a source."""

    def __init__(
        self, path: Path, policy: QuotaPolicy, memory: KeyMemory | None = None, clock: Clock | None = None
    ) -> None:
        """
        Read the file, and compare it with the remembered keys.

        Args:
            path: the key file.
            policy: returns allowances.
            memory: remembers the keys; None: a key that vanishes is unknown at once.
            clock: log time.

        Raises:
            ConfigurationError: one sentence, never a key.
        """
        self._path = path
        self._policy = policy
        self._memory = memory
        self._clock = clock or SystemClock()
        self.unknown = UnknownKeys(self._clock)
        """Who sends keys that are not in the file."""
        self._seen = signature_of(path)
        self._keys: dict[bytes, KnownKey] = {}
        self._removed: dict[bytes, KnownKey] = {}  # part of `_keys`
        self._allowances: dict[str, Allowance | None] = {}  # by source, that of its first good key
        self._digest = b""
        self._is_stale = False
        self._failures = 0
        self._is_stored = True
        self._storing = asyncio.Lock()  # or an earlier list of keys could replace a later one
        self._reported_at = time.monotonic()
        self._reported = 0  # requests of removed keys
        contents = read_key_file(path)
        if memory is not None:
            self._keys = {digest: self._recalled(key) for digest, key in memory.load().items()}
        self._use(contents)
        self._report()
        self.end_terms()
        if memory is not None:
            self._is_stored = memory.store(self._to_remember())

    def __len__(self) -> int:
        return len(self._keys) - len(self._removed)

    @property
    def count(self) -> int:
        """The number of keys, those that have vanished included."""
        return len(self._keys)

    @property
    def status(self) -> KeyFileStatus:
        """The state of the keys in use, relative to the file."""
        age_s = time.monotonic() - self._read_at
        return KeyFileStatus(len(self), age_s, self._is_stale, self._failures, len(self._removed))

    def source_of(self, write_key: str) -> Source:
        known = self._keys.get(_digest_of(write_key))
        if known is None or (known.removed_ms is not None and self._is_over(known)):
            raise InvalidWriteKeyError
        source = known.source
        if not source.enabled:
            raise DisabledWriteKeyError
        known.requests += 1
        known.last_used_ms = self._clock.now_ms()
        return source

    def source_of_digest(self, digest: bytes) -> Source | None:
        known = self._keys.get(digest)
        if known is None or not _is_good(known.source) or (known.removed_ms and self._is_over(known)):
            return None
        return known.source

    def allowance_of(self, source: str) -> Allowance | None:
        return self._allowances.get(source)

    def note_unknown(self, write_key: str, address: str, library: str) -> None:
        self.unknown.note(write_key, address, library)

    def note_refused(self, write_key: str) -> None:
        if (known := self._keys.get(_digest_of(write_key))) is not None:
            known.refused += 1

    def until_ms(self, known: KnownKey) -> int:
        """Return when a key that has vanished ends."""
        assert known.removed_ms is not None
        return known.removed_ms + (self._memory.grace_ms if self._memory else 0)

    def _is_over(self, known: KnownKey) -> bool:
        """Whether the grace of a key that has vanished is over."""
        return self._clock.now_ms() >= self.until_ms(known)

    def items(self) -> Iterator[tuple[str, KnownKey]]:
        """Yield the beginning of each key's SHA-256 in hex and the key, first those that have vanished."""
        for is_removed in (True, False):
            for digest, known in self._keys.items():
                if (known.removed_ms is not None) is is_removed:
                    yield digest.hex()[:PREFIX_DIGITS], known

    def removed(self) -> Iterator[tuple[str, KnownKey]]:
        """Yield those of `items` that have vanished."""
        return ((digest.hex()[:PREFIX_DIGITS], known) for digest, known in self._removed.items())

    async def forget(self, name: str) -> list[KnownKey]:
        """
        End keys that have vanished, at once and for good, and return them.

        Args:
            name: a source, whose vanished keys all end, or the beginning of one key's SHA-256 in hex.
        """
        chosen = [digest for digest, known in self._removed.items() if known.source.id == name]
        if not chosen and len(name) >= PREFIX_DIGITS_MIN:
            chosen = [digest for digest in self._removed if digest.hex().startswith(name.lower())]
            if len(chosen) > 1:
                return []
        ended = [self._drop(digest) for digest in chosen]
        if ended:
            logger.info("removed write keys are forgotten", **_named(ended))
            await self._store()
        return ended

    async def watch(self, interval_s: float) -> None:
        """
        Read the file after each change of its `signature_of`, until cancelled; SIGHUP reads it at once.
        """
        hangup = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
        changing, looks = self._seen, 0
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await hangup.wait()
            except TimeoutError:
                pass
            current = signature_of(self._path)
            looks = looks + 1 if current != self._seen else 0
            has_rested = current == changing or looks >= LOOKS_MAX
            changing = current
            if hangup.is_set() or (has_rested and current != self._seen):
                hangup.clear()
                self._seen, looks = current, 0
                await self._reload()
            if self.end_terms() or not self._is_stored:
                await self._store()
            self._report_use()

    def end_terms(self) -> bool:
        """Drop the keys whose grace is over; return whether there were any."""
        if not self._removed:
            return False
        now_ms = self._clock.now_ms()
        ended = [
            self._drop(digest)
            for digest, known in list(self._removed.items())
            if now_ms >= self.until_ms(known)
        ]
        if ended:
            logger.warning("the grace of removed write keys is over: they are unknown now", **_named(ended))
        return bool(ended)

    async def _reload(self) -> None:
        """Use the content of the file; if it is unusable, log that and keep the keys."""
        try:
            contents = await asyncio.to_thread(read_key_file, self._path)
        except ConfigurationError as err:
            self._failures += 1
            self._is_stale = True
            logger.error(
                "write keys not reloaded, the previous ones stay in use", keys=len(self), error=str(err)
            )
            return
        has_changed = contents.digest != self._digest or self._is_stale
        self._use(contents)
        self._is_stale = False
        if has_changed:
            self._report()
            await self._store()

    def _report(self) -> None:
        logger.info("write keys read", keys=len(self), file=str(self._path))

    def _use(self, contents: Contents) -> None:
        """Replace all keys in one step; a key whose quota did not change keeps its allowance."""
        previous, defaults = self._keys, contents.defaults.over(self._policy.default)
        keys: dict[bytes, KnownKey] = {}
        for digest, entry in contents.entries.items():
            known = previous.get(digest)
            source = entry.source_by(self._policy, defaults, known.source if known else None)
            if known is None:
                known = KnownKey(source)
            known.source, known.removed_ms = source, None
            keys[digest] = known
        vanished = {digest: known for digest, known in previous.items() if digest not in keys}
        self._removed = self._grant(vanished) if self._memory and self._memory.grace_ms else {}
        self._keys = keys | self._removed
        good = [known.source for known in self._keys.values() if _is_good(known.source)]
        self._allowances = {source.id: source.allowance for source in reversed(good)}
        self._digest = contents.digest
        self._read_at = time.monotonic()

    def _grant(self, vanished: dict[bytes, KnownKey]) -> dict[bytes, KnownKey]:
        """Return the vanished keys that were good, for their grace, without their scope replay."""
        now_ms = self._clock.now_ms()
        granted = {digest: known for digest, known in vanished.items() if _is_good(known.source)}
        new = [known for known in granted.values() if known.removed_ms is None]
        for known in new:
            known.source = known.source._replace(scopes=frozenset({INGEST}))
            known.removed_ms = now_ms
            known.requests = known.refused = 0
        for known in granted.values():
            known.removed_ms = min(known.removed_ms or now_ms, now_ms)  # the clock was set back
        if new:
            until = datetime.fromtimestamp(self.until_ms(new[0]) / 1000, UTC).isoformat(timespec="seconds")
            logger.warning("write keys have vanished from the file: they work on", until=until, **_named(new))
        return granted

    def _recalled(self, key: Remembered) -> KnownKey:
        allowance = self._policy.allowance(key.quota, key.source)
        return KnownKey(Source(key.source, key.name, allowance=allowance), key.removed_ms)

    def _to_remember(self) -> dict[bytes, Remembered]:
        return {
            digest: Remembered(
                known.source.id,
                known.source.name,
                known.source.allowance.quota if known.source.allowance else Quota(),
                known.removed_ms,
            )
            for digest, known in self._keys.items()
            if _is_good(known.source)
        }

    async def _store(self) -> None:
        if self._memory is not None:
            async with self._storing:
                self._is_stored = await asyncio.to_thread(self._memory.store, self._to_remember())

    def _drop(self, digest: bytes) -> KnownKey:
        del self._keys[digest]
        return self._removed.pop(digest)

    def _report_use(self) -> None:
        """Log, at intervals, that keys that have vanished are still used."""
        now = time.monotonic()
        if not self._removed or now - self._reported_at < REPORT_INTERVAL_S:
            return
        used = [known for known in self._removed.values() if known.requests]
        requests = sum([known.requests for known in used])
        if requests > self._reported:
            logger.warning(
                "removed write keys are still used", requests=requests - self._reported, **_named(used)
            )
        self._reported_at, self._reported = now, requests


def _digest_of(write_key: str) -> bytes:
    return hashlib.sha256(write_key.encode()).digest()


def _is_good(source: Source) -> bool:
    """Whether a key would be missed if it vanished: a disabled one, or one of a tool, would not."""
    return source.enabled and INGEST in source.scopes


def _named(keys: list[KnownKey]) -> dict[str, object]:
    sources = sorted({known.source.id for known in keys})
    return {"keys": len(keys), "sources": sources[:SOURCES_SHOWN]}
