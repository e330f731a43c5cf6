"""Runs one SDK through every fault and judges what the gateway has stored."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.http import stored

EVENTS_PER_NAME = 3
SUCCESS = (200, b'{"success":true}')

# How long an SDK waits for an answer: far longer than the gateway needs on a busy machine, since an
# SDK that gives up early would only be tested less.
CLIENT_TIMEOUT_S = 2

# An SDK that has not finished by then is stuck. The JVM's waits 15 to 30 s before its first retry.
SDK_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class SDK:
    """
    A program that sends EVENTS_PER_NAME events for each name it is given, and what its SDK is like.

    Attributes:
        name: the package and its version.
        command: the driver; it takes HOST TIMEOUT_S EVENTS_PER_NAME NAME... and prints as JSON the
            names of which the SDK gave up an event.
        sends_once: faults after which the SDK, by its own design, does not send again.
        gives_up: faults after which it tells its caller that the events are lost.
    """

    name: str
    command: Sequence[str | Path]
    sends_once: frozenset[Fault] = frozenset({Fault.TWO_COPIES})
    gives_up: frozenset[Fault] = frozenset()


async def run_driver(sdk: SDK, host: str) -> set[str]:
    """Let the SDK send its events and return the names it gave up."""
    process = await asyncio.create_subprocess_exec(
        *sdk.command,
        host,
        str(CLIENT_TIMEOUT_S),
        str(EVENTS_PER_NAME),
        *Fault,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), SDK_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return set(orjson.loads(output))


def assert_exactly_once(gateway: Gateway, proxy: FaultProxy) -> None:
    """Every fault has struck, and every event is in the log once."""
    assert proxy.has_struck_all
    events = [line["value"] for line in stored(gateway)]
    copies = Counter((event["event"], event["properties"]["n"]) for event in events)
    assert copies == Counter((fault.value, n) for fault in Fault for n in range(EVENTS_PER_NAME))
    assert set(proxy.answers) == {SUCCESS}
    assert proxy.answers.total() == proxy.forwarded
    totals = gateway.stats()["totals"]
    assert totals["accepted"] == len(events)
    assert totals["received"] == totals["accepted"] + totals["duplicates"]


def assert_sent_again(proxy: FaultProxy, sends_once: frozenset[Fault]) -> None:
    """The SDK sent again after each fault, but for those it takes as delivered or final by design."""
    assert proxy.sent_again == set(Fault) - sends_once
