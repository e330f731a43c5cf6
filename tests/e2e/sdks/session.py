"""One session of an SDK: it sends events through every fault, and the log is read afterwards."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.http import stored
from tests.support.waiting import PATIENCE_S

EVENTS_PER_FAULT = 3

# SDKs mostly wait; more of them at once would make two cores answer too late.
SESSIONS_AT_ONCE = 3

# An SDK that has not finished by then is stuck. Some wait 30 s before they send again.
SESSION_TIMEOUT_S = 3 * PATIENCE_S

PATIENT = {"GATEWAY_ANSWER_TIMEOUT": "30"}
"""A machine with more to do may take seconds for a verdict; what is told then is not what is tested."""


@dataclass(frozen=True, kw_only=True)
class SDK(ABC):
    """
    An SDK as it is published, and what is known of it.

    Attributes:
        name: the package and its version.
        late_s_max: how long an answer is late at most; longer than the SDK waits for one, if it gives
            up at all.
        sends_once: faults after which the SDK, by its own design, does not send again.
        gives_up: faults after which it tells its caller that the events are lost.
    """

    name: str
    late_s_max: float
    sends_once: frozenset[Fault] = frozenset({Fault.TWO_COPIES})
    gives_up: frozenset[Fault] = frozenset()

    @abstractmethod
    async def send(self, proxy: FaultProxy, gateway: Gateway) -> set[str]:
        """Send EVENTS_PER_FAULT events named after each fault; return the names of which any was given up."""


@dataclass(frozen=True)
class Session:
    """What is left of a session when SDK and gateway have ended."""

    proxy: FaultProxy
    given_up: set[str]
    events: list[dict[str, Any]]
    totals: dict[str, int]


async def run_side_by_side(sdks: Iterable[SDK], folder: Path) -> dict[str, Session | BaseException]:
    """Run a session of each SDK, and return it, or why it failed, by the SDK's name."""
    slots = asyncio.Semaphore(SESSIONS_AT_ONCE)

    async def run(sdk: SDK) -> Session:
        async with slots, asyncio.timeout(SESSION_TIMEOUT_S):
            return await run_session(sdk, Gateway(folder / sdk.name, PATIENT))

    chosen = list(sdks)
    results = await asyncio.gather(*map(run, chosen), return_exceptions=True)
    return dict(zip([sdk.name for sdk in chosen], results, strict=True))


async def run_session(sdk: SDK, gateway: Gateway) -> Session:
    """Run one session with a gateway of its own, which is started and stopped."""
    async with running(gateway):
        async with FaultProxy(gateway.port, late_s_max=sdk.late_s_max) as proxy:
            given_up = await sdk.send(proxy, gateway)
        events = await asyncio.to_thread(stored, gateway)
        stats = await asyncio.to_thread(gateway.stats)
    return Session(proxy, given_up, events, stats["totals"])


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[Gateway]:
    """Start a gateway, and stop it afterwards."""
    await asyncio.to_thread(gateway.start)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(gateway.stop)
