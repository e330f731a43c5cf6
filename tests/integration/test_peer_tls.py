"""Workers whose settings name certificates speak TLS, and nobody without one is heard."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.group import network_of
from dedupe.errors import ConfigurationError
from tests.integration.test_peers import Worker, are_linked, running, until
from tests.support.certificates import write_certificate


def settings(files: Path | None) -> Settings:
    names: dict[str, Any] = {}
    if files is not None:
        names = {
            "peer_tls_cert_file": files / "cert.pem",
            "peer_tls_key_file": files / "key.pem",
            "peer_tls_ca_file": files / "cert.pem",
        }
    return Settings(mode="development", log="kafka", kafka_bootstrap_servers="x:1", peer_port=0, **names)


async def test_workers_with_certificates_are_linked_and_one_without_is_not(tmp_path: Path) -> None:
    write_certificate(tmp_path / "cert.pem", tmp_path / "key.pem", "worker")
    a, b = (Worker(name, network=network_of(settings(tmp_path))) for name in "ab")
    bare = Worker("c", network=network_of(settings(None)))

    async with running(a, b, bare):
        await until(are_linked(a, b))
        await asyncio.sleep(0.5)  # for what must not happen
        assert not a.link(bare).is_up
        assert not bare.link(a).is_up


def test_files_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))
