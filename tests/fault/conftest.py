"""The logs that every fault test runs on, and clients that are closed after it."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.gateway import Gateway
from tests.support.verdict import Committed, read_kafka, read_sqlite

PARTITIONS = 4


@dataclass(frozen=True)
class LogUnderTest:
    """One kind of log: the settings that select it, and an independent reader."""

    env: Mapping[str, str]
    read: Callable[[Gateway], Awaitable[list[Committed]]]


def kafka_log(bootstrap_servers: str) -> LogUnderTest:
    """A topic of its own on a real broker; the gateway creates it."""
    topic = f"events-{uuid.uuid4().hex[:12]}"
    env = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        "GATEWAY_TOPIC": topic,
        "GATEWAY_PARTITIONS": str(PARTITIONS),
    }

    async def read(_gateway: Gateway) -> list[Committed]:
        return await read_kafka(bootstrap_servers, topic, PARTITIONS)

    return LogUnderTest(env, read)


def sqlite_log() -> LogUnderTest:
    """The embedded log in the gateway's own data folder."""

    async def read(gateway: Gateway) -> list[Committed]:
        return read_sqlite(gateway.data)

    return LogUnderTest({"GATEWAY_LOG": "sqlite", "GATEWAY_PARTITIONS": str(PARTITIONS)}, read)


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_under_test(request: pytest.FixtureRequest) -> LogUnderTest:
    """Both logs, one after the other."""
    if request.param == "sqlite":
        return sqlite_log()
    return kafka_log(request.getfixturevalue("kafka_bootstrap"))


@pytest.fixture
def gateway(tmp_path: Path, log_under_test: LogUnderTest) -> Iterator[Gateway]:
    """A gateway that is not started yet, and is stopped after the test."""
    gateway = Gateway(tmp_path / "gateway", log_under_test.env)
    yield gateway
    gateway.stop()


ClientFactory = Callable[..., Client]


@pytest.fixture
async def client_for() -> AsyncIterator[ClientFactory]:
    """Make clients of a gateway: `client_for(gateway, seed=1)`."""
    clients: list[Client] = []

    def make(gateway: Gateway, *, seed: int, events_per_batch: int = 20) -> Client:
        client = Client(gateway.url, seed=seed, events_per_batch=events_per_batch)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()
