"""
A worker's membership in a group, by Kafka's classic group protocol.

    find the coordinator -> JoinGroup -> (the leader assigns) -> SyncGroup -> Heartbeat, Heartbeat, ...

aiokafka's consumer retries inside, has to be polled, and may wait without a bound. Here each request is sent
once, in bounded time, on a connection of the group's own. After any failure the coordinator is looked up
again, with a pause. A broken connection does not end the membership: a member keeps its id and generation
until the coordinator says that it does not know them.
"""

import asyncio
import math
import random
from dataclasses import dataclass

import structlog
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.group import HeartbeatRequest_v1, LeaveGroupRequest_v1

from dedupe.cancellation import is_own_cancellation
from dedupe.cluster.assignment import Member
from dedupe.cluster.membership import Describe, MemberPlace, Take
from dedupe.model.clock import Clock
from dedupe.model.errors import GatewayError, RetriableError
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.cluster import GROUP_AUTHORIZATION_FAILED, KafkaCluster, unauthorized
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.group_wire import (
    Joined,
    decide,
    join_request,
    read_joined,
    read_share,
    sync_request,
)

RESPONSE_BYTES_MAX = 4 * 1024 * 1024
"""The longest response lists all members for the leader: 50 with 1,024 lanes each take less than 1 MiB."""
UNKNOWN_MEMBER_CODES = frozenset({25, 82})  # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 27, 79
NO_GENERATION = -1
NO_MEMBER_ID = ""
REBALANCE_AGAIN_S = 0.1
"""Before a member joins again because others joined meanwhile."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """
    Time limits of a membership, in seconds.

    With these, and Kafka's `group.initial.rebalance.delay.ms` of 3 s, all members agree after 3.0 s where
    three workers begin a group, 0.5 s where one joins or leaves, 3.0 s where one is killed and restarted at
    once, and 6.1 s where one is killed.
    """

    session_s: float = 6.0
    """A member that is silent for longer is removed; brokers allow no less by default."""
    rebalance_s: float = 3.0
    """A member that has not joined again by then is removed: the delay after a kill and restart. Less would
    remove workers whose event loop pauses for a moment."""
    heartbeat_s: float = 0.5
    """Members learn of a rebalance by their next heartbeat: the delay of joining and leaving."""
    retry_s: float = 0.5
    """The pause after a failure is 0.5 to 1.5 times this; the one between two requests to rejoin is this."""

    @property
    def answer_s(self) -> float:
        """The limit of a request that waits for no other member."""
        return self.session_s / 2

    @property
    def join_s(self) -> float:
        """The limit of JoinGroup, which waits until all members have joined or are removed."""
        return self.session_s + self.rebalance_s


class KafkaMembership:
    """A worker's membership; implements Membership."""

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
        place: MemberPlace | None = None,
    ) -> None:
        """Connect to nothing yet; the worker's start is now, unless it goes on with a place in the group."""
        self.unreadable = 0
        """The number of members and assignments that could not be decoded."""
        self._config = config
        self._cluster = cluster
        self._group = group
        self._lanes = lanes
        self._times = times or GroupTimes()
        self._standbys = standbys
        self._clock = clock
        place = place or MemberPlace(NO_MEMBER_ID, 0, clock.now_ms())
        self._started_ms = place.started_ms
        self._rng = random.Random()
        self._connection: BrokerConnection | None = None
        self._coordinator: Address | None = None  # as found last
        self._member_id = place.member_id
        self._generation = NO_GENERATION  # the coordinator's
        self._assigned_generation = place.generation  # of the last assignment
        self._answered_at = -math.inf
        self._joined_at = -math.inf
        self._joining_since: float | None = None  # None once an assignment is taken
        self._rejoin = asyncio.Event()
        self._problems: set[str] = set()  # kinds of them that were logged in this outage

    @property
    def silence_s(self) -> float:
        """See Membership; infinite before the first answer. It grows to `join_s` while others join."""
        return self._clock.monotonic() - self._answered_at

    @property
    def joining_s(self) -> float:
        """See Membership. Below `join_s` in a group that completes, whatever befalls its members."""
        since = self._joining_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def place(self) -> MemberPlace | None:
        if self._member_id == NO_MEMBER_ID:
            return None
        return MemberPlace(self._member_id, self._assigned_generation, self._started_ms)

    async def run(self, describe: Describe, take: Take) -> None:
        try:
            while True:
                try:
                    self._connection = await self._connected()
                    await self._be_member(self._connection, describe, take)
                except (Exception, asyncio.CancelledError) as err:
                    if is_own_cancellation(err):
                        raise
                    self._report(err)
                    if isinstance(err, KafkaError | OSError) and self._coordinator is not None:
                        self._cluster.distrust(self._coordinator)
                self._disconnect()
                await asyncio.sleep(self._times.retry_s * self._rng.uniform(0.5, 1.5))
        finally:
            self._disconnect()

    def rejoin(self) -> None:
        self._rejoin.set()

    async def leave(self) -> None:
        """See Membership; takes `answer_s` at most."""
        member_id, self._member_id, self._generation = self._member_id, NO_MEMBER_ID, NO_GENERATION
        if member_id == NO_MEMBER_ID:
            return
        connection: BrokerConnection | None = None  # its own: `run` may not have ended yet
        try:
            async with asyncio.timeout(self._times.answer_s):
                connection = await self._connected()
                answer = await connection.send(LeaveGroupRequest_v1(self._group, member_id))
            self._raise_for_code(answer.error_code)
        except Exception as err:
            logger.warning("did not leave the group of workers", group=self._group, problem=repr(err))
        finally:
            if connection is not None:
                connection.close()

    async def _connected(self) -> BrokerConnection:
        """Return a connection to the group's coordinator."""
        self._coordinator = None
        coordinator = await self._cluster.coordinator_of(self._group, CoordinationType.GROUP)
        if coordinator is None:
            raise RetriableError("the group has no coordinator yet")
        self._coordinator = coordinator
        async with asyncio.timeout(self._times.answer_s):
            return await BrokerConnection.open(
                self._config, coordinator, response_bytes_max=RESPONSE_BYTES_MAX
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _be_member(self, connection: BrokerConnection, describe: Describe, take: Take) -> None:
        """Join, stay, and join again, until something fails, or the connection's login is about to end."""
        while connection.is_usable:
            if self._generation == NO_GENERATION:
                await self._join(connection, describe, take)
            else:
                await self._stay(connection)

    async def _join(self, connection: BrokerConnection, describe: Describe, take: Take) -> None:
        """Take part in one rebalance; has no generation afterwards if another one has begun."""
        self._rejoin.clear()
        if self._joining_since is None:
            self._joining_since = self._clock.monotonic()
        joined = await self._joined(connection, describe)
        self._note_answer(self._clock.monotonic())
        shares = self._decided(joined) if joined.leader == joined.member else []
        asked_at = self._clock.monotonic()
        timeout_s = self._times.rebalance_s + self._times.answer_s
        answer = await connection.send(sync_request(self._group, joined, shares), timeout_s=timeout_s)
        if answer.error_code == REBALANCE_IN_PROGRESS:
            await asyncio.sleep(REBALANCE_AGAIN_S)
            return
        self._raise_for_code(answer.error_code)
        self._generation, self._joined_at = joined.generation, self._clock.monotonic()
        self._note_answer(asked_at)
        self._recover()
        self._take(answer.member_assignment, take)

    async def _joined(self, connection: BrokerConnection, describe: Describe) -> Joined:
        """Join; a new member receives its id first, so that a lost answer leaves no unknown member."""
        member = describe()._replace(started_ms=self._started_ms, generation=self._assigned_generation)
        joined = await self._ask_to_join(connection, member)
        if joined.code == MEMBER_ID_REQUIRED:
            self._member_id = joined.member
            joined = await self._ask_to_join(connection, member)
        self._raise_for_code(joined.code)
        self._member_id = joined.member
        return joined

    async def _ask_to_join(self, connection: BrokerConnection, member: Member) -> Joined:
        times = self._times
        request = join_request(
            self._group, self._member_id, member, session_s=times.session_s, rebalance_s=times.rebalance_s
        )
        return read_joined(await connection.send(request, timeout_s=times.join_s))

    async def _stay(self, connection: BrokerConnection) -> None:
        """Send heartbeats until it is time to join again."""
        while not await self._is_rejoin_requested():
            if not connection.is_usable:
                return
            asked_at = self._clock.monotonic()
            request = HeartbeatRequest_v1(self._group, self._generation, self._member_id)
            answer = await connection.send(request, timeout_s=self._times.answer_s)
            if answer.error_code == REBALANCE_IN_PROGRESS:
                self._note_answer(asked_at)
                break
            self._raise_for_code(answer.error_code)
            self._note_answer(asked_at)
            self._recover()
        self._generation = NO_GENERATION

    async def _is_rejoin_requested(self) -> bool:
        """Wait for the next heartbeat; true, and earlier, if this worker's description has changed."""
        try:
            async with asyncio.timeout(self._times.heartbeat_s):
                await self._rejoin.wait()
        except TimeoutError:
            return False
        # Each request makes all members join again, so two are some time apart.
        await asyncio.sleep(self._joined_at + self._times.retry_s - self._clock.monotonic())
        return True

    def _decided(self, joined: Joined) -> list[tuple[str, bytes]]:
        """Decide for the whole group; log the members without a part in it."""
        decision = decide(joined, self._lanes, standbys=self._standbys)
        if decision.unreadable:
            self.unreadable += decision.unreadable
            logger.warning(
                "descriptions of group members cannot be decoded: they get no lanes",
                group=self._group,
                members=decision.unreadable,
            )
        for worker in decision.outdated:
            logger.warning(
                "two workers have the same name: only the later one gets lanes",
                group=self._group,
                worker=worker,
            )
        return decision.shares

    def _take(self, share: bytes | None, take: Take) -> None:
        """Pass a new assignment on, once."""
        try:
            assignment = read_share(share, self._lanes)
        except ValueError as err:
            self.unreadable += 1
            logger.error("the leader's assignment cannot be decoded", group=self._group, problem=str(err))
            return
        self._joining_since = None
        if assignment.generation > self._assigned_generation:
            self._assigned_generation = assignment.generation
            take(assignment.generation, assignment)

    def _raise_for_code(self, code: int) -> None:
        """Raise the error of a code, and forget the ids that the coordinator does not know."""
        if code in UNKNOWN_MEMBER_CODES:
            self._member_id = NO_MEMBER_ID
        if code in UNKNOWN_MEMBER_CODES or code == ILLEGAL_GENERATION:
            self._generation = NO_GENERATION
        if code == GROUP_AUTHORIZATION_FAILED:
            raise unauthorized(self._group)
        if code != 0:
            raise for_code(code)(f"the coordinator answers with error {code}")

    def _note_answer(self, at: float) -> None:
        self._answered_at = max(self._answered_at, at)

    def _report(self, err: BaseException) -> None:
        """Log each kind of problem once in an outage."""
        kind = type(err).__name__
        if kind in self._problems:
            return
        self._problems.add(kind)
        if isinstance(err, KafkaError | OSError | GatewayError):
            problem = str(err) if isinstance(err, GatewayError) else repr(err)
            logger.warning("not a member of the group of workers", group=self._group, problem=problem)
        else:
            logger.error("the group of workers cannot be joined", group=self._group, exc_info=err)

    def _recover(self) -> None:
        if self._problems:
            self._problems.clear()
            logger.info("a member of the group of workers again", group=self._group)
