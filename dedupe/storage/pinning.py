"""
Pinning: the rules of a log are written into a note, and compared at every start.

In a log without a pin, the lanes check the rules against their records (IdentityGate), and pin them then.
"""

from collections.abc import Iterable, Sequence

from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.log import LogStore
from dedupe.storage.notes import (
    BEGUN_EMPTY,
    FINGERPRINTS,
    PIN,
    SESSIONS,
    SKIPS,
    FingerprintRule,
    Pin,
    Skips,
    adopt_rule,
    encode_rules,
)


async def check_pins(store: LogStore, topics: Sequence[Topic], identity: Identity) -> bool:
    """
    Compare this process's rules with the pin of each topic.

    Returns:
        Whether all topics are pinned; otherwise records must be checked.

    Raises:
        IdentityMismatchError: final.
        RetriableError, ConfigurationError: see LogStore.notes.
    """
    is_pinned = True
    for topic in topics:
        text = (await store.notes(PIN, topic.name)).get(0)
        if text is None:
            is_pinned = False
        else:
            Pin.decode(text).check(topic, identity.check_value)
    return is_pinned


async def pin(store: LogStore, topics: Sequence[Topic], identity: Identity) -> None:
    """
    Write this process's rules as the pin of each topic without one.

    The pins are compared before and after, so that two processes with different rules that begin a log at the
    same time do not both serve it.

    Raises:
        IdentityMismatchError: another process has written other rules. Final.
        RetriableError, ConfigurationError: see LogStore.note.
    """
    if await check_pins(store, topics, identity):
        return
    for topic in topics:
        noted = Pin(topic.partitions, identity.check_value.hex())
        await store.note(PIN, topic.name, 0, noted.encoded())
    await check_pins(store, topics, identity)


async def load_skips(store: LogStore, topic: str, partition: int) -> Skips:
    """Return the records that an operator allows recovery to skip. Raises as LogStore.notes does."""
    text = (await store.notes(SKIPS, topic)).get(partition)
    return Skips() if text is None else Skips.decode(text)


class SessionNotes:
    """
    The notes that record whether a partition may have client sessions. Methods raise as LogStore.note does.

    Sessions may be remembered longer than ids: a rebuild of a partition without sessions reads less.
    """

    def __init__(self, store: LogStore, topic: str) -> None:
        self._store = store
        self._topic = topic

    async def may_have(self, partition: int) -> bool:
        """Whether the partition may have sessions; true without a note."""
        with_sessions = await self._store.notes(SESSIONS, self._topic)
        begun_empty = await self._store.notes(BEGUN_EMPTY, self._topic)
        return partition in with_sessions or partition not in begun_empty

    async def begin_log(self, partition: int) -> None:
        """Note that the partition is empty."""
        await self._store.note(BEGUN_EMPTY, self._topic, partition, "yes")

    async def begin_sessions(self, partition: int) -> None:
        """Note that the partition may have sessions, before the first is appended."""
        if partition not in await self._store.notes(SESSIONS, self._topic):
            await self._store.note(SESSIONS, self._topic, partition, "yes")


async def adopt_fingerprint_rule(
    store: LogStore, topic: str, ignored: Iterable[str], *, now_ms: int, remembered_ms: int
) -> list[frozenset[str]]:
    """
    Note the rule by which contents are compared from now on.

    Returns:
        The ignored fields of each earlier rule under which remembered events may be stored.

    Raises:
        RetriableError, ConfigurationError: see LogStore.note.
    """
    text = (await store.notes(FINGERPRINTS, topic)).get(0)
    noted = [] if text is None else FingerprintRule.decode(text)
    rules = adopt_rule(noted, ignored, now_ms=now_ms, remembered_ms=remembered_ms)
    if rules != noted:
        await store.note(FINGERPRINTS, topic, 0, encode_rules(rules))
    return [frozenset(rule.ignored) for rule in rules[:-1]]


async def renew_notes(store: LogStore, topics: Sequence[Topic]) -> None:
    """
    Write every note again, before the log deletes it. Raises as LogStore.notes and note do.

    BEGUN_EMPTY of a partition with sessions is not renewed: it must expire before SESSIONS does.
    """
    for topic in topics:
        with_sessions = await store.notes(SESSIONS, topic.name)
        for name in (PIN, SKIPS, FINGERPRINTS, SESSIONS, BEGUN_EMPTY):
            for partition, text in (await store.notes(name, topic.name)).items():
                if name != BEGUN_EMPTY or partition not in with_sessions:
                    await store.note(name, topic.name, partition, text)
