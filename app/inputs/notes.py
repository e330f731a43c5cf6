"""
What the log notes of an input: which topic was read, and where its partitions began.

Of each note the first one counts, so of two workers that begin at once both go on with the same.
"""

from typing import NamedTuple

from dedupe.model.types import Offset
from dedupe.storage.log import LogStore

NOTES_PARTITION = 0


class FirstStart(NamedTuple):
    """How an input was found when it was first read."""

    topic_id: str
    partitions: int
    """Partitions beyond are younger: they are read from their first record on."""


class InputNotes:
    """The notes of one input."""

    def __init__(self, store: LogStore, topic: str, name: str) -> None:
        """`topic`: the clean one."""
        self._store = store
        self._topic = topic
        self._name = name

    async def first_start(self, now: FirstStart) -> FirstStart:
        """Return what was noted first; that is `now` if nothing was. Raises RetriableError."""
        noted = await self._first(f"inputtopic-{self._name}", f"{now.topic_id} {now.partitions}")
        topic_id, _, partitions = noted.partition(" ")
        return FirstStart(topic_id, int(partitions or 0))

    async def begin(self, partition: int) -> Offset | None:
        """Return where a partition began, None if it never did. Raises RetriableError."""
        noted = (await self._store.notes(self._begin_of(partition), self._topic)).get(NOTES_PARTITION)
        return None if noted is None else int(noted)

    async def note_begin(self, partition: int, offset: Offset) -> Offset:
        """Note where a partition begins, and return what was noted first. Raises RetriableError."""
        return int(await self._first(self._begin_of(partition), str(offset)))

    def _begin_of(self, partition: int) -> str:
        return f"inputbegin-{self._name}-{partition}"

    async def _first(self, name: str, text: str) -> str:
        """Write a note unless there is one, and return the one that counts."""
        noted = (await self._store.notes(name, self._topic)).get(NOTES_PARTITION)
        while noted is None:
            await self._store.note(name, self._topic, NOTES_PARTITION, text, once=True)
            noted = (await self._store.notes(name, self._topic)).get(NOTES_PARTITION)
        return noted
