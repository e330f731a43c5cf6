"""
Runs the inputs of a gateway: each topic's partitions, until a reason stops the input.

app.main -> **Inputs.run** -> InputPartition.run -> InputAdmission.admit
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from app.ingest.routes.events import Ingest
from app.inputs.admission import Counts, InputAdmission
from app.inputs.control import InputControl
from app.inputs.input_file import InputSpec
from app.inputs.memory import InputMemory
from app.inputs.notes import FirstStart, InputNotes
from app.inputs.partition import RETRY_S, InputPartition, InputStoppedError, NotedStopError, Place
from app.inputs.seeks import Seeks, SeekTo
from app.inputs.values import Topic
from dedupe.cluster.input_shares import InputShares
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.model.types import Offset
from dedupe.storage.input_log import InputLog
from dedupe.storage.log import LogStore

PARTITIONS_POLL_S = 30.0
"""Between two looks for partitions that were added to a topic."""

CONTROL_POLL_S = 1.0
"""Between two looks at what operators have told."""

SHARES_POLL_S = 0.1
"""Between two looks at what this process is to read."""

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Input:
    """One input, as it stands."""

    spec: InputSpec
    control: InputControl
    counts: dict[int, Counts] = field(default_factory=dict)
    """By partition, of those that this process has read."""
    partitions: dict[int, InputPartition] = field(default_factory=dict)
    """Those that this process reads, by number."""
    stopped: str | None = None
    """Why it is not read until it is resumed, one sentence."""

    @property
    def total(self) -> Counts:
        """The counts of all partitions."""
        return Counts.total_of(self.counts.values())


class Clusters(NamedTuple):
    """Where topics are."""

    open_log: Callable[[InputSpec], InputLog]
    """Returns the cluster of an input."""
    own_ids: Callable[[], Awaitable[Collection[str]]]
    """Returns the ids of the topics that this gateway writes, which are no inputs; raises RetriableError."""


class Inputs:
    """All inputs of a gateway, or what it reads of them as a worker of a group."""

    def __init__(
        self,
        specs: Sequence[InputSpec],
        clusters: Clusters,
        ingest: Ingest,
        *,
        store: LogStore,
        topic: str,
        window_s: float,
        shares: InputShares,
        memory: InputMemory,
    ) -> None:
        """
        Connect to nothing yet.

        Args:
            specs: the inputs.
            clusters: where topics are.
            ingest: what requests are admitted by.
            store: the gateway's log, which notes what topics were read.
            topic: the clean topic, which is part of the names of consumer groups.
            window_s: how long ids are remembered at most.
            shares: which partitions are read by this process.
            memory: that of all partitions.
        """
        self.inputs = [Input(spec, InputControl(store, topic, spec.name)) for spec in specs]
        self._open_log = clusters.open_log
        self._ingest = ingest
        self._store = store
        self._topic = topic
        self._window_s = window_s
        self._shares = shares
        self._memory = memory
        self._own_ids = clusters.own_ids

    def by_name(self, name: str) -> Input | None:
        """Return an input, None if there is none of that name."""
        return next((each for each in self.inputs if each.spec.name == name), None)

    async def run(self) -> None:
        """Read all inputs until cancelled; one that stops leaves the others alone."""
        async with asyncio.TaskGroup() as running:
            for each in self.inputs:
                running.create_task(self._run(each))

    async def seek(
        self, each: Input, to: SeekTo, partition: int | None, *, reads_past_window: bool
    ) -> dict[int, Offset]:
        """Have partitions read on elsewhere; see Seeks."""
        log = self._open_log(each.spec)
        seeks = Seeks(each.spec, log, each.control, self._group_of(each))
        since_ms = self._ingest.clock.now_ms() - round(self._window_s * 1000)
        try:
            return await seeks.seek(to, partition, since_ms=since_ms, reads_past_window=reads_past_window)
        finally:
            log.close()

    async def _run(self, each: Input) -> None:
        while True:
            log = self._open_log(each.spec)
            errors: BaseException | None = None
            try:
                await self._read(each, log)
            except* (InputStoppedError, ConfigurationError) as group:
                errors = group
                while isinstance(errors, BaseExceptionGroup):
                    errors = errors.exceptions[0]
                each.stopped = str(errors)
            finally:
                log.close()
            self._shares.stop(each.spec.name)
            logger.error("an input is stopped", input=each.spec.name, reason=each.stopped)
            resumes, is_to_note = each.control.told.resumes, isinstance(errors, NotedStopError)
            while each.control.told.resumes == resumes:
                is_to_note = is_to_note and not await self._note_stop(each, resumes)
                await asyncio.sleep(CONTROL_POLL_S)
                await self._look(each)
            each.stopped = None
            each.counts = {}
            each.partitions = {}
            self._shares.resume(each.spec.name)
            logger.warning("an input is resumed", input=each.spec.name)

    async def _note_stop(self, each: Input, resumes: int) -> bool:
        """Note why an input is stopped, so that it stays so; False if that failed."""
        try:
            await each.control.stop(str(each.stopped), resumes=resumes)
        except (RetriableError, ConfigurationError) as err:
            logger.debug("the stop of an input is not noted yet", input=each.spec.name, error=str(err))
            return False
        return True

    async def _look(self, each: Input) -> bool:
        """Learn what operators have told; False if nobody knows now."""
        try:
            await each.control.look()
        except (RetriableError, ConfigurationError) as err:
            logger.debug("what is told of an input is not known now", input=each.spec.name, error=str(err))
            return False
        return True

    async def _look_until_known(self, each: Input) -> None:
        is_known = False
        while not is_known:
            is_known = await self._look(each)
            await asyncio.sleep(0 if is_known else RETRY_S)

    async def _follow(self, each: Input) -> None:
        while True:
            _check_told(each)
            await asyncio.sleep(CONTROL_POLL_S)
            await self._look(each)

    def _group_of(self, each: Input) -> str:
        return f"gateway-{self._topic}-input-{each.spec.name}"

    async def _read(self, each: Input, log: InputLog) -> None:
        """Read the partitions that are this process's, those that are added later, too."""
        await self._look_until_known(each)
        _check_told(each)
        topic = await self._topic_of(each, log)
        notes = InputNotes(self._store, self._topic, each.spec.name)
        partitions = await self._partitions_of(each, log)
        first = await self._first_start(each, notes, FirstStart(topic.topic_id, partitions))
        admission = InputAdmission(self._ingest, each.spec, topic, self._memory)
        readers: dict[int, asyncio.Task[None]] = {}
        looked_at = self._ingest.clock.monotonic()
        async with asyncio.TaskGroup() as running:
            running.create_task(self._follow(each))
            while True:
                if self._ingest.clock.monotonic() - looked_at >= PARTITIONS_POLL_S:
                    partitions = await self._partitions_of(each, log)
                    looked_at = self._ingest.clock.monotonic()
                self._shares.offer(each.spec.name, partitions)
                mine = {n for n in range(partitions) if self._shares.is_mine(each.spec.name, n)}
                await _end([readers.pop(number) for number in readers.keys() - mine])
                each.partitions = {n: reader for n, reader in each.partitions.items() if n in mine}
                for number in sorted(mine - readers.keys()):
                    place = Place(
                        each.spec,
                        self._group_of(each),
                        topic.topic_id,
                        number,
                        partitions,
                        self._window_s,
                        is_younger=number >= first.partitions,
                    )
                    each.partitions[number] = reader = InputPartition(
                        place,
                        log,
                        notes,
                        each.control,
                        admission,
                        each.counts.setdefault(number, Counts()),
                        clock=self._ingest.clock,
                        may_commit=lambda: self._shares.is_heard,
                    )
                    readers[number] = running.create_task(reader.run())
                await asyncio.sleep(SHARES_POLL_S)

    async def _partitions_of(self, each: Input, log: InputLog) -> int:
        while True:
            try:
                if partitions := await log.partitions_of(each.spec.topic):
                    return partitions
            except RetriableError:
                logger.debug("partitions of an input are not known yet", input=each.spec.name)
            await asyncio.sleep(RETRY_S)

    async def _first_start(self, each: Input, notes: InputNotes, now: FirstStart) -> FirstStart:
        """
        Note that a topic is read, and return what was noted when it first was.

        Kafka deletes what is committed for a topic with it: the note alone tells one that was made anew.

        Raises InputStoppedError: it was made anew.
        """
        while True:
            try:
                noted = await notes.first_start(now)
            except RetriableError as err:
                logger.warning("an input cannot be noted yet", input=each.spec.name, error=str(err))
                await asyncio.sleep(RETRY_S)
                continue
            if noted.topic_id != now.topic_id:
                raise InputStoppedError(
                    f"topic {each.spec.topic} was made anew: its id was {noted.topic_id} when it was read, "
                    f"and is {now.topic_id}; to read the new one, give the input another name"
                )
            return noted

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


def _check_told(each: Input) -> None:
    """Raise InputStoppedError if it is noted that the input must not be read on."""
    if each.control.told.stop:
        raise InputStoppedError(each.control.told.stop)


async def _end(readers: Iterable["asyncio.Task[None]"]) -> None:
    """End readers of partitions that others read from now on, with a last commit each."""
    ending = list(readers)
    for reader in ending:
        reader.cancel()
    if ending:
        await asyncio.wait(ending)
