"""What tests of the reference clients share: a gateway whose clock they set, and clients in a hurry."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.python.src.gateway_client import Client, delivery
from tests.support.gateway_in_process import DAY_MS, URL, GatewayInProcess

ClientFactory = Callable[..., Client]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayInProcess]:
    """A window of 7 days, a lease of 30, room for four sessions a partition."""
    day_s = DAY_MS / 1000
    bounds = {"window": 7 * day_s, "session_lease": 30 * day_s, "retention": 31 * day_s, "sessions_max": 8}
    with GatewayInProcess(tmp_path / "gateway", **bounds) as gateway:
        yield gateway


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients hardly wait before they send, first and again."""
    monkeypatch.setattr(delivery, "LINGER_S", 0.0)
    monkeypatch.setattr(delivery, "BACKOFF_S", 0.001)


@pytest.fixture
def open_client(gateway: GatewayInProcess, tmp_path: Path, hurried: None) -> Iterator[ClientFactory]:
    """Open a client of the gateway, on one file unless told otherwise; it is closed after the test."""
    opened: list[Client] = []

    def make(path: Path = tmp_path / "queue.db", write_key: str = "web", **options: Any) -> Client:
        client = Client(URL, write_key, path, transport=gateway.transport, **options)
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close(timeout=0)
