"""Seeks: an operator has partitions of an input read on elsewhere, within what the window remembers."""

from typing import Literal, TypeAlias

from app.inputs.control import InputControl
from app.inputs.input_file import InputSpec
from dedupe.model.errors import GatewayError
from dedupe.model.types import Offset
from dedupe.storage.input_log import CommittedOffset, InputLog

SeekTo: TypeAlias = Offset | Literal["earliest", "latest"]


class SeekRefusedError(GatewayError):
    """A seek is not possible: one sentence on the reason."""

    code = "seek_refused"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, detail=sentence)


class Seeks:
    """Seeks of one input."""

    def __init__(self, spec: InputSpec, log: InputLog, control: InputControl, group: str) -> None:
        """`group`: that under which offsets are committed."""
        self._spec = spec
        self._log = log
        self._control = control
        self._group = group

    async def seek(
        self, to: SeekTo, partition: int | None, *, since_ms: int, reads_past_window: bool
    ) -> dict[int, Offset]:
        """
        Have partitions read on elsewhere, and return where.

        Args:
            to: an offset, or an end of what there is.
            partition: None for all of them, which have no offset in common.
            since_ms: when the window begins.
            reads_past_window: whether older records may be read.

        Raises:
            SeekRefusedError: there is no such place, or it is older than the window.
            RetriableError: no answer; it is done or not.
            ConfigurationError: a right is missing.
        """
        topic = self._spec.topic
        count = await self._log.partitions_of(topic)
        if partition is None and isinstance(to, int):
            raise SeekRefusedError("an offset is that of one partition: name the partition")
        if partition is not None and partition >= count:
            raise SeekRefusedError(f"topic {topic} has {count} partitions")
        offsets = {
            number: await self._place_of(number, to)
            for number in (range(count) if partition is None else [partition])
        }
        for number, offset in offsets.items():
            first = await self._log.first_since(topic, number, since_ms)
            if offset < first and not reads_past_window:
                raise SeekRefusedError(
                    f"records of partition {number} below offset {first} are older than the window: if they "
                    "have been read before, they would be stored twice"
                )
        seek = await self._control.seek(offsets, reads_past_window=reads_past_window)
        await self._take_from_others(offsets, seek)
        return offsets

    async def _place_of(self, partition: int, to: SeekTo) -> Offset:
        start, end = await self._log.bounds(self._spec.topic, partition)
        offset = {"earliest": start, "latest": end}[to] if isinstance(to, str) else to
        if not start <= offset <= end:
            raise SeekRefusedError(f"partition {partition} has the offsets {start} to {end}")
        return offset

    async def _take_from_others(self, offsets: dict[int, Offset], seek: int) -> None:
        """Commit over what another program has committed, which would count over the seek."""
        topic_id = await self._log.topic_id(self._spec.topic)
        committed = await self._log.committed(self._group, self._spec.topic)
        for number, offset in offsets.items():
            if topic_id is not None and number in committed and not committed[number].topic_id:
                before = CommittedOffset(offset, topic_id, seek - 1)
                await self._log.commit(self._group, self._spec.topic, number, before)
