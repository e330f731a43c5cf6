"""Claim: workers whose settings name certificates speak TLS by them; nobody without one is heard."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.group import network_of
from app.peers.tls import PeerTLS
from app.settings.model import Settings
from dedupe.model.errors import ConfigurationError
from tests.integration.test_peers import Worker, are_linked, running, until
from tests.support.certificates import write_certificate
from tests.support.settings import make_settings


def settings(files: Path | None) -> Settings:
    names: dict[str, Any] = {}
    if files is not None:
        names = {
            "peer_tls_cert_file": files / "cert.pem",
            "peer_tls_key_file": files / "key.pem",
            "peer_tls_ca_file": files / "ca.pem",
        }
    return make_settings(
        mode="development", log="kafka", kafka_bootstrap_servers="x:1", peer_listen="127.0.0.1:0", **names
    )


def issue(folder: Path) -> Path:
    """Write a certificate that is its own authority."""
    folder.mkdir()
    write_certificate(folder / "cert.pem", folder / "key.pem", "worker")
    shutil.copy(folder / "cert.pem", folder / "ca.pem")
    return folder


async def test_workers_with_certificates_are_linked_and_one_without_is_not(tmp_path: Path) -> None:
    issue(tmp_path / "files")
    a, b = (Worker(name, network=network_of(settings(tmp_path / "files"))) for name in "ab")
    bare = Worker("c", network=network_of(settings(None)))

    async with running(a, b, bare):
        await until(are_linked(a, b))
        await asyncio.sleep(0.5)  # for what must not happen
        assert not a.link(bare).is_up
        assert not bare.link(a).is_up


@pytest.mark.regression("Renewed certificates were used only after a restart.")
async def test_changed_certificates_are_those_of_the_next_connection(tmp_path: Path) -> None:
    old, new = issue(tmp_path / "old"), issue(tmp_path / "new")
    files = issue(tmp_path / "files")
    shutil.copytree(old, files, dirs_exist_ok=True)
    a, b = (Worker(name, network=network_of(settings(files))) for name in "ab")
    c, d = (Worker(name, network=network_of(settings(folder))) for name, folder in (("c", new), ("d", old)))

    async with running(a, b):
        await until(are_linked(a, b))
        shutil.copytree(new, files, dirs_exist_ok=True)
        async with running(a, b, c, d):  # c trusts the new authority alone, d the old one
            await until(are_linked(a, b, c))
            await asyncio.sleep(0.5)  # for what must not happen
            assert not any(a.link(d).is_up or d.link(each).is_up for each in (a, b))


def test_files_that_are_being_written_leave_the_certificates_as_they_are(tmp_path: Path) -> None:
    files, new = issue(tmp_path / "files"), issue(tmp_path / "new")
    tls = PeerTLS(*(files / name for name in ("cert.pem", "key.pem", "ca.pem")))
    first = tls.contexts()
    with capture_logs() as logs:
        shutil.copy(new / "cert.pem", files)  # without its key yet
        assert tls.contexts() is tls.contexts() is first
        (files / "key.pem").unlink()
        assert tls.contexts() is first
        shutil.copy(new / "key.pem", files)
        assert tls.contexts() is tls.contexts() is not first
    assert [line["log_level"] for line in logs] == ["error", "error", "info"]


def test_files_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))
