"""
Claim: whatever a group's coordinator answers, or does not, a worker goes on trying in measure, says so
once, and is a member again when it may be. In virtual time, against a scripted coordinator.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from random import Random
from typing import Any, cast

import pytest
from aiokafka.protocol.admin import ApiVersionRequest_v0
from aiokafka.protocol.api import RequestHeader_v1

from dedupe.cluster.assignment import Assignment, Member
from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.cluster import KafkaCluster
from dedupe.storage.kafka.config import Address
from dedupe.storage.kafka.group import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    REBALANCE_AGAIN_S,
    REBALANCE_IN_PROGRESS,
    GroupTimes,
    KafkaMembership,
)
from tests.support.settings import kafka_config
from tests.support.sim_kafka_net import API_VERSIONS, SPOKEN, STRUCTS, SimTransport, encoded
from tests.support.virtual_time import VirtualTimeLoop

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
EACH = pytest.mark.parametrize("api", [JOIN, SYNC, HEARTBEAT], ids=["join", "sync", "heartbeat"])
CODES = range(-1, 121)
UNKNOWN_SERVER_ERROR, COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID = -1, 15, 25
ADDRESS = Address("coordinator", 9092)
TIMES = GroupTimes()
LANES = 3
NAME = "worker-1"

Answer = int | bytes | None
"""An error code, a body, or silence."""

MEMBER_FOR_A_MOMENT = (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS)
LASTING: list[Answer] = [
    UNKNOWN_SERVER_ERROR,
    COORDINATOR_NOT_AVAILABLE,
    ILLEGAL_GENERATION,
    UNKNOWN_MEMBER_ID,
    REBALANCE_IN_PROGRESS,
    MEMBER_ID_REQUIRED,
    b"",
    None,
]


class LoopClock:
    """The time of the virtual loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)


