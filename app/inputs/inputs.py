"""
Runs the inputs of a gateway: each topic's partitions, until a reason stops the input.

app.main -> **Inputs.run** -> InputPartition.run -> InputAdmission.admit
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog

from app.ingest.routes.events import Ingest
from app.inputs.admission import Counts, InputAdmission
from app.inputs.input_file import InputSpec
from app.inputs.partition import RENEWAL_S, RETRY_S, InputPartition, InputStoppedError, Place
from app.inputs.values import Topic
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.input_log import InputLog
from dedupe.storage.log import LogStore

PARTITIONS_POLL_S = 30.0
"""Between two looks for partitions that were added to a topic."""

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Input:
    """One input, as it stands."""

    spec: InputSpec
    counts: Counts = field(default_factory=Counts)
    partitions: list[InputPartition] = field(default_factory=list)
    stopped: str | None = None
    """Why it is not read any more, one sentence."""


class Inputs:
    """All inputs of a gateway that is alone."""

    def __init__(
        self,
        specs: Sequence[InputSpec],
        open_log: Callable[[InputSpec], InputLog],
        ingest: Ingest,
        *,
        store: LogStore,
        topic: str,
        window_s: float,
        own_ids: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        """
        Connect to nothing yet.

        Args:
            specs: the inputs.
            open_log: returns the cluster of an input.
            ingest: what requests are admitted by.
            store: the gateway's log, which notes what topics were read.
            topic: the clean topic, which is part of the names of consumer groups.
            window_s: how long ids are remembered at most.
            own_ids: returns the ids of the topics that this gateway writes; raises RetriableError.
        """
        self.inputs = [Input(spec) for spec in specs]
        self._open_log = open_log
        self._ingest = ingest
        self._store = store
        self._topic = topic
        self._window_s = window_s
        self._own_ids = own_ids

    async def run(self) -> None:
        """Read all inputs until cancelled; one that stops leaves the others alone."""
        async with asyncio.TaskGroup() as running:
            for each in self.inputs:
                running.create_task(self._run(each))

    async def _run(self, each: Input) -> None:
        log = self._open_log(each.spec)
        try:
            await self._read(each, log)
        except* (InputStoppedError, ConfigurationError) as group:
            errors: BaseException = group
            while isinstance(errors, BaseExceptionGroup):
                errors = errors.exceptions[0]
            each.stopped = str(errors)
            logger.error("an input is stopped", input=each.spec.name, reason=each.stopped)
        finally:
            log.close()

    async def _read(self, each: Input, log: InputLog) -> None:
        """Read all partitions, those that are added later, too."""
        topic = await self._topic_of(each, log)
        was_read, noted_at = await self._was_read(each, topic), self._ingest.clock.monotonic()
        admission = InputAdmission(self._ingest, each.spec, topic, each.counts)
        async with asyncio.TaskGroup() as running:
            while True:
                try:
                    count = await log.partitions_of(each.spec.topic)
                except RetriableError:
                    count = 0
                for number in range(len(each.partitions), count):
                    place = Place(
                        each.spec,
                        f"gateway-{self._topic}-input-{each.spec.name}",
                        topic.topic_id,
                        number,
                        self._window_s,
                        was_read,
                    )
                    partition = InputPartition(place, log, admission, each.counts, self._ingest.clock)
                    each.partitions.append(partition)
                    running.create_task(partition.run())
                await asyncio.sleep(PARTITIONS_POLL_S if each.partitions else RETRY_S)
                if self._ingest.clock.monotonic() - noted_at > RENEWAL_S:
                    noted_at = self._ingest.clock.monotonic()
                    await self._was_read(each, topic)  # Kafka deletes notes that are not renewed

    async def _was_read(self, each: Input, topic: Topic) -> bool:
        """
        Note that a topic is read, and return whether it was before.

        Kafka deletes what is committed for a topic with it: the note alone tells one that was made anew.

        Raises InputStoppedError: it was made anew.
        """
        name = f"inputtopic-{each.spec.name}"  # a group of its own, beside that of the offsets
        while True:
            try:
                noted = (await self._store.notes(name, self._topic)).get(0)
                if noted is not None and noted != topic.topic_id:
                    raise InputStoppedError(
                        f"topic {each.spec.topic} was made anew: its id was {noted} when it was read, and is "
                        f"{topic.topic_id}; to read the new one, give the input another name"
                    )
                await self._store.note(name, self._topic, 0, topic.topic_id)
            except RetriableError as err:
                logger.warning("an input cannot be noted yet", input=each.spec.name, error=str(err))
                await asyncio.sleep(RETRY_S)
            else:
                return noted is not None

    async def _topic_of(self, each: Input, log: InputLog) -> Topic:
        """Return which topic an input is. Raises InputStoppedError: it must not be read."""
        is_told = False
        while True:
            try:
                topic_id = await log.topic_id(each.spec.topic)
                topic, own_ids = Topic(await log.cluster_id(), topic_id or ""), await self._own_ids()
            except RetriableError as err:
                if not is_told:
                    logger.warning("an input cannot be read yet", input=each.spec.name, error=str(err))
                is_told = True
                await asyncio.sleep(RETRY_S)
                continue
            if topic_id is None:
                raise InputStoppedError(
                    f"topic {each.spec.topic} does not exist, or its cluster gives topics no ids"
                )
            if topic_id in own_ids:
                raise InputStoppedError(
                    f"topic {each.spec.topic} is one that this gateway writes: it would read its own events"
                )
            return topic
