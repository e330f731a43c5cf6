"""Fixtures for all tests: one Kafka broker a session, and fresh topics on it; and how a run is parted."""

import asyncio
import gc
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support.client import Client
from tests.support.constants import NO_DELAY, NO_LINGER
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker, Properties, create_topic, delete_topics
from tests.support.schedule import BySharedFixtures
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import PATIENCE_S

BROKER_FIXTURES = {"kafka_broker", "kafka_bootstrap", "private_kafka_broker", "topic"}

SIMULATION = Path(__file__).parent / "sim"

# Names a broker that already runs, for a quick edit-and-test loop.
BOOTSTRAP_VARIABLE = "TEST_KAFKA_BOOTSTRAP_SERVERS"


# A shell that starts the tests in the background has them, and whatever they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.again"]

Gateway.forks = True
Gateway.forked_constants = {**NO_LINGER, **NO_DELAY}
# 503 is what a test causes, not a machine that has more to do.
Gateway.embedded_settings = {"GATEWAY_ANSWER_TIMEOUT": "60s"}
Client.request_timeout_s = PATIENCE_S

# The same examples in every run, and no opinion on how fast the machine is.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


class TopicFactory(Protocol):
    """Creates one topic with a name that no other test has, and returns the name."""

    async def __call__(
        self, prefix: str = "topic", *, partitions: int = 1, configs: Properties | None = None
    ) -> str: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BROKER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


def pytest_collection_finish() -> None:
    """Have no later collection of cycles look through what stays for good: 0.2 s after each test of Spark."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries take down what they count, DuckDB's bindings of which complain otherwise."""
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySharedFixtures:
    return BySharedFixtures(config, log)


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Let all clients of httpx share what each reads otherwise, also to poll: 140 certificates, in 40 ms."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _clients_are_patient() -> Iterator[None]:
    """Give the clients of tests time, which have five seconds otherwise; the product's name theirs."""
    with pytest.MonkeyPatch.context() as patched:
        for phase in ("connect", "read", "write", "pool"):
            patched.setattr(f"httpx._config.DEFAULT_TIMEOUT_CONFIG.{phase}", PATIENCE_S)
        yield


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The session's broker. Tests that stop, kill or freeze one take `private_kafka_broker`."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def private_kafka_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker of the test's own, running; about 2 s."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker to test with: the caller's if one is named, else the session's."""
    if own := os.environ.get(BOOTSTRAP_VARIABLE):
        return own
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    return broker.bootstrap_servers


@pytest.fixture
async def topic(kafka_bootstrap: str) -> AsyncIterator[TopicFactory]:
    """A factory of topics that are deleted after the test."""
    created: list[str] = []

    async def create(prefix: str = "topic", *, partitions: int = 1, configs: Properties | None = None) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        await create_topic(kafka_bootstrap, name, partitions=partitions, configs=configs)
        created.append(name)
        return name

    yield create
    if created:
        await delete_topics(kafka_bootstrap, created)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Simulated histories run in virtual time, everything else in real time."""
    if item.path.is_relative_to(SIMULATION):
        return {"virtual": VirtualTimeLoop}
    if item.get_closest_marker("both_loops"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"real": asyncio.new_event_loop}
