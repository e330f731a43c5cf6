"""Simulated workers that know each other, on one simulated network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest

from app.peers.limits import PeerLimits
from app.peers.link import PeerLink
from app.peers.peers import Peers
from dedupe.model.errors import GatewayError
from dedupe.submission import Outcomes
from tests.support.peers import SECRET, LoopClock, RecordingHandler, events_of
from tests.support.sim_net import SimNet, address_of
from tests.support.submissions import submission_of

LIMITS = PeerLimits()


class Group:
    """Simulated workers that know each other."""

    def __init__(
        self, *names: str, seed: int = 1, plans: Sequence[int] = (), **limits_of: PeerLimits
    ) -> None:
        self.net = SimNet(Random(seed))
        self.handlers = {name: RecordingHandler(f"status of {name}") for name in names}
        self.peers = {
            name: Peers(
                name,
                secret=SECRET,
                plan=plan,
                clock=LoopClock(),
                limits=limits_of.get(name, LIMITS),
                network=self.net.network(name),
                rng=Random(f"{seed} {name}"),
            )
            for name, plan in zip(names, chain(plans, repeat(0)), strict=False)
        }
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> None:
        """Run a worker."""
        self.tasks[name] = asyncio.create_task(self.peers[name].run(None, self.handlers[name]))

    async def stop(self, name: str) -> None:
        """Stop a worker as a killed process does: its connections are reset."""
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task

    def link(self, one: str, other: str) -> PeerLink:
        """Return one worker's way to another."""
        link = self.peers[one].link(other)
        assert link is not None
        return link

    def submit(self, one: str, other: str, count: int = 1, **more: Any) -> "asyncio.Future[Outcomes]":
        """Send events from one worker to another."""
        return self.link(one, other).submit(0, submission_of(events_of(count, **more)))


@asynccontextmanager
async def running(group: Group, *, is_linked: bool = True) -> AsyncIterator[Group]:
    """Run all workers until the end; they are linked at first."""
    for name in group.peers:
        group.start(name)
    await asyncio.sleep(0)
    for peers in group.peers.values():
        peers.set_members({name: address_of(name) for name in group.peers})
    try:
        if is_linked:
            await until(lambda: all(group.link(*pair).is_up for pair in pairs(group)))
        yield group
    finally:
        for name in list(group.tasks):
            await group.stop(name)


def pairs(group: Group) -> list[tuple[str, str]]:
    return [(one, other) for one in group.peers for other in group.peers if one != other]


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> float:
    """Wait in virtual time, and return how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.001)
    return loop.time() - began


async def error_of(answer: "asyncio.Future[Any]") -> type[BaseException]:
    """Return what an answer fails with."""
    async with asyncio.timeout(60):
        with pytest.raises(GatewayError) as raised:
            await answer
    return raised.type
