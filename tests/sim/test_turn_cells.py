"""
Claim: whoever is killed, freezes or is stopped at whatever step of a plan, its topic is divided, the group is
whole again within WHOLE_S, and every id that was acknowledged is where it was said to be, once.

A failing history prints the line that repeats it; tests/sim/seeds.py says how others are drawn.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from itertools import product
from random import Random
from typing import Any

import pytest

from app.group import PEERS_S
from app.process.life import BEGIN_S
from dedupe.storage.settling import OTHERS_S
from tests.sim.seeds import DEFAULT_HISTORIES, each_seed
from tests.sim.turn_load import Load
from tests.sim.turn_world import BEGUN, DUE, LEFT, STEPS, TurnWorker, TurnWorld

WHOLE_S = 60.0
"""After a plan was carried out, and all that lasts is over (R10)."""
STOPPED_S = 1.0
"""The longest that a client waits when a worker is stopped meanwhile: its lanes move, too."""
EVERY_S = 0.02
QUIET_S = 0.3
CELLS = [*product(STEPS, ("kill", "freeze", "stop"))]
ONE_IN = DEFAULT_HISTORIES // len(CELLS)
"""Each is in a run."""


class Misfortune:
    """What befalls the n-th worker that reaches a step of its turn."""

    def __init__(self, rng: Random, step: str, fault: str, number: int) -> None:
        self.step, self.fault = step, fault
        self.lasts_s = rng.choice((0.05, 1.0, 7.0, 20.0))
        self._rng = rng
        self._left = number
        self._running: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.fault} for {self.lasts_s} s when {self.step}"

    def on_step(self, worker: TurnWorker, step: str) -> None:
        self._left -= step == self.step
        if step != self.step or self._left or self._running is not None:
            return
        if self.fault != "stop":
            worker.freeze()  # it gets no further than this step, also if it is to be killed
        befalls: Coroutine[Any, Any, None] = getattr(self, f"_{self.fault}")(worker)
        self._running = asyncio.get_running_loop().create_task(befalls, context=Context())

    async def end(self) -> None:
        """Wait until it is over, if it ever began."""
        if self._running is not None:
            await self._running

    async def _kill(self, worker: TurnWorker) -> None:
        await worker.kill(lost_updates=self._rng.choice((0, 0, 1, 4)))
        await asyncio.sleep(self.lasts_s)
        worker.start()

    async def _freeze(self, worker: TurnWorker) -> None:
        await asyncio.sleep(self.lasts_s)
        worker.thaw()

    async def _stop(self, worker: TurnWorker) -> None:
        await worker.stop()
        await asyncio.sleep(self.lasts_s)
        worker.start()


@each_seed(one_in=ONE_IN)
async def test_misfortune_at_any_step_of_a_plan_is_got_over(seed: int) -> None:
    rng = Random(seed)
    async with TurnWorld("a", "b", "c", seed=seed) as group:
        await group.start()
        load = Load(group, rng)
        step, fault = CELLS[seed % len(CELLS)]
        misfortune = Misfortune(rng, step, fault, rng.randint(1, 3))
        for partitions in rng.choice(((4,), (4, 2), (4, 8), (6, 4))):
            group.on_step = misfortune.on_step
            async with load.running(every_s=EVERY_S):
                await asyncio.sleep(QUIET_S)
                command = group.plan(partitions)
                await group.until(lambda: bool(group.steps))
                await asyncio.wait_for(command, WHOLE_S)
                await misfortune.end()
                await group.settle(WHOLE_S)
            assert group.layout.partitions == partitions, misfortune
        await group.judge()


@pytest.mark.regression(
    "A worker that was stopped while it left off for a plan had all others wait 5 s for it."
)
@pytest.mark.parametrize(
    ("step", "number"), [*((step, 1) for step in STEPS), (DUE, 3), (LEFT, 3), (BEGUN, 3)]
)
async def test_worker_that_is_stopped_at_any_step_ends_its_turn_first(step: str, number: int) -> None:
    async with TurnWorld("a", "b", "c") as group:
        await group.start()
        load, misfortune = Load(group, Random(0)), Misfortune(Random(0), step, "stop", number)
        group.on_step = misfortune.on_step
        async with load.running(every_s=EVERY_S):
            await asyncio.sleep(QUIET_S)
            command = group.plan(4)
            await group.until(lambda: bool(group.steps))
            await group.until(lambda: group.are_serving)
            await misfortune.end()
            await command
        await group.settle(WHOLE_S)

        assert not load.refused()
        assert max(asked.took_s for asked in load.asked) <= STOPPED_S
        await group.judge()


@pytest.mark.regression(
    "A worker that was stopped between two rounds, while another one was frozen, did not leave the group."
)
async def test_worker_that_is_stopped_between_two_rounds_leaves_the_group() -> None:
    async with TurnWorld("a", "b", "c") as group:
        await group.start()
        frozen, stopping = Misfortune(Random(0), DUE, "freeze", 1), Misfortune(Random(0), LEFT, "stop", 1)
        frozen.lasts_s = PEERS_S + BEGIN_S + 0.5

        def on_step(worker: TurnWorker, step: str) -> None:
            frozen.on_step(worker, step)
            stopping.on_step(worker, step)

        group.on_step = on_step
        stopping.lasts_s = OTHERS_S
        command = group.plan(4)
        await group.until(lambda: bool(group.steps))
        await group.until(lambda: any(not worker.is_alive for worker in group.workers.values()))

        assert len(group.coordinator.places) == len(group.workers) - 1
        await command
        await frozen.end()
        await stopping.end()
        await group.settle(WHOLE_S)
