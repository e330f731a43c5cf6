"""
What operators tell a gateway of an input: pauses, and other places to read on from.

It is a note of the log, so it outlives restarts, and every worker of a group finds it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from app.inputs.notes import NOTES_PARTITION
from dedupe.model.errors import ConfigurationError
from dedupe.model.types import Offset
from dedupe.storage.log import NOTE_BYTES_MAX, LogStore


class Seek(NamedTuple):
    """Where a partition is to be read on."""

    number: int
    """Commits name the last one that they are behind: so each is done once."""
    offset: Offset
    reads_past_window: bool = False
    """Whether records older than the window may be read, which may have been read before."""


class Told(NamedTuple):
    """What was told last."""

    is_paused: bool = False
    resumes: int = 0
    """How often the input was to be read on: one that has stopped tries again."""
    seeks: Mapping[int, Seek] = {}
    """By partition, the last one of each."""
    stop: str = ""
    """Why no worker must read on, one sentence that outlives restarts."""

    def encoded(self) -> str:
        """Encode the note. Raises ConfigurationError: it is too long."""
        seeks = {str(partition): list(seek) for partition, seek in self.seeks.items()}
        text = orjson.dumps(
            {"paused": self.is_paused, "resumes": self.resumes, "seeks": seeks, "stop": self.stop}
        ).decode()
        if len(text) > NOTE_BYTES_MAX:
            raise ConfigurationError("other places are told for too many partitions already")
        return text

    @classmethod
    def decode(cls, text: str) -> "Told":
        """Decode a note of this or a later version."""
        fields: dict[str, Any] = orjson.loads(text)
        seeks = {int(partition): Seek(*seek[:3]) for partition, seek in fields["seeks"].items()}
        return cls(fields["paused"], fields["resumes"], seeks, fields.get("stop", ""))


class InputControl:
    """What is told of one input, as last seen. Of two operators in one second, one may not be heard."""

    def __init__(self, store: LogStore, topic: str, name: str) -> None:
        """`topic`: the clean one."""
        self.told = Told()
        self._store = store
        self._topic = topic
        self._note = f"inputcontrol-{name}"

    async def look(self) -> Told:
        """Read what is told. Raises RetriableError."""
        text = (await self._store.notes(self._note, self._topic)).get(NOTES_PARTITION)
        self.told = Told() if text is None else Told.decode(text)
        return self.told

    async def pause(self) -> None:
        """Have no worker read on. Raises RetriableError."""
        await self._tell((await self.look())._replace(is_paused=True))

    async def stop(self, reason: str, *, resumes: int) -> None:
        """Have no worker read on, unless it was resumed since. Raises RetriableError, ConfigurationError."""
        told = await self.look()
        if told.resumes == resumes:
            await self._tell(told._replace(stop=reason))

    async def resume(self) -> None:
        """Have workers read on, also what has stopped. Raises RetriableError."""
        told = await self.look()
        await self._tell(told._replace(is_paused=False, resumes=told.resumes + 1, stop=""))

    async def seek(self, offsets: Mapping[int, Offset], *, reads_past_window: bool) -> int:
        """Have partitions read on elsewhere; return its number. Raises RetriableError, ConfigurationError."""
        told = await self.look()
        number = 1 + max((seek.number for seek in told.seeks.values()), default=0)
        new = {partition: Seek(number, offset, reads_past_window) for partition, offset in offsets.items()}
        await self._tell(told._replace(seeks={**told.seeks, **new}))
        return number

    async def _tell(self, told: Told) -> None:
        await self._store.note(self._note, self._topic, NOTES_PARTITION, told.encoded())
        self.told = told
