"""The simulation says little, but a history that fails says how to repeat it."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from random import Random
from typing import Any, NoReturn

import pytest
import structlog

from dedupe.storage.kafka.store import KafkaStore
from dedupe.storage.log import no_crashpoint
from tests.support.settings import kafka_config
from tests.support.sim_kafka import SimKafka
from tests.support.sim_kafka_net import BOOTSTRAP_SERVERS, SimKafkaNet
from tests.support.virtual_time import VirtualTimeLoop


def _drop(*_line: Any) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _say_little() -> Iterator[None]:
    """Thousands of faults would print a line each, and take longer than the rest."""
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the line that repeats a failed history."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if report.failed and callspec is not None and "seed" in callspec.params:
        seed, name = callspec.params["seed"], item.name.partition("[")[0]
        line = f'SIM_SEED={seed} SIM_HISTORIES=1 make unit ARGS="-k {name}"'
        report.sections.append(("to repeat this history", line))
    return report


@pytest.fixture
async def net() -> AsyncIterator[SimKafkaNet]:
    """A simulated cluster with the topic `events` of one partition."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    net = SimKafkaNet(SimKafka("events", 1, loop.time), Random(0))
    net.listen(loop)
    yield net
    await net.close()


@pytest.fixture
async def store(net: SimKafkaNet) -> AsyncIterator[KafkaStore]:
    store = KafkaStore(kafka_config(BOOTSTRAP_SERVERS), no_crashpoint)
    yield store
    await store.close()
