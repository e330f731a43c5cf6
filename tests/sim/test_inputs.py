"""
Claim: events of an input are stored once each, whatever befalls log, lanes, commits of offsets and the
gateway; and no offset is committed before all events below it have a verdict in the log.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import OpenKeys
from app.http.body import BodyLimits
from app.ingest.event_limits import EventLimits
from app.ingest.identify import Identifier
from app.ingest.routes.events import Ingest
from app.inputs.in_flight import BATCHES_MAX
from app.inputs.input_file import InputSpec
from app.inputs.inputs import Clusters, Input, Inputs
from app.inputs.memory import InputMemory
from app.inputs.seeks import SeekRefusedError, SeekTo
from dedupe.cluster.input_shares import InputShares, LoneShares
from dedupe.model.types import Headers, LogRecord, Offset
from dedupe.router import Router
from dedupe.storage.input_log import CommittedOffset
from tests.sim.seeds import each_seed
from tests.sim.world import CLEAN, QUARANTINE, SOURCE, World
from tests.support.sim.faults import SimFaults
from tests.support.sim.sim_inputs import SimInputs

PARTITIONS, EVENTS, CRASHES = 2, 60, 3
WINDOW_S = 7 * 86_400.0
UNLIMITED = Quota()


def inputs_of(
    world: World,
    router: Router,
    cluster: SimInputs,
    shares: InputShares | None = None,
    quota: Quota = UNLIMITED,
    **fields: object,
) -> Inputs:
    """Return what a process reads inputs by; a lone one without `shares`."""
    spec = {
        "name": "raw",
        "topic": "raw",
        "source": SOURCE,
        "id": {"field": "messageId"},
        "start": "earliest",
    }
    ingest = Ingest(
        router=router,
        identifier=Identifier(
            world.identity, CLEAN.partitions, router.quarantine, EventLimits(10_000, 32, 1_000_000)
        ),
        write_keys=OpenKeys(QuotaPolicy(quota, index_keys_max=1, window_s=1, clock=world.clock.monotonic)),
        clock=world.clock,
        body_limits=BodyLimits(8_000_000, 4_000_000),
        request_events_max=100,
        answer_timeout_s=5,
    )

    async def own_ids() -> set[str]:
        return {"f" * 32}

    return Inputs(
        [InputSpec.model_validate(spec | fields)],
        Clusters(lambda _spec: cluster, own_ids),
        ingest,
        store=world.log,
        topic=CLEAN.name,
        window_s=WINDOW_S,
        shares=shares or LoneShares(),
        memory=InputMemory(8 * 1024 * 1024),
    )


def event(message_id: str) -> bytes:
    return json.dumps({"messageId": message_id, "type": "track"}).encode()


def stored(world: World) -> Counter[str]:
    return Counter(record.key.decode() for partition in world.committed() for record in partition)


def filled(
    world: World, rng: Random, *, failing: float, partitions: int = PARTITIONS, events: int = EVENTS
) -> tuple[SimInputs, set[str]]:
    """Return a topic of events, of which some are repeated, and their ids."""
    cluster = SimInputs(rng, partitions, failing=failing)
    ids = [f"m-{number}" for number in range(events)]
    for message_id in [*ids, *rng.choices(ids, k=events // 4)]:
        cluster.append(rng.randrange(partitions), event(message_id), world.clock.now_ms())
    cluster.append(0, b"no event", world.clock.now_ms())
    return cluster, set(ids)


def behind_verdicts(world: World, cluster: SimInputs) -> Callable[[int, Offset], None]:
    """Return a check of each commit."""

    def check(partition: int, offset: Offset) -> None:
        known = stored(world)
        for record in cluster.records[partition][:offset]:
            if record.value != b"no event":
                assert json.loads(record.value)["messageId"] in known, "committed before its verdict"

    return check


@each_seed(one_in=10)
async def test_events_are_stored_once_through_all_faults(seed: int) -> None:
    rng = Random(seed)
    world = World(
        faults=SimFaults(seed, unavailable=0.05, refuse=0.1, lose_reply=0.1, delay_append=0.05, slow=0.1)
    )
    cluster, ids = filled(world, rng, failing=0.1)
    cluster.on_commit = behind_verdicts(world, cluster)
    cluster.misdelivering, cluster.hanging = 0.05, 0.01
    for crash in range(CRASHES + 1):
        router = world.boot()
        inputs = inputs_of(world, router, cluster)
        reading = asyncio.ensure_future(inputs.run())
        if crash < CRASHES:
            await asyncio.sleep(rng.random() * 3)
        else:
            async with asyncio.timeout(600):
                while stored(world).keys() < ids or len(world.committed(QUARANTINE)[0]) < 1:
                    assert not reading.done()
                    await asyncio.sleep(0.1)
        if rng.random() < 0.3:
            cluster.offsets.clear()  # they are lost, or somebody has reset them
        assert inputs.inputs[0].stopped is None
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await world.crash(lost_updates=rng.randrange(3))
    assert stored(world) == Counter(ids)
    assert len(world.committed(QUARANTINE)[0]) == 1


@each_seed(one_in=10)
async def test_first_of_several_copies_is_stored_and_reading_waits_for_no_verdict(seed: int) -> None:
    rng = Random(seed)
    world = World(faults=SimFaults(seed, unavailable=0.05, hang=0.02, refuse=0.1, lose_reply=0.1, slow=0.1))
    cluster = SimInputs(rng, PARTITIONS, failing=0.05)
    first: dict[str, int] = {}
    for number in range(2 * EVENTS):
        partition = rng.randrange(PARTITIONS)
        message_id = f"m-{partition}-{rng.randrange(EVENTS // 2)}"
        first.setdefault(message_id, number)
        value = json.dumps({"messageId": message_id, "type": "track", "n": number}).encode()
        cluster.append(partition, value, world.clock.now_ms())
    running, most = Running(world, cluster), 0
    await running.start()
    async with asyncio.timeout(600):
        ends = {number: len(records) for number, records in enumerate(cluster.records)}
        while {n: each.position for n, each in running.input.partitions.items()} != ends:
            assert not running.reading.done()
            for each in running.input.partitions.values():
                most = max(most, len(each._in_flight._batches))
            await asyncio.sleep(0.001)
    assert 1 < most <= BATCHES_MAX
    kept = {
        record.key.decode(): json.loads(record.value)["n"]
        for partition in world.committed()
        for record in partition
    }
    assert kept == first
    await running.crash()


def make_anew(cluster: SimInputs) -> None:
    """With the topic, Kafka deletes what is committed for it."""
    cluster.id = "2" * 32
    cluster.offsets.clear()


@pytest.mark.parametrize(
    ("befalls", "sentence"),
    [
        (make_anew, "its id was 1111"),
        (lambda cluster: setattr(cluster, "id", None), "does not exist"),
        (lambda cluster: setattr(cluster, "id", "f" * 32), "one that this gateway writes"),
        (lambda cluster: cluster.first.__setitem__(0, 10**6), "has lost its records"),
        (lambda cluster: cluster.records[0].clear(), "below offset"),
    ],
)
async def test_input_that_must_not_be_read_on_stops(
    befalls: Callable[[SimInputs], None], sentence: str
) -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    for is_first in (True, False):
        inputs = inputs_of(world, await world.start(), cluster)
        reading = asyncio.ensure_future(inputs.run())
        async with asyncio.timeout(600):
            while is_first and (len(cluster.offsets) < PARTITIONS or stored(world).keys() < ids):
                await asyncio.sleep(0.1)
            while not is_first and inputs.inputs[0].stopped is None:
                await asyncio.sleep(0.1)
        assert is_first or sentence in str(inputs.inputs[0].stopped)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await world.crash()
        befalls(cluster)


async def test_running_input_notices_a_topic_that_is_made_anew() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    inputs = inputs_of(world, await world.start(), cluster)
    reading = asyncio.ensure_future(inputs.run())
    async with asyncio.timeout(600):
        while len(cluster.offsets) < PARTITIONS or stored(world).keys() < ids:
            await asyncio.sleep(0.1)
        cluster.id = "2" * 32
        cluster.append(0, event("more"), world.clock.now_ms())
        while inputs.inputs[0].stopped is None:
            await asyncio.sleep(0.1)
    assert "is not the one that was read" in inputs.inputs[0].stopped
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await world.crash()


async def test_first_start_behind_the_window_is_refused() -> None:
    world = World()
    cluster = SimInputs(Random(1), 1, failing=0)
    cluster.append(0, event("old"), world.clock.now_ms() - round(WINDOW_S * 1000) - 1)
    for may_read in (False, True):
        inputs = inputs_of(world, await world.start(), cluster, reads_past_window=may_read)
        reading = asyncio.ensure_future(inputs.run())
        async with asyncio.timeout(600):
            while inputs.inputs[0].stopped is None and not stored(world):
                await asyncio.sleep(0.1)
        assert bool(stored(world)) is may_read
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await world.crash()


async def test_partition_that_begins_at_the_end_begins_there_again_after_a_crash() -> None:
    world = World()
    cluster, _ = filled(world, Random(1), failing=0)
    for crash in range(3):
        inputs = inputs_of(world, await world.start(), cluster, start="latest")
        reading = asyncio.ensure_future(inputs.run())
        async with asyncio.timeout(600):
            while len(inputs.inputs[0].partitions) < PARTITIONS or None in {
                each.position for each in inputs.inputs[0].partitions.values()
            }:
                await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        cluster.offsets.clear()  # it was killed before it had committed anything
        await world.crash()
        cluster.append(crash % PARTITIONS, event(f"later-{crash}"), world.clock.now_ms())
    inputs = inputs_of(world, await world.start(), cluster, start="latest")
    reading = asyncio.ensure_future(inputs.run())
    async with asyncio.timeout(600):
        while len(stored(world)) < 3:
            await asyncio.sleep(0.1)
    assert stored(world) == Counter(f"later-{crash}" for crash in range(3))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await world.crash()


async def test_partition_that_is_added_is_read_from_its_first_record_on() -> None:
    world = World()
    cluster, _ = filled(world, Random(1), failing=0)
    inputs = inputs_of(world, await world.start(), cluster, start="latest")
    reading = asyncio.ensure_future(inputs.run())
    async with asyncio.timeout(600):
        while len(cluster.offsets) < PARTITIONS:
            await asyncio.sleep(0.1)
        cluster.first.append(0)
        cluster.records.append([])
        cluster.append(PARTITIONS, event("added"), world.clock.now_ms())
        while not stored(world):
            await asyncio.sleep(0.1)
    assert stored(world) == Counter(["added"])
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await world.crash()


class Running:
    """A process that reads the input, and others after it on the same disk and log."""

    def __init__(self, world: World, cluster: SimInputs) -> None:
        self.world, self.cluster = world, cluster

    async def start(self, quota: Quota = UNLIMITED, **fields: object) -> None:
        self.inputs = inputs_of(self.world, await self.world.start(), self.cluster, None, quota, **fields)
        self.reading = asyncio.ensure_future(self.inputs.run())

    async def crash(self) -> None:
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        await self.world.crash()

    async def restart(self) -> None:
        await self.crash()
        await self.start()

    @property
    def input(self) -> Input:
        return self.inputs.inputs[0]

    async def seek(self, to: SeekTo, partition: int | None = None, *, past_window: bool = False) -> None:
        await self.inputs.seek(self.input, to, partition, reads_past_window=past_window)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(600):
            while not holds():
                assert not self.reading.done()
                await asyncio.sleep(0.1)

    async def read_all(self) -> None:
        """Wait until all is read and committed."""
        ends = {number: len(records) for number, records in enumerate(self.cluster.records)}
        await self.until(lambda: {n: at.offset for n, at in self.cluster.offsets.items()} == ends)


async def test_paused_input_reads_nothing_on_through_restarts_until_it_is_resumed() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    running = Running(world, cluster)
    await running.start()
    await running.read_all()
    await running.input.control.pause()
    await asyncio.sleep(5)  # what was under way
    cluster.append(0, event("later"), world.clock.now_ms())
    for _ in range(2):
        await asyncio.sleep(30)
        assert "later" not in stored(world)
        assert running.input.control.told.is_paused
        await running.restart()
    await running.input.control.resume()
    await running.until(lambda: "later" in stored(world))
    assert stored(world) == Counter([*ids, "later"])
    await running.crash()


async def test_seek_is_done_once_and_stores_nothing_twice() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    running = Running(world, cluster)
    await running.start()
    await running.read_all()
    before = running.input.total.records
    await running.seek("earliest")
    await running.until(lambda: running.input.total.records == 2 * before)
    await running.read_all()
    await running.restart()
    await asyncio.sleep(30)
    assert running.input.total.records == 0, "it was done before the restart"
    assert stored(world) == Counter(ids)
    await running.input.control.pause()
    await asyncio.sleep(5)
    await running.seek(3, 1)
    await running.restart()
    await running.input.control.resume()
    await running.until(lambda: running.input.total.records == len(cluster.records[1]) - 3)
    await running.crash()


async def test_seek_past_the_window_is_refused_when_it_is_told_and_when_it_is_done() -> None:
    world = World()
    cluster, _ = filled(world, Random(1), failing=0, partitions=1)
    running = Running(world, cluster)
    await running.start()
    await running.read_all()
    await running.input.control.pause()
    await asyncio.sleep(5)
    await running.seek("earliest")
    world.clock.ms += round(WINDOW_S * 1000) + 1
    with pytest.raises(SeekRefusedError, match="older than the window"):
        await running.seek("earliest")
    await running.input.control.resume()
    await running.until(lambda: running.input.stopped is not None)
    assert "older than the window" in str(running.input.stopped)
    await running.seek("latest")
    await running.input.control.resume()
    await running.until(lambda: running.input.stopped is None)
    await running.read_all()
    await running.seek(0, 0, past_window=True)
    await running.until(lambda: running.input.total.records == len(cluster.records[0]))
    await running.crash()


@pytest.mark.parametrize(
    ("to", "partition", "sentence"),
    [(0, None, "name the partition"), (0, 9, "has 2 partitions"), (10**6, 0, "has the offsets 0 to")],
)
async def test_seek_to_no_place_is_refused(to: SeekTo, partition: int | None, sentence: str) -> None:
    world = World()
    running = Running(world, filled(world, Random(1), failing=0)[0])
    await running.start()
    with pytest.raises(SeekRefusedError, match=sentence):
        await running.seek(to, partition)
    await running.crash()


async def test_reset_by_another_program_counts_until_the_next_seek() -> None:
    world = World()
    cluster, _ = filled(world, Random(1), failing=0, partitions=1)
    running = Running(world, cluster)
    await running.start()
    await running.read_all()
    await running.seek("earliest")
    await running.until(lambda: running.input.total.records == 2 * len(cluster.records[0]))
    await running.read_all()
    await running.crash()
    cluster.offsets[0] = CommittedOffset(5, "")
    await running.start()
    await running.until(lambda: running.input.total.records == len(cluster.records[0]) - 5)
    await running.read_all()
    await running.crash()
    cluster.offsets[0] = CommittedOffset(10**6, "")
    await running.start()
    await running.until(lambda: running.input.stopped is not None)
    await running.seek(7, 0)
    await running.input.control.resume()
    await running.until(lambda: running.input.total.records == len(cluster.records[0]) - 7)
    await running.crash()


async def test_client_that_hangs_or_delivers_again_is_replaced_and_counted() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    cluster.misdelivering, cluster.hanging = 0.2, 0.1
    running = Running(world, cluster)
    await running.start()
    await running.read_all()
    assert running.input.total.misdelivered > 0
    assert running.input.total.records == sum(map(len, cluster.records)), "each was taken once"
    assert stored(world) == Counter(ids)
    await running.crash()


async def test_input_with_a_limit_pauses_and_loses_nothing() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0)
    running = Running(world, cluster)
    began_at = asyncio.get_running_loop().time()
    await running.start(events_per_s=2.0)
    await running.read_all()
    fewest = min(map(len, cluster.records))
    assert asyncio.get_running_loop().time() - began_at >= fewest - 10, "a partition has 1 event a second"
    assert running.input.total.throttled_s > 0
    assert stored(world) == Counter(ids)
    await running.crash()


async def test_conflicts_stop_an_input_until_it_is_resumed_also_through_restarts() -> None:
    world = World()
    cluster = SimInputs(Random(1), 1, failing=0.2)
    for number in range(2_500):
        value = json.dumps({"messageId": f"m-{number % 1_000}", "type": "track", "n": number}).encode()
        cluster.append(0, value, world.clock.now_ms())
    running = Running(world, cluster)
    await running.start()
    await running.until(lambda: bool(running.input.control.told.stop))
    read = running.input.total.records
    assert "are conflicts" in str(running.input.stopped)
    await running.restart()
    await running.until(lambda: running.input.stopped is not None)
    await asyncio.sleep(30)
    assert "are conflicts" in str(running.input.stopped)
    assert running.input.total.records == 0, "nothing is read until somebody says so"
    await running.input.control.resume()
    await running.until(lambda: running.input.total.records > 0)
    assert running.input.control.told.stop == ""
    assert read < 2_500
    await running.crash()


async def test_quota_of_the_source_is_a_pause() -> None:
    world = World()
    cluster, ids = filled(world, Random(1), failing=0, partitions=1)
    running = Running(world, cluster)
    began_at = asyncio.get_running_loop().time()
    await running.start(quota=Quota(events=2.0, burst_s=5.0))
    await running.read_all()
    assert asyncio.get_running_loop().time() - began_at >= (len(cluster.records[0]) - 10) / 2 - 5
    assert running.input.total.throttled_s > 0
    assert stored(world) == Counter(ids)
    await running.crash()


async def test_header_names_a_source_of_the_list_alone() -> None:
    world = World()
    cluster = SimInputs(Random(1), 1, failing=0)
    for source in (None, b"app", b"shop", None):
        headers: Headers = [] if source is None else [("from", source)]
        cluster.records[0].append(
            LogRecord(len(cluster.records[0]), world.clock.now_ms(), b"", event("same"), headers)
        )
    running = Running(world, cluster)
    await running.start(source_header="from", sources=["app"])
    await running.read_all()
    counts = running.input.total
    assert (counts.accepted, counts.duplicates, counts.rejected) == (2, 1, 1), "an id is one of its source"
    (kept,) = world.committed(QUARANTINE)[0]
    assert ("reason", b"source_not_listed") in kept.headers
    sources = {dict(each.headers)["source"] for partition in world.committed() for each in partition}
    assert sources == {SOURCE.encode(), b"app"}
    await running.crash()


class PartOf(LoneShares):
    """The share of a worker whose group gives partitions to others."""

    def __init__(self, *mine: int) -> None:
        self.mine = set(mine)

    def is_mine(self, _name: str, partition: int) -> bool:
        return partition in self.mine


async def test_partition_that_was_given_away_is_neither_read_nor_committed() -> None:
    world = World()
    cluster, _ = filled(world, Random(1), failing=0)
    shares = PartOf(0, 1)
    inputs = inputs_of(world, await world.start(), cluster, shares)
    reading = asyncio.ensure_future(inputs.run())
    ends = {number: len(records) for number, records in enumerate(cluster.records)}
    async with asyncio.timeout(600):
        while {number: at.offset for number, at in cluster.offsets.items()} != ends:
            await asyncio.sleep(0.1)
    shares.mine = {1}
    await asyncio.sleep(3)  # what is under way
    for partition in range(PARTITIONS):
        cluster.append(partition, event(f"later-{partition}"), world.clock.now_ms())
    async with asyncio.timeout(600):
        while cluster.offsets[1].offset == ends[1]:
            await asyncio.sleep(0.1)
    await asyncio.sleep(30)
    assert cluster.offsets[0].offset == ends[0]
    assert "later-0" not in stored(world)
    assert "later-1" in stored(world)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await world.crash()
