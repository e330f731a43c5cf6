"""Claim: workers whose settings name certificates speak TLS by them; nobody without one is heard."""

import asyncio
import os
import shutil
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.group import network_of
from app.peers.limits import PeerLimits, Versions
from app.peers.tls import PeerTLS
from app.settings.model import Settings
from dedupe.model.errors import ConfigurationError
from tests.integration.test_peers import Worker, are_linked, running
from tests.support.certificates import write_certificate
from tests.support.settings import make_settings
from tests.support.waiting import until_async


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
        await until_async(are_linked(a, b))
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
        await until_async(are_linked(a, b))
        shutil.copytree(new, files, dirs_exist_ok=True)
        async with running(a, b, c, d):  # c trusts the new authority alone, d the old one
            await until_async(are_linked(a, b, c))
            await asyncio.sleep(0.5)  # for what must not happen
            assert not any(a.link(d).is_up or d.link(each).is_up for each in (a, b))


def copy_later(file: Path, folder: Path) -> None:
    """Copy a file some time after the one of before: the clock of files has steps of milliseconds."""
    copy = shutil.copy(file, folder)
    os.utime(copy, (time.time() + 1, time.time() + 1))


def test_files_that_are_being_written_leave_the_certificates_as_they_are(tmp_path: Path) -> None:
    files, new = issue(tmp_path / "files"), issue(tmp_path / "new")
    tls = PeerTLS(*(files / name for name in ("cert.pem", "key.pem", "ca.pem")))
    first = tls.contexts()
    with capture_logs() as logs:
        copy_later(new / "cert.pem", files)  # without its key yet
        assert tls.contexts() is tls.contexts() is first
        (files / "key.pem").unlink()
        assert tls.contexts() is first
        copy_later(new / "key.pem", files)
        assert tls.contexts() is tls.contexts() is not first
    assert [line["log_level"] for line in logs] == ["error", "error", "info"]


def test_files_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigurationError, match="GATEWAY_PEER_TLS"):
        network_of(settings(tmp_path))


def authority_of(folder: Path, *names: str, **days: float) -> dict[str, Path]:
    """Write a certificate for each name into a folder of its own; all trust all."""
    folders = {name: folder / name for name in names}
    for name, own in folders.items():
        own.mkdir()
        write_certificate(own / "cert.pem", own / "key.pem", name, days=days.get(name, 1))
    trusted = b"".join((own / "cert.pem").read_bytes() for own in folders.values())
    for own in folders.values():
        (own / "ca.pem").write_bytes(trusted)
    return folders


def why(worker: Worker, other: str) -> str:
    """Return why there is no connection to the other one."""
    link = worker.peers.link(other)
    return "" if link is None else link.why


@pytest.mark.regression(
    "A worker that another one refused over TLS said only that its connection was closed."
)
@pytest.mark.both_loops
async def test_worker_that_is_refused_over_tls_says_why(tmp_path: Path) -> None:
    folders = authority_of(tmp_path, "a", "b", "c", "d", c=-0.1)
    networks = {name: network_of(settings(folder)) for name, folder in folders.items()}
    a = Worker("a", network=networks["a"])
    b = Worker("b", network=networks["b"], secret=b"another secret of enough bytes")
    c = Worker("c", network=networks["c"])
    d = Worker("d", network=networks["d"], limits=PeerLimits(versions=Versions(99, 98)))

    async with running(a, b, c, d):
        await until_async(
            lambda: why(b, "a") == "refused by a: this worker has another GATEWAY_IDENTITY_SECRET"
        )
        await until_async(lambda: why(d, "a").startswith("refused by a: this worker speaks no version"))
        await until_async(lambda: why(a, "c") == "its certificate is not accepted: certificate has expired")
        assert not any(worker.link(a).is_up for worker in (b, c, d))


@pytest.mark.both_loops
async def test_alert_by_which_tls_refuses_a_worker_is_its_reason(tmp_path: Path) -> None:
    folders = authority_of(tmp_path, "a", "b", a=-0.1)
    a = Worker("a", network=network_of(settings(folders["a"])))
    context = PeerTLS(*(folders["b"] / name for name in ("cert.pem", "key.pem", "ca.pem"))).contexts().server

    def refuse(listener: socket.socket) -> None:
        """Accept as OpenSSL does by itself, which sends the alert."""
        with suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                with suppress(ssl.SSLError):
                    context.wrap_socket(accepted, server_side=True).recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = asyncio.get_running_loop().run_in_executor(None, refuse, listener)
        async with running(a):
            a.peers.set_members({"b": f"127.0.0.1:{listener.getsockname()[1]}"})
            await until_async(lambda: why(a, "b").endswith("alert certificate expired"))
        listener.shutdown(socket.SHUT_RDWR)
    await refusing
