"""
Claim: on a real broker the workers of a group agree on one assignment, whoever joins, leaves, is killed or
has a copy, and whatever strangers in the group say.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.group import JoinGroupRequest_v5, LeaveGroupRequest_v1, SyncGroupRequest_v3

from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.group import GroupTimes, KafkaMembership
from dedupe.storage.kafka.group_wire import PROTOCOL, PROTOCOL_TYPE
from tests.support.cancellation import cancelled_at
from tests.support.group import ENDLESS, LANES, Group, group_at
from tests.support.kafka import create_topic
from tests.support.waiting import until_async

TIMES = GroupTimes()
GARBAGE = b"\x00\xffnobody can read this"
MANY = 30


@pytest.fixture
async def group(kafka_bootstrap: str) -> AsyncIterator[Group]:
    async with group_at(kafka_bootstrap) as group:
        yield group


@pytest.fixture
async def endless_group(kafka_bootstrap: str) -> AsyncIterator[Group]:
    """A group in which whoever waits for the end of a session waits for too long."""
    async with group_at(kafka_bootstrap, times=ENDLESS) as group:
        yield group


async def test_one_worker_owns_everything(group: Group) -> None:
    (worker,) = await group.of("a")

    assert worker.lanes == set(range(LANES))
    await until_async(lambda: worker.membership.silence_s < TIMES.session_s)


async def test_workers_are_told_the_same_and_own_alike(group: Group) -> None:
    workers = await group.of("a", "b", "c")

    for _ in range(3):  # what moves is followed first
        workers[0].membership.rejoin()
        generation = workers[0].generation
        await until_async(lambda: workers[0].generation > generation)  # noqa: B023 - waited for at once
        await group.agree(*workers)
    assert sorted(len(worker.lanes) for worker in workers) == [1, 2, 2]


async def test_worker_that_leaves_is_gone_before_its_session_ends_and_its_lanes_are_given_on(
    endless_group: Group,
) -> None:
    a, b, c = await endless_group.of("a", "b", "c")
    await c.cut_off()
    await c.membership.leave()

    await endless_group.agree(a, b)


async def test_worker_that_is_killed_is_gone_after_its_session(group: Group) -> None:
    a, b, c = await group.of("a", "b", "c")
    await c.cut_off()

    await group.agree(a, b)


async def test_restart_after_a_kill_waits_for_no_session(endless_group: Group) -> None:
    a, b = await endless_group.of("a", "b")
    await b.cut_off()
    again = endless_group.worker("b")

    await again.knows("a", "b")
    await endless_group.agree(a, again)


async def test_what_a_worker_has_to_tell_is_assigned_by(group: Group) -> None:
    a, b = await group.of("a", "b")
    b.told = {"is_leaving": True}
    a.told = {"followed": tuple(range(LANES))}

    a.membership.rejoin()

    await until_async(lambda: a.lanes == set(range(LANES)))
    await group.agree(a, b)


async def test_many_wishes_are_few_rebalances(group: Group) -> None:
    (worker,) = await group.of("a")
    before = worker.generation

    began_at = monotonic()
    for _ in range(100):
        worker.membership.rejoin()
        await asyncio.sleep(0.01)

    assert 1 <= worker.generation - before <= 1 + (monotonic() - began_at) / TIMES.retry_s


async def test_of_two_with_one_name_the_later_has_the_lanes_until_it_goes(group: Group) -> None:
    (first,) = await group.of("a")
    await asyncio.sleep(0.002)  # a start has its millisecond
    second = group.worker("a")

    await until_async(lambda: second.lanes == set(range(LANES)))
    await until_async(lambda: first.lanes == set())
    assert first.generation == second.generation

    await second.cut_off()
    await second.membership.leave()
    await until_async(lambda: first.lanes == set(range(LANES)))


async def test_large_group_agrees_on_many_lanes(kafka_bootstrap: str) -> None:
    async with group_at(kafka_bootstrap, lanes=1024) as group:
        await group.of(*(f"gateway-{n}.workers.production.svc.cluster" for n in range(MANY)))


class Stranger:
    """A member of the group that is no worker, and says what nobody can read."""

    def __init__(self, group: Group, connection: BrokerConnection) -> None:
        self._group = group
        self._connection = connection
        self._name = ""

    @classmethod
    async def at(cls, group: Group) -> "Stranger":
        (address,) = group.store.config.bootstrap_addresses()
        return cls(group, await BrokerConnection.open(group.store.config, address))

    async def rebalance(self) -> int:
        """Take part in one; return how many members this one decided for, with garbage."""
        while True:
            joined = await self._connection.send(
                JoinGroupRequest_v5(
                    self._group.name, 6000, 3000, self._name, None, PROTOCOL_TYPE, [(PROTOCOL, GARBAGE)]
                )
            )
            self._name = joined.member_id
            if joined.error_code != 0:
                continue
            shares = [(name, GARBAGE) for name, *_ in joined.members]
            synced = await self._connection.send(
                SyncGroupRequest_v3(self._group.name, joined.generation_id, self._name, None, shares)
            )
            if synced.error_code == 0:
                return len(shares)

    async def leave(self) -> None:
        await self.throw_out(self._name)
        self._connection.close()

    async def throw_out(self, member: str) -> None:
        """Have the coordinator forget a member, as it does when a session is over."""
        await self._connection.send(LeaveGroupRequest_v1(self._group.name, member))


async def test_worker_that_the_coordinator_has_forgotten_joins_as_a_new_member(group: Group) -> None:
    a, b = await group.of("a", "b")
    stranger, generation = await Stranger.at(group), b.generation

    await stranger.throw_out(b.membership._member_id)

    await until_async(lambda: b.generation > generation)
    await group.agree(a, b)
    await stranger.leave()


async def test_member_that_cannot_be_read_is_not_counted_on(group: Group) -> None:
    a, b = await group.of("a", "b")
    stranger, generation = await Stranger.at(group), a.generation

    await stranger.rebalance()

    await until_async(lambda: a.generation > generation)
    await group.agree(a, b)
    assert a.membership.unreadable + b.membership.unreadable >= 1
    await stranger.leave()


async def test_leader_that_cannot_be_read_is_outlived(group: Group) -> None:
    stranger = await Stranger.at(group)
    await stranger.rebalance()
    worker = group.worker("a")
    while await stranger.rebalance() < 2:
        await asyncio.sleep(0.02)

    await until_async(lambda: worker.membership.unreadable > 0)
    assert worker.taken == []

    await stranger.leave()
    await worker.knows("a")


@pytest.mark.regression("A cancellation out of a library ended the membership unseen.")
@pytest.mark.parametrize("number", range(1, 9))  # finds the coordinator, connects, joins, stays
async def test_cancellation_of_a_library_at_any_await_leaves_no_worker_without_its_group(
    number: int, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = KafkaMembership.run
    monkeypatch.setattr(KafkaMembership, "run", lambda *told: cancelled_at(number, run(*told)))

    await group.of("a", "b")


async def test_group_that_belongs_to_consumers_is_waited_for(group: Group) -> None:
    await create_topic(group.store.config.bootstrap_servers, group.topic)
    consumer = AIOKafkaConsumer(
        group.topic, bootstrap_servers=group.store.config.bootstrap_servers, group_id=group.name
    )
    await consumer.start()
    worker = group.worker("a")
    await until_async(lambda: bool(worker.membership._problems))
    assert worker.taken == []

    await consumer.stop()

    await worker.knows("a")