class Coordinator:
    """A group of one, unless something else is due."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.seen: Counter[int] = Counter()
        self.due: dict[int, list[Answer]] = {}
        self.always: dict[int, Answer] = {}
        self.is_found = True
        self.is_garbled = False
        self.transports: list[SimTransport] = []
        self._generation = 0
        loop.listeners[ADDRESS.host, ADDRESS.port] = self._accept

    async def coordinator_of(self, _name: str, _kind: int) -> Address | None:
        """As of KafkaCluster."""
        self.seen[0] += 1
        if not self.is_found:
            raise RetriableError("Kafka does not answer")
        return ADDRESS

    def distrust(self, _broker: Address) -> None:
        """As of KafkaCluster: there is no other broker."""

    def _accept(self, protocol: asyncio.Protocol) -> SimTransport:
        transport = SimTransport(protocol, self._handle)
        self.transports.append(transport)
        return transport

    async def _handle(self, transport: SimTransport, frame: bytes) -> None:
        await asyncio.sleep(0)
        buffer = BytesIO(frame)
        header: Any = RequestHeader_v1.SCHEMA.decode(buffer)
        api, version, correlation_id, _ = header
        if api == API_VERSIONS:
            spoken = ApiVersionRequest_v0.RESPONSE_TYPE(0, [(key, *each) for key, each in SPOKEN.items()])
            transport.reply(struct.pack(">i", correlation_id) + encoded(spoken))
            return
        self.seen[api] += 1
        answer: Answer = 0
        if api in self.always:
            answer = self.always[api]
        elif self.due.get(api):
            answer = self.due[api].pop(0)
        if isinstance(answer, int):
            answer = encoded(self._answer(api, STRUCTS[api, version].decode(buffer), answer))
        if answer is not None:
            transport.reply(struct.pack(">i", correlation_id) + answer)

    def _answer(self, api: int, request: Any, code: int) -> Any:
        kind = request.RESPONSE_TYPE
        if api == JOIN:
            if not request.member_id:
                code = code or MEMBER_ID_REQUIRED
            self._generation += code == 0
            ((protocol, told),) = request.group_protocols
            return kind(0, code, self._generation, protocol, NAME, NAME, [(NAME, None, told)])
        if api == SYNC:
            share = dict(request.group_assignment).get(NAME, b"")
            return kind(0, code, b"garbled" if self.is_garbled else share)
        return kind(0, code)


class Worker:
    """A member, and what it took."""

    def __init__(self, coordinator: Coordinator, *, can_describe: bool = True) -> None:
        self.membership = KafkaMembership(
            kafka_config(""),
            cast(KafkaCluster, coordinator),
            "workers",
            LANES,
            standbys=True,
            clock=LoopClock(),
        )
        self.taken: list[int] = []
        self.can_describe = can_describe
        self.task = asyncio.ensure_future(self.membership.run(self.describe, self.take))

    def describe(self) -> Member:
        if not self.can_describe:
            raise ZeroDivisionError
        return Member("a", "a:1")

    def take(self, generation: int, assignment: Assignment) -> None:
        assert assignment.owners == ("a",) * LANES
        self.taken.append(generation)

    async def is_member(self) -> None:
        """Wait for the next answer that it is."""
        now = asyncio.get_running_loop().time()
        await until(lambda: self.membership._answered_at > now)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.05)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    coordinator = Coordinator(loop)
    yield coordinator
    assert all(transport.is_closing() for transport in coordinator.transports)
    works = [transport.work for transport in coordinator.transports]
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


@pytest.fixture
def can_describe() -> bool:
    return True


@pytest.fixture
async def worker(coordinator: Coordinator, can_describe: bool) -> AsyncIterator[Worker]:
    worker = Worker(coordinator, can_describe=can_describe)
    yield worker
    worker.task.cancel()
    await asyncio.gather(worker.task, return_exceptions=True)


@EACH
async def test_any_error_is_outlived(coordinator: Coordinator, worker: Worker, api: int) -> None:
    for code in CODES:
        coordinator.due[api] = [code]
        worker.membership.rejoin()
        await until(lambda: not coordinator.due[api])
        await worker.is_member()
    assert worker.taken == sorted(set(worker.taken))


@EACH
async def test_any_answer_is_outlived(coordinator: Coordinator, worker: Worker, api: int) -> None:
    rng = Random(1)
    garbage = [rng.randbytes(rng.randrange(40)) for _ in range(200)]
    for answer in [b"", bytes(60), b"\xff" * 60, b"\0" * 10 + b"\x7f" * 40, *garbage]:
        coordinator.due[api] = [answer]
        worker.membership.rejoin()
        await until(lambda: not coordinator.due[api])
        await worker.is_member()


@EACH
@pytest.mark.parametrize("answer", LASTING, ids=str)
async def test_refusal_that_stays_is_met_with_patience(
    coordinator: Coordinator, worker: Worker, api: int, answer: Answer
) -> None:
    await worker.is_member()
    coordinator.always[api] = answer
    worker.membership.rejoin()
    await asyncio.sleep(5)
    coordinator.seen.clear()

    await asyncio.sleep(60)

    assert 1 <= coordinator.seen[api] <= 60 / REBALANCE_AGAIN_S
    if (api, answer) != (SYNC, REBALANCE_IN_PROGRESS):  # after which others wait for it to join
        assert coordinator.seen[api] <= 60 / TIMES.retry_s * 3
    if api == HEARTBEAT and answer not in MEMBER_FOR_A_MOMENT:
        assert worker.membership.silence_s > 60
    coordinator.always.clear()
    await worker.is_member()


async def test_cluster_that_does_not_answer_is_asked_in_measure(
    coordinator: Coordinator, worker: Worker
) -> None:
    await worker.is_member()
    coordinator.is_found = False
    for transport in coordinator.transports:
        transport.close()
    await asyncio.sleep(5)
    coordinator.seen.clear()

    await asyncio.sleep(60)

    assert 60 / TIMES.retry_s / 2 < coordinator.seen[0] < 60 / TIMES.retry_s * 2
    assert coordinator.seen.total() == coordinator.seen[0]
    coordinator.is_found = True
    await worker.is_member()
    assert len(worker.taken) == 1  # its place was kept


async def test_silence_is_counted_from_the_question(coordinator: Coordinator, worker: Worker) -> None:
    assert worker.membership.silence_s == float("inf")
    await worker.is_member()
    assert worker.membership.silence_s < 2 * TIMES.heartbeat_s
    coordinator.always[HEARTBEAT] = None

    await asyncio.sleep(10)

    assert 10 <= worker.membership.silence_s < 10 + 2 * TIMES.heartbeat_s


@pytest.mark.regression("A coordinator that answered, and whose group never completed, looked well.")
@pytest.mark.parametrize(
    ("api", "answer"), [(SYNC, REBALANCE_IN_PROGRESS), (JOIN, COORDINATOR_NOT_AVAILABLE)]
)
async def test_group_that_never_completes_is_told_although_its_coordinator_answers(
    coordinator: Coordinator, worker: Worker, api: int, answer: int
) -> None:
    await worker.is_member()
    assert worker.membership.joining_s == 0
    coordinator.always[api] = answer
    worker.membership.rejoin()

    await asyncio.sleep(60)

    assert 55 < worker.membership.joining_s <= 60
    coordinator.always.clear()
    await asyncio.sleep(5)
    assert worker.membership.joining_s == 0


async def test_assignment_that_cannot_be_decoded_is_none(coordinator: Coordinator, worker: Worker) -> None:
    await worker.is_member()
    coordinator.is_garbled = True
    worker.membership.rejoin()
    await asyncio.sleep(30)
    assert worker.membership.joining_s > 25


@pytest.mark.parametrize("can_describe", [False])
async def test_description_that_fails_is_asked_for_again(coordinator: Coordinator, worker: Worker) -> None:
    await asyncio.sleep(5)
    assert coordinator.seen[JOIN] == 0
    assert worker.membership.silence_s == float("inf")

    worker.can_describe = True

    await worker.is_member()


@EACH
async def test_cancelled_worker_ends_at_once_and_leaves_by_name(
    coordinator: Coordinator, worker: Worker, api: int
) -> None:
    await worker.is_member()
    coordinator.always[api] = None
    worker.membership.rejoin()
    await asyncio.sleep(TIMES.heartbeat_s + TIMES.retry_s)
    worker.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker.task
    assert coordinator.seen[LEAVE] == 0

    await worker.membership.leave()
    await worker.membership.leave()

    assert coordinator.seen[LEAVE] == 1


@pytest.mark.parametrize("answer", [UNKNOWN_MEMBER_ID, b"", None], ids=str)
async def test_leaving_ends_in_time_whatever_is_answered(
    coordinator: Coordinator, worker: Worker, answer: Answer
) -> None:
    await worker.is_member()
    worker.task.cancel()
    coordinator.always[LEAVE] = answer

    async with asyncio.timeout(TIMES.answer_s + 0.1):
        await worker.membership.leave()
