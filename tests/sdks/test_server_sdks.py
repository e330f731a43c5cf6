"""Claim: unmodified server SDKs, through every fault, deliver each event exactly once and end in time."""

import asyncio
from pathlib import Path

import pytest

from tests.sdks.harness import SDK, assert_exactly_once, assert_sent_again, run_driver
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "sdks"

LATE_S_MAX = 30.0


def python(environment: str, driver: str) -> list[str | Path]:
    return [BUILD / "python" / environment / "bin" / "python", HERE / "python" / driver]


def node(driver: str, *arguments: str) -> list[str | Path]:
    return [HERE / "node" / "node_modules" / ".bin" / "node", HERE / "node" / driver, *arguments]


def java(driver: str) -> list[str | Path]:
    return ["java", "-cp", f"{BUILD / 'jvm'}/*", HERE / "jvm" / driver]


SDKS = [
    SDK("segment-analytics-python-2.4.0", python("segment-2.4.0", "segment_driver.py")),
    SDK("segment-analytics-python-2.3.4", python("segment-2.3.4", "segment_driver.py")),
    SDK("rudder-sdk-python-2.1.9", python("rudder-2.1.9", "rudder_driver.py")),
    SDK(
        "segment-analytics-node-3.1.0",
        node("segment_driver.mjs", "@segment/analytics-node"),
        # It does not read the body of a 200.
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_TRUNCATED}),
    ),
    SDK(
        "segment-analytics-node-2.2.1",
        node("segment_driver.mjs", "segment-analytics-node-2"),
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_TRUNCATED}),
    ),
    SDK(
        "rudder-sdk-node-3.0.13",
        node("rudder_driver.mjs"),
        # It gives up after its own timeout and after half an answer; what it had delivered is stored.
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_LATE, Fault.ANSWER_TRUNCATED}),
        gives_up=frozenset({Fault.ANSWER_LATE, Fault.ANSWER_TRUNCATED}),
    ),
    SDK("segment-analytics-java-3.5.4", java("SegmentDriver.java")),
]


@pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)
async def test_every_event_is_stored_once_through_every_fault(sdk: SDK, tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "gateway")
    await asyncio.to_thread(gateway.start)
    try:
        async with FaultProxy(gateway.port, late_s_max=LATE_S_MAX) as proxy:
            given_up = await run_driver(sdk, proxy.url)
        assert given_up == sdk.gives_up
        assert_exactly_once(gateway, proxy)
        assert_sent_again(proxy, sdk.sends_once)
    finally:
        await asyncio.to_thread(gateway.stop)
