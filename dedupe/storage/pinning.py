"""
Pinning: the rules that a log was begun under are noted with the log and compared at every start.

Without a pin, which is the case in a log that was never served, or not for long, the lanes prove
the rules by their records (IdentityGate), and the first of them to serve finds them pinned.
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
    Compare this process's rules with those that each topic was begun under.

    Returns:
        Whether all topics are pinned, and so nothing has to be proved by records.

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
    Note this process's rules with each topic that is not pinned yet.

    Another process may have begun the same new log at the same time: the notes are compared before
    and after, so that two with different rules do not both serve it.

    Raises:
        IdentityMismatchError: another process was first, with other rules. Final.
        RetriableError, ConfigurationError: see LogStore.note.
    """
    if await check_pins(store, topics, identity):
        return
    for topic in topics:
        noted = Pin(topic.partitions, identity.check_value.hex())
        await store.note(PIN, topic.name, 0, noted.encoded())
    await check_pins(store, topics, identity)


async def load_skips(store: LogStore, topic: str, partition: int) -> Skips:
    """Return what an operator lets recovery pass over. Raises as LogStore.notes does."""
    text = (await store.notes(SKIPS, topic)).get(partition)
    return Skips() if text is None else Skips.decode(text)


class SessionNotes:
    """
    Whether the records of a partition may be of client sessions. Methods raise as LogStore.note does.

    Sessions are remembered longer than ids may be: where there are none, a rebuild need not look for them.
    """

    def __init__(self, store: LogStore, topic: str) -> None:
        self._store = store
        self._topic = topic

    async def may_have(self, partition: int) -> bool:
        """Whether there may be any: what is not noted is not known."""
        with_sessions = await self._store.notes(SESSIONS, self._topic)
        begun_empty = await self._store.notes(BEGUN_EMPTY, self._topic)
        return partition in with_sessions or partition not in begun_empty

    async def begin_log(self, partition: int) -> None:
        """Note of an empty log that it is one."""
        await self._store.note(BEGUN_EMPTY, self._topic, partition, "yes")

    async def begin_sessions(self, partition: int) -> None:
        """Note that there may be some, before the first is appended."""
        if partition not in await self._store.notes(SESSIONS, self._topic):
            await self._store.note(SESSIONS, self._topic, partition, "yes")


async def adopt_fingerprint_rule(
    store: LogStore, topic: str, ignored: Iterable[str], *, now_ms: int, remembered_ms: int
) -> list[frozenset[str]]:
    """
    Note by which rule contents are compared from now on, unless it is noted already.

    Returns:
        The other rules, as ignored fields, under which events may be stored that are still remembered.

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
    Write every note once more, before the log forgets it. Raises as LogStore.notes and note do.

    Of a partition with sessions it may forget that it began empty, and must so before the other note.
    """
    for topic in topics:
        with_sessions = await store.notes(SESSIONS, topic.name)
        for name in (PIN, SKIPS, FINGERPRINTS, SESSIONS, BEGUN_EMPTY):
            for partition, text in (await store.notes(name, topic.name)).items():
                if name != BEGUN_EMPTY or partition not in with_sessions:
                    await store.note(name, topic.name, partition, text)
