"""SDKs for servers, each with a small driver: a program that sends the events."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from tests.e2e.sdks.session import EVENTS_PER_FAULT, SDK
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.gateway import Gateway
from tests.support.waiting import PATIENCE_S

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build" / "sdks"

# How long these SDKs are told to wait for an answer: far longer than the gateway needs, even on a
# busy machine, since an SDK that gives up early is only tested less.
CLIENT_TIMEOUT_S = 8


@dataclass(frozen=True, kw_only=True)
class ServerSDK(SDK):
    """
    An SDK whose events are sent by a driver.

    Attributes:
        command: the driver; it takes HOST TIMEOUT_S EVENTS_PER_NAME NAME... and prints as JSON the
            names of which the SDK gave up an event.
    """

    command: Sequence[str | Path]
    late_s_max: float = PATIENCE_S

    async def send(self, proxy: FaultProxy, gateway: Gateway) -> set[str]:
        arguments = (proxy.url, str(CLIENT_TIMEOUT_S), str(EVENTS_PER_FAULT), *Fault)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self.command, *arguments, stdout=pipe, stderr=pipe)
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
        return set(orjson.loads(output))


def _python(environment: str, package: str) -> list[str | Path]:
    return [BUILD / "python" / environment / "bin" / "python", HERE / "python" / "driver.py", package]


def _node(driver: str, *arguments: str) -> list[str | Path]:
    return [HERE / "node" / "node_modules" / ".bin" / "node", HERE / "node" / driver, *arguments]


def _java(driver: str) -> list[str | Path]:
    return ["java", "-cp", f"{BUILD / 'jvm'}/*", HERE / "jvm" / driver]


SEGMENT_PYTHON = ServerSDK(name="segment-python-2.4.0", command=_python("segment-2.4.0", "segment.analytics"))

SERVER_SDKS = [
    ServerSDK(name="segment-java-3.5.4", command=_java("SegmentDriver.java")),
    ServerSDK(
        name="segment-node-3.1.0",
        command=_node("segment_driver.mjs", "@segment/analytics-node"),
        # It does not read the body of a 200.
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_TRUNCATED}),
    ),
    ServerSDK(
        name="segment-node-2.2.1",
        command=_node("segment_driver.mjs", "segment-analytics-node-2"),
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_TRUNCATED}),
    ),
    ServerSDK(
        name="rudder-node-3.0.13",
        command=_node("rudder_driver.mjs"),
        # It gives up after its own timeout and after half an answer; what it had delivered is stored.
        sends_once=frozenset({Fault.TWO_COPIES, Fault.ANSWER_LATE, Fault.ANSWER_TRUNCATED}),
        gives_up=frozenset({Fault.ANSWER_LATE, Fault.ANSWER_TRUNCATED}),
    ),
    SEGMENT_PYTHON,
    ServerSDK(name="segment-python-2.3.4", command=_python("segment-2.3.4", "segment.analytics")),
    ServerSDK(name="rudder-python-2.1.9", command=_python("rudder-2.1.9", "rudderstack.analytics")),
]
