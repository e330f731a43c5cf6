"""
A worker's place in a group, by Kafka's classic group protocol.

    find the coordinator -> JoinGroup -> (the leader assigns) -> SyncGroup -> Heartbeat, Heartbeat, ...

It is spoken here and not by aiokafka's consumer, which retries inside, wants to be polled, and may wait for
ever. Each request is sent once, on a connection of the group's own, and bounded. Whatever fails, the
coordinator is looked for again after a pause. A connection that broke costs no place in the group: a member
goes on under its name and generation until the coordinator says that it knows neither.
"""

import asyncio
import math
import random
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.group import HeartbeatRequest_v1, LeaveGroupRequest_v1

from dedupe.adapters.kafka_client import KafkaConfig
from dedupe.adapters.kafka_cluster import GROUP_AUTHORIZATION_FAILED, KafkaCluster, unauthorized
from dedupe.adapters.kafka_connection import Connection
from dedupe.adapters.kafka_group_wire import (
    Joined,
    decide,
    join_request,
    read_joined,
    read_share,
    sync_request,
)
from dedupe.adapters.kafka_wire import request_of
from dedupe.cancellation import is_own_cancellation
from dedupe.clock import Clock
from dedupe.errors import GatewayError, RetriableError
from dedupe.group.assignment import Member
from dedupe.group.membership import Describe, Take

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The longest answer tells the leader of all members: 50 that claim 1,024 lanes each take less than 1 MiB."""
UNKNOWN_MEMBER_CODES = frozenset({25, 82})  # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79
NO_GENERATION = -1
NO_NAME = ""
REBALANCE_AGAIN_S = 0.1
"""Between joining and joining again because others joined meanwhile."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """
    How long things take, in seconds.

    Measured with these, and Kafka's `group.initial.rebalance.delay.ms` of 3 s, until all agree: three
    workers that begin a group 3.0 s, one that joins or leaves 0.5 s, one that is killed and restarted at
    once 3.0 s, one that is killed 6.1 s.
    """

    session_s: float = 6.0
    """Who is silent for as long is out; brokers take no less by default."""
    rebalance_s: float = 3.0
    """Who has not joined anew by then is out: what a restart after a kill costs, as nobody joins for the
    dead one. With less, workers are put out whose event loop stands still for a moment."""
    heartbeat_s: float = 0.5
    """Members learn of a rebalance by their next heartbeat: what joining and leaving costs."""
    retry_s: float = 0.5
    """From half to one and a half of it pass after a failure; and all of it between two wishes to rejoin."""

    @property
    def answer_s(self) -> float:
        """How long any answer may take that nobody else is waited for."""
        return self.session_s / 2

    @property
    def join_s(self) -> float:
        """How long JoinGroup may take: until all have joined or are out, in a new group longer."""
        return self.session_s + self.rebalance_s


class KafkaMembership:
    """See Membership."""

    def __init__(
        self,
        config: KafkaConfig,
        cluster: KafkaCluster,
        group: str,
        lanes: int,
        *,
        times: GroupTimes | None = None,
        standbys: bool,
        clock: Clock,
    ) -> None:
        """Connect to nothing yet; a worker's start is now."""
        self.unreadable = 0
        """Members and assignments that could not be read."""
        self._config = config
        self._cluster = cluster
        self._group = group
        self._lanes = lanes
        self._times = times or GroupTimes()
        self._standbys = standbys
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._dice = random.Random()
        self._connection: Connection | None = None
        self._name = NO_NAME  # the coordinator's, for this member
        self._generation = NO_GENERATION  # the coordinator's
        self._told = 0  # the last generation that was taken
        self._heard_at = -math.inf
        self._joined_at = -math.inf
        self._wish = asyncio.Event()
        self._problems: set[str] = set()  # kinds of them that were logged in this outage

    @property
    def silence_s(self) -> float:
        """See Membership; infinite before the first answer. While others join it grows to `join_s`."""
        return self._clock.monotonic() - self._heard_at

    async def run(self, describe: Describe, take: Take) -> None:
        """See Membership."""
        try:
            while True:
                try:
                    self._connection = await self._connected()
                    await self._be_member(self._connection, describe, take)
                except (Exception, asyncio.CancelledError) as err:  # a worker without a group is worth less
                    if is_own_cancellation(err):
                        raise
                    self._report(err)
                self._disconnect()
                await asyncio.sleep(self._times.retry_s * self._dice.uniform(0.5, 1.5))
        finally:
            self._disconnect()

    def rejoin(self) -> None:
        """See Membership."""
        self._wish.set()

    async def leave(self) -> None:
        """See Membership; takes `answer_s` at most."""
        name, self._name, self._generation = self._name, NO_NAME, NO_GENERATION
        if name == NO_NAME:
            return
        connection: Connection | None = None  # its own: `run` may not have ended yet
        try:
            async with asyncio.timeout(self._times.answer_s):
                connection = await self._connected()
                request = LeaveGroupRequest_v1(self._group, name)
                answer = await self._ask(connection, request, self._times.answer_s)
            self._judge(answer.error_code)
        except Exception as err:
            log.warning("did not leave the group of workers", group=self._group, problem=repr(err))
        finally:
            if connection is not None:
                connection.close()

    async def _connected(self) -> Connection:
        """Return a connection to the group's coordinator."""
        found = await self._cluster.coordinator_of(self._group, CoordinationType.GROUP)
        if found is None:
            raise RetriableError("the group has no coordinator yet")
        async with asyncio.timeout(self._times.answer_s):
            return await Connection.open(self._config, *found, answer_bytes_max=ANSWER_BYTES_MAX)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _be_member(self, connection: Connection, describe: Describe, take: Take) -> None:
        """Join, stay, and join again, until something fails."""
        while True:
            if self._generation == NO_GENERATION:
                await self._join(connection, describe, take)
            else:
                await self._stay(connection)

    async def _join(self, connection: Connection, describe: Describe, take: Take) -> None:
        """Take part in one rebalance; without a generation after it if another one has begun."""
        self._wish.clear()
        joined = await self._joined(connection, describe)
        self._hear(self._clock.monotonic())
        shares = self._decided(joined) if joined.leader == joined.member else []
        asked_at = self._clock.monotonic()
        timeout_s = self._times.rebalance_s + self._times.answer_s
        answer = await self._ask(connection, sync_request(self._group, joined, shares), timeout_s)
        if answer.error_code == REBALANCE_IN_PROGRESS:
            await asyncio.sleep(REBALANCE_AGAIN_S)
            return
        self._judge(answer.error_code)
        self._generation, self._joined_at = joined.generation, self._clock.monotonic()
        self._hear(asked_at)
        self._recover()
        self._take(answer.member_assignment, take)

    async def _joined(self, connection: Connection, describe: Describe) -> Joined:
        """Join; a new member is given a name first, so that none is left behind by a lost answer."""
        told = describe()._replace(started_ms=self._started_ms, generation=self._told)
        joined = await self._ask_to_join(connection, told)
        if joined.code == MEMBER_ID_REQUIRED:
            self._name = joined.member
            joined = await self._ask_to_join(connection, told)
        self._judge(joined.code)
        self._name = joined.member
        return joined

    async def _ask_to_join(self, connection: Connection, told: Member) -> Joined:
        times = self._times
        request = join_request(
            self._group, self._name, told, session_s=times.session_s, rebalance_s=times.rebalance_s
        )
        return read_joined(await self._ask(connection, request, times.join_s))

    async def _stay(self, connection: Connection) -> None:
        """Send heartbeats until it is time to join again."""
        while not await self._is_wished():
            asked_at = self._clock.monotonic()
            request = HeartbeatRequest_v1(self._group, self._generation, self._name)
            answer = await self._ask(connection, request, self._times.answer_s)
            if answer.error_code == REBALANCE_IN_PROGRESS:
                self._hear(asked_at)
                break
            self._judge(answer.error_code)
            self._hear(asked_at)
            self._recover()
        self._generation = NO_GENERATION

    async def _is_wished(self) -> bool:
        """Wait for the next heartbeat, or return earlier that this worker has something to tell."""
        try:
            async with asyncio.timeout(self._times.heartbeat_s):
                await self._wish.wait()
        except TimeoutError:
            return False
        # Each wish has everybody join again, so there is a while between two.
        await asyncio.sleep(self._joined_at + self._times.retry_s - self._clock.monotonic())
        return True

    def _decided(self, joined: Joined) -> list[tuple[str, bytes]]:
        """Decide for the whole group; say who could not be counted on."""
        decision = decide(joined, self._lanes, standbys=self._standbys)
        if decision.unreadable:
            self.unreadable += decision.unreadable
            log.warning(
                "members of the group tell nothing that can be read, and get no lanes",
                group=self._group,
                members=decision.unreadable,
            )
        for worker in decision.outdated:
            log.warning(
                "two workers have the same name: only the one that started last gets lanes",
                group=self._group,
                worker=worker,
            )
        return decision.shares

    def _take(self, share: bytes | None, take: Take) -> None:
        """Pass on what is assigned, once."""
        try:
            assignment = read_share(share, self._lanes)
        except ValueError as err:
            self.unreadable += 1
            log.error("the leader's assignment cannot be read", group=self._group, problem=str(err))
            return
        if assignment.generation > self._told:
            self._told = assignment.generation
            take(assignment.generation, assignment)

    async def _ask(self, connection: Connection, request: RequestStruct, timeout_s: float) -> Any:
        """Return the answer to a request. Raises KafkaError, TimeoutError, ValueError."""
        async with asyncio.timeout(timeout_s):
            answer = await connection.ask(request_of(request))
        return request.RESPONSE_TYPE.decode(answer)

    def _judge(self, code: int) -> None:
        """Raise what an error code means, and forget what the coordinator does not know."""
        if code in UNKNOWN_MEMBER_CODES:
            self._name = NO_NAME
        if code in UNKNOWN_MEMBER_CODES or code == ILLEGAL_GENERATION:
            self._generation = NO_GENERATION
        if code == GROUP_AUTHORIZATION_FAILED:
            raise unauthorized(self._group)
        if code != 0:
            raise for_code(code)(f"the coordinator answers with error {code}")

    def _hear(self, at: float) -> None:
        self._heard_at = max(self._heard_at, at)

    def _report(self, err: BaseException) -> None:
        """Log each kind of problem once in an outage."""
        kind = type(err).__name__
        if kind in self._problems:
            return
        self._problems.add(kind)
        if isinstance(err, KafkaError | OSError | GatewayError | ValueError):
            problem = str(err) if isinstance(err, GatewayError) else repr(err)
            log.warning("no place in the group of workers", group=self._group, problem=problem)
        else:
            log.error("the group of workers cannot be taken part in", group=self._group, exc_info=err)

    def _recover(self) -> None:
        if self._problems:
            self._problems.clear()
            log.info("in the group of workers again", group=self._group)
