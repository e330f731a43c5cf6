"""SimLog keeps the contract; its faults come from a seed and mean what the real ones mean."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from dedupe.model.errors import (
    FencedError,
    NotAppendedError,
    OutcomeUnknownError,
    RetriableError,
)
from dedupe.model.types import LogRecord, NewRecord
from dedupe.storage.log import Crashpoint
from tests.contract.decision_contract import DecisionContract, decided, decision
from tests.contract.log_contract import (
    PARTITIONS,
    LogContract,
    LogWorld,
    assert_holds,
    at,
    fenced,
    read_all,
    records_of,
)
from tests.support.sim.faults import NO_FAULTS, SimFaults
from tests.support.sim.sim_log import Request, SimLog, SimStore

TOPIC = "events"


class SimWorld(LogWorld):
    """A simulated log without faults."""

    def __init__(self) -> None:
        """Make the log."""
        super().__init__()
        self.topic = TOPIC
        self.store = store_of(NO_FAULTS)

    async def connect(self, crashpoint: Crashpoint) -> SimStore:
        """See LogWorld."""
        return self.store.another(crashpoint=crashpoint)

    async def trim(self, partition: int, first_kept: LogRecord) -> None:
        """See LogWorld."""
        self.store.trim(self.topic, partition, first_kept.offset)


def store_of(faults: SimFaults) -> SimStore:
    """Return a log with the topic of the tests."""
    store = SimStore(faults)
    store.create_topic(TOPIC, PARTITIONS)
    return store


@pytest.fixture
async def world() -> AsyncIterator[SimWorld]:
    world = SimWorld()
    yield world
    await world.close()


class TestSimLog(LogContract):
    """The contract."""


class TestSimDecisions(DecisionContract):
    """The contract."""


async def test_decision_in_doubt_is_there_after_the_next_fence_or_never() -> None:
    found = Counter[tuple[str, ...]]()
    for seed in range(200):
        store = SimStore(SimFaults(delay_append=0.3, lose_reply=0.2, unavailable=0.2, seed=seed))
        store.create_topic(TOPIC, 1)
        first, second = (store.deciding_log(TOPIC, 0) for _ in range(2))
        await decided(first)
        with suppress(RetriableError):
            await first.decide(decision("a"))
        now = await decided(second)
        for owner in (first, second):
            assert await decided(owner) == now
        found[tuple(now)] += 1

    assert set(found) == {(), ("a",)}


async def test_fence_takes_an_offset_for_its_marker(world: SimWorld) -> None:
    log = await fenced(world)

    assert [await log.append(records_of(0, 2)), await log.append(records_of(2, 3))] == [1, 3]
    assert await log.bounds() == (0, 6)
    assert await log.fence() == 7


async def test_refused_append_leaves_nothing(world: SimWorld) -> None:
    log = await fenced(world)
    world.store.rng.faults = SimFaults(refuse=1.0)
    with pytest.raises(NotAppendedError):
        await log.append(records_of(0, 4))
    world.store.rng.faults = NO_FAULTS

    assert await log.fence() == 2
    assert await log.append(records_of(0, 1)) == 2
    await assert_holds(log, at(2, records_of(0, 1)))


async def test_lost_reply_means_committed_but_unknown(world: SimWorld) -> None:
    log = await fenced(world)
    world.store.rng.faults = SimFaults(lose_reply=1.0)

    with pytest.raises(OutcomeUnknownError):
        await log.append(records_of(0, 4))

    await assert_holds(log, at(1, records_of(0, 4)))


async def test_lost_reply_of_a_fence_fences_nevertheless(world: SimWorld) -> None:
    first, second = await fenced(world), world.store.partition_log(TOPIC, 0)
    world.store.rng.faults = SimFaults(lose_reply=1.0)
    with pytest.raises(RetriableError):
        await second.fence()
    world.store.rng.faults = NO_FAULTS

    with pytest.raises(FencedError):
        await first.append(records_of(0, 1))
    with pytest.raises(NotAppendedError):
        await second.append(records_of(0, 1))


async def test_delayed_append_is_in_the_log_once_it_arrives(world: SimWorld) -> None:
    log = await fenced(world)
    await log.append(records_of(0, 1))
    world.store.rng.faults = SimFaults(delay_append=1.0)
    with pytest.raises(OutcomeUnknownError):
        await log.append(records_of(1, 3))

    ends = [(await log.bounds())[1] for _ in range(50)]

    assert set(ends) == {2, 5}
    assert ends == sorted(ends)
    await assert_holds(log, at(1, records_of(0, 4)))


async def test_what_is_not_seen_yet_is_seen_from_a_fence_on_at_the_latest(
    world: SimWorld,
) -> None:
    log = await fenced(world)
    await log.append(records_of(0, 1))
    world.store.rng.faults = SimFaults(delay_sight=1.0)
    assert await log.append(records_of(1, 3)) == 2
    assert world.store.partition(TOPIC, 0).high_watermark == 2

    end = await log.fence()

    assert await read_all(log, 0, end) == at(1, records_of(0, 4))


@pytest.mark.parametrize("seed", range(8))
async def test_delayed_append_of_a_zombie_is_decided_by_the_fence_for_ever(seed: int) -> None:
    store = store_of(SimFaults(seed, delay_append=1.0))
    zombie, successor = store.partition_log(TOPIC, 0), store.partition_log(TOPIC, 0)
    await zombie.fence()
    with pytest.raises(OutcomeUnknownError):
        await zombie.append(records_of(0, 3))

    end = await successor.fence()
    seen = await read_all(successor, 0, end)
    with pytest.raises(FencedError):
        store.partition(TOPIC, 0).arrive(Request(1, 1, records_of(0, 3)))

    assert seen in ([], at(1, records_of(0, 3)))
    for _ in range(20):
        await assert_holds(successor, seen)


async def test_delayed_appends_end_both_ways_over_some_seeds() -> None:
    ends = set()
    for seed in range(20):
        store = store_of(SimFaults(seed, delay_append=1.0))
        log = store.partition_log(TOPIC, 0)
        await log.fence()
        with pytest.raises(OutcomeUnknownError):
            await log.append(records_of(0, 3))
        ends.add(len(await read_all(log, 0, await log.fence())))

    assert ends == {0, 3}


async def test_lost_tail_gives_its_offsets_out_again_and_stops_the_writer(world: SimWorld) -> None:
    log = await fenced(world)
    await log.append(records_of(0, 3))
    await log.append(records_of(3, 3))

    world.store.lose_tail(TOPIC, 0, 2)

    assert await log.bounds() == (0, 5)
    with pytest.raises(NotAppendedError):
        await log.append(records_of(6, 1))
    end = await log.fence()
    assert await read_all(log, 0, end) == at(1, records_of(0, 4))


async def test_unavailable_log_takes_nothing(world: SimWorld) -> None:
    store = world.store
    log = store.partition_log(TOPIC, 0)
    await log.fence()
    store.is_available = False

    with pytest.raises(NotAppendedError):
        await log.append(records_of(0, 1))
    with pytest.raises(RetriableError):
        await log.fence()
    with pytest.raises(RetriableError):
        await log.bounds()
    with pytest.raises(RetriableError):
        await read_all(log, 0, 1)
    with pytest.raises(RetriableError):
        await log.offset_at(0)
    with pytest.raises(RetriableError):
        await store.partitions_of(TOPIC)
    with pytest.raises(RetriableError):
        await store.notes("pin", TOPIC)
    with pytest.raises(RetriableError):
        await store.note("pin", TOPIC, 0, "a")

    store.is_available = True
    assert await store.notes("pin", TOPIC) == {}
    assert await log.bounds() == (0, 1)


@pytest.mark.parametrize(
    ("faults", "kept"), [(SimFaults(unavailable=1.0), {}), (SimFaults(lose_reply=1.0), {0: "a"})]
)
async def test_note_that_failed_is_kept_only_if_its_reply_was_lost(
    faults: SimFaults, kept: dict[int, str], world: SimWorld
) -> None:
    world.store.rng.faults = faults
    with pytest.raises(RetriableError):
        await world.store.note("pin", TOPIC, 0, "a")
    world.store.rng.faults = NO_FAULTS

    assert await world.store.another().notes("pin", TOPIC) == kept


async def test_outage_lasts_for_some_calls_and_ends(world: SimWorld) -> None:
    log = world.store.partition_log(TOPIC, 0)
    world.store.rng.faults = SimFaults(unavailable=1.0)
    with pytest.raises(RetriableError):
        await log.bounds()
    world.store.rng.faults = NO_FAULTS
    world.store.partition(TOPIC, 0).outage_calls = 2

    for _ in range(2):
        with pytest.raises(RetriableError):
            await log.bounds()
    assert await log.bounds() == (0, 0)


EVERY_FAULT = SimFaults(
    unavailable=0.03, refuse=0.05, lose_reply=0.05, delay_append=0.05, delay_sight=0.1, slow=0.3
)


async def history(seed: int) -> list[str]:
    """Let two writers fight over one faulty partition; return what each call of them came to."""
    store = store_of(replace(EVERY_FAULT, seed=seed))
    told: list[str] = []
    committed: set[int] = set()
    undecided: set[int] = set()

    async def write(writer: int) -> None:
        log, random = store.partition_log(TOPIC, 0), Random(seed + writer)
        for number in range(writer * 1000, writer * 1000 + 60):
            outcome = await attempt(log, records_of(number, 1))
            told.append(f"{writer} {number} {outcome}")
            if outcome == "committed":
                committed.add(number)
            elif outcome == "unknown":
                undecided.add(number)
            for _ in range(random.randint(0, 3)):
                await asyncio.sleep(0)

    await asyncio.gather(write(1), write(2))
    store.rng.faults = NO_FAULTS
    store.partition(TOPIC, 0).outage_calls = 0
    log = store.partition_log(TOPIC, 0)
    found = [int(record.key.split(b"-")[1]) for record in await read_all(log, 0, await log.fence())]
    assert len(found) == len(set(found))
    assert committed <= set(found) <= committed | undecided
    return told


async def attempt(log: SimLog, records: list[NewRecord]) -> str:
    """Append once, fencing as often as it takes; return what the caller may conclude."""
    try:
        await log.append(records)
    except OutcomeUnknownError:
        return "unknown"
    except (NotAppendedError, FencedError) as err:
        try:
            await log.fence()
        except RetriableError:
            return f"{err.code}, not fenced"
        return err.code
    return "committed"


@pytest.mark.parametrize("seed", range(20))
async def test_what_a_writer_is_told_is_true_under_every_fault(seed: int) -> None:
    await history(seed)


async def test_same_seed_gives_the_same_history() -> None:
    assert await history(5) == await history(5)
    assert await history(5) != await history(6)
