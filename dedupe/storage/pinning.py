"""
Pinning: the rules of a log are written into a note before its first record, and compared at every start.

A log that has records and no pin is not served: who served it without is asked (`gateway reshard adopt`).
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

from dedupe.decide.recovery import RecordCheck
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.types import Topic
from dedupe.storage.log import LogStore
from dedupe.storage.notes import (
    BEGUN_EMPTY,
    FINGERPRINTS,
    PIN,
    PIN_FORMAT,
    SESSIONS,
    SKIPS,
    FingerprintRule,
    Pin,
    Skips,
    adopt_rule,
    encode_rules,
)

PROOF_RECORDS = 128
"""Records of each partition that prove a secret and a partition count, from the log start on. One of another
count passes with a probability of at most 1/2."""


async def check_pins(store: LogStore, topics: Sequence[Topic], identity: Identity) -> bool:
    """
    Compare this process's rules with the pin of each topic.

    Returns:
        Whether all topics are pinned.

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


async def check_old_pins(
    old_notes: Callable[[str, str], Awaitable[dict[int, str]]], topics: Sequence[Topic], identity: Identity
) -> None:
    """
    Compare these rules with the pins of gateways of before the routing topic.

    Raises as Pin.check does, and as `old_notes`, which returns what they have noted about a topic.
    """
    for topic in topics:
        for text in (await old_notes(PIN, topic.name)).values():
            noted = Pin.decode(text)
            if noted.record_version < PIN_FORMAT:
                noted.check(topic, identity.check_value)


async def begin_log(store: LogStore, topics: Sequence[Topic], identity: Identity) -> None:
    """
    Pin a log that never had a record; compare the pins of one that has them.

    Of two processes with different rules that begin a log at the same time, the first pin counts, and the
    other process is refused.

    Raises:
        ConfigurationError: there are records and no pin. Final.
        IdentityMismatchError: another process has written other rules. Final.
        RetriableError: see LogStore.notes; call again.
    """
    if await check_pins(store, topics, identity):
        return
    used = [topic.name for topic in topics if await _has_had_records(store, topic)]
    if not used:
        await pin(store, topics, identity)
    elif not await check_pins(store, topics, identity):  # another process may have begun it meanwhile
        raise ConfigurationError(
            f"topic {used[0]} has records, and it is written nowhere under which secret and partition count: "
            "they are of an older gateway, or the notes of the log are lost. `gateway reshard adopt` proves "
            "these settings by the records and goes on with them"
        )


async def pin(store: LogStore, topics: Sequence[Topic], identity: Identity) -> None:
    """Write this process's rules as the pin of each topic without one. Raises as begin_log does."""
    for topic in topics:
        noted = Pin(topic.partitions, identity.check_value.hex())
        await store.note(PIN, topic.name, 0, noted.encoded(), once=True)
    if not await check_pins(store, topics, identity):
        raise RetriableError("the rules of the log were written, and are not visible yet")


async def prove(store: LogStore, topic: Topic, identity: Identity) -> int:
    """
    Check the first PROOF_RECORDS records of each partition against this process's rules.

    Returns:
        How many were checked.

    Raises:
        IdentityMismatchError: a record is of another secret or partition count.
        LogCorruptError: no gateway wrote a record, and no operator allows to skip it.
        RetriableError: the log cannot be read now.
    """
    proved = 0
    for partition in range(topic.partitions):
        log, check = (
            store.partition_log(topic.name, partition),
            RecordCheck(identity, partition, topic.partitions),
        )
        skips = await load_skips(store, topic.name, partition)
        async with aclosing(log.read(*await log.bounds(), records_max=PROOF_RECORDS)) as batches:
            async for records in batches:
                for record in records:
                    if record.offset not in skips:
                        check.checked(record)
                        proved += 1
    return proved


async def _has_had_records(store: LogStore, topic: Topic) -> bool:
    """Whether a partition has a record, or has deleted some; markers do not count."""
    for partition in range(topic.partitions):
        log = store.partition_log(topic.name, partition)
        start, end = await log.bounds()
        if start > 0:
            return True
        async with aclosing(log.read(start, end, records_max=1)) as batches:
            async for _ in batches:
                return True
    return False


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
