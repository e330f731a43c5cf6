"""
Claim: what must be remembered follows from the log alone: a lane that was rebuilt, went on from its index, or
lost the index's tail takes no id again before the log itself says that it is forgotten. (That it is taken
again then is not judged here.)

Others are drawn with SIM_SEED and SIM_HISTORIES, see tests/sim/seeds.py.
"""

import asyncio
from collections.abc import Iterator
from random import Random

from dedupe.decide.admission import Admission
from dedupe.decide.window import Step, Window, WindowPolicy
from dedupe.model.clock import Deadline
from dedupe.model.errors import RetriableError
from dedupe.model.record import parse_identity
from dedupe.model.types import Event, LogRecord, Offset
from dedupe.partition.state import LaneState
from tests.sim.seeds import each_seed
from tests.sim.test_histories import faults_of, request_of
from tests.sim.world import FOREVER_S, World

ROUNDS = 5
REQUESTS = 25
POLICIES = [
    WindowPolicy(window_ms=20_000, keys_max=1_000_000, time_step_ms=1_000),
    WindowPolicy(window_ms=20_000, keys_max=20, time_step_ms=1_000),
    WindowPolicy(window_ms=10_000_000, keys_max=20, time_step_ms=1_000),
    WindowPolicy(window_ms=10_000_000, keys_max=130, time_step_ms=1_000),
]


@each_seed(one_in=10)
async def test_no_id_is_taken_again_before_the_log_says_that_it_is_forgotten(seed: int) -> None:
    rng = Random(seed)
    world = World(faults=faults_of(seed), policy=rng.choice(POLICIES))
    trimmed: list[list[LogRecord]] = [[], []]
    for _ in range(ROUNDS):
        await world.start()
        for _ in range(REQUESTS):
            await _send(world, request_of(world, rng))
            world.clock.ms += rng.choice((0, 0, 100, 1_000, 3_000, 30_000))
            _befall(world, rng)
            if rng.random() < 0.05:
                await asyncio.sleep(0)
        await world.crash(lost_updates=rng.choice((0, 0, 1, 4)))
        _befall_stopped(world, rng, trimmed)
    for partition, records in enumerate(world.committed()):
        _judge(_windows(world, partition, [*trimmed[partition], *records]))


async def _send(world: World, events: list[Event]) -> None:
    """Send one request; a success names the event's record, whichever of its copies that is by now."""
    assert world.router is not None
    deadline = Deadline(world.clock, FOREVER_S)
    try:
        outcomes = await world.router.submit(events, [], received_ms=world.clock.ms, deadline=deadline)
    except RetriableError:
        return
    for event, admission, offset in zip(events, *outcomes, strict=True):
        if admission is not Admission.CONFLICT:
            records = world.committed()[event.partition]
            assert [record.value for record in records if record.offset == offset] == [event.value]


def _befall(world: World, rng: Random) -> None:
    partition = rng.randrange(2)
    assert world.router is not None
    if rng.random() < 0.03 and world.router.lanes[partition].state is LaneState.ACTIVE:
        world.disk.damage(world.index_identity(partition))
    if rng.random() < 0.03:
        world.clock.ms, now_ms = world.clock.ms + rng.choice((-9, 9)) * 100_000, world.clock.ms
        world.intrude(partition)  # with a timestamp of its own
        world.clock.ms = now_ms
    world.note_skips()


def _befall_stopped(world: World, rng: Random, trimmed: list[list[LogRecord]]) -> None:
    """Lose an index, set the clock back, delete what the window has left."""
    world.clock.ms += rng.choice((-30_000, 0, 0, 5_000))
    partition = rng.randrange(2)
    if rng.random() < 0.4:
        world.disk.discard(world.index_identity(partition))
    if rng.random() < 0.3:
        records = [*trimmed[partition], *world.committed()[partition]]
        *_, (_, start) = [(None, 0), *_windows(world, partition, records)]
        end = rng.choice((start, max(start - 5, 0)))
        before = world.committed()[partition]
        world.log.trim("events", partition, end)
        trimmed[partition] += before[: len(before) - len(world.committed()[partition])]


def _windows(
    world: World, partition: int, records: list[LogRecord]
) -> Iterator[tuple[list[LogRecord], Offset]]:
    """Yield each commit's records with the window's start before it; last the start behind them all."""
    window = Window(world.policy)
    bases = world.log.partition("events", partition).bases
    commit: list[LogRecord] = []
    for record in records:
        if commit and record.offset in bases:
            yield commit, window.start
            _advance(window, commit)
            commit = []
        commit.append(record)
    if commit:
        yield commit, window.start
        _advance(window, commit)
    yield [], window.start


def _advance(window: Window, commit: list[LogRecord]) -> None:
    steps = [Step(record.timestamp_ms, record.offset, parse_identity(record).lane_seq) for record in commit]
    window.advance(steps[-1], steps)


def _judge(commits: Iterator[tuple[list[LogRecord], Offset]]) -> None:
    """No id is committed again while the window holds it."""
    newest: dict[bytes, Offset] = {}
    for commit, start in commits:
        for record in commit:
            before = newest.get(record.key)
            assert before is None or before < start, f"{record.key!r} is committed twice: {before}, {record}"
            newest[record.key] = record.offset
