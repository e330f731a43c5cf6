"""Gateways on the embedded log, a file's and a test's own; a broker behind a proxy, and the proxy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.http import AUTH
from tests.support.kafka import KafkaBroker
from tests.support.kafka_proxy import KafkaProxy, broker_behind_a_proxy


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A running gateway with small limits."""
    with Gateway(
        tmp_path_factory.mktemp("gateway"),
        {
            "GATEWAY_PARTITIONS": "4",
            "GATEWAY_BODY_BYTES_MAX": "200KiB",
            "GATEWAY_REQUEST_EVENTS_MAX": "50",
            "GATEWAY_EVENT_BYTES_MAX": "10KiB",
        },
    ) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client of the running gateway."""
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        yield client


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with default limits, not started yet, that stops at once when told to."""
    gateway = Gateway(tmp_path / "gateway", {"GATEWAY_PARTITIONS": "2"})
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def proxied_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, int]]:
    """A broker whose clients come through the proxy, and the proxy's port."""
    with broker_behind_a_proxy(tmp_path_factory.mktemp("kafka-proxied")) as proxied:
        yield proxied


@pytest.fixture
async def proxy(proxied_broker: tuple[KafkaBroker, int]) -> AsyncIterator[KafkaProxy]:
    """The test's own, through which all clients reach the broker."""
    broker, port = proxied_broker
    async with KafkaProxy(port, broker.port) as proxy:
        yield proxy
