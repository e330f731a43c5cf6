"""Claim: workers submit, request and notify over real sockets, with TLS and without."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.peers.link import PeerLink
from app.peers.network import SocketNetwork
from app.peers.peers import Peers
from app.peers.tls import PeerTLS
from dedupe.decide.admission import Admission
from dedupe.model.clock import SystemClock
from dedupe.model.errors import IndexUnavailableError, LaneNotActiveError, LaneSaturatedError
from tests.support.certificates import write_certificate
from tests.support.peers import SECRET, RecordingHandler, deadline_of, events_of
from tests.support.submissions import submission_of
from tests.support.waiting import PATIENCE_S, until_async

HOST = "127.0.0.1"

pytestmark = pytest.mark.both_loops


class Worker:
    """One worker with a port of its own."""

    def __init__(self, name: str, *, secret: bytes = SECRET, **options: Any) -> None:
        self.name = name
        self.handler = RecordingHandler(f"status of {name}")
        self.peers = Peers(name, secret=secret, clock=SystemClock(), **options)
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"

    def link(self, worker: "Worker") -> PeerLink:
        link = self.peers.link(worker.name)
        assert link is not None
        return link


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """Run workers that know each other."""
    tasks = [asyncio.create_task(worker.peers.run(worker.listener, worker.handler)) for worker in workers]
    try:
        for worker in workers:
            worker.peers.set_members({each.name: each.address for each in workers})
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            worker.listener.close()


def are_linked(*workers: Worker) -> Callable[[], bool]:
    return lambda: all(
        (link := one.peers.link(other.name)) is not None and link.is_up
        for one in workers
        for other in workers
        if one is not other
    )


async def test_workers_submit_request_and_notify() -> None:
    a, b = Worker("a"), Worker("b")
    async with running(a, b):
        await until_async(are_linked(a, b))
        link = a.link(b)
        assert link.status == "status of b"
        events = events_of(100)
        link.check_capacity(submission_of(events, deadline=deadline_of(PATIENCE_S)))
        answers = [
            link.submit(
                3, submission_of(part, size_bytes=60_000, received_ms=17, deadline=deadline_of(PATIENCE_S))
            )
            for part in (events[:60], events[60:])
        ]
        outcomes = await asyncio.gather(*answers)
        assert [offset for each in outcomes for offset in each.offsets] == list(range(100))
        assert outcomes[0].admissions == [Admission.NEW] * 60
        first = b.handler.submissions[0]
        assert (first.lane, first.events, first.received_ms) == (3, events[:60], 17)
        assert 0 < first.deadline.remaining_s <= PATIENCE_S
        assert await link.request("where", {"id": 7}, PATIENCE_S) == ["where", {"id": 7}]
        assert link.notify("news", [1, 2])
        await until_async(lambda: ("a", "news", [1, 2]) in b.handler.received)
        assert a.peers.metrics.events_forwarded == b.peers.metrics.events_received == 100
        assert not a.peers.metrics.frames_refused
        assert not b.peers.metrics.frames_refused


async def test_statuses_reach_all_once_a_turn() -> None:
    a, b = Worker("a"), Worker("b")
    async with running(a, b):
        await until_async(are_linked(a, b))
        b.handler.own_status = "new"
        for _ in range(5):
            b.peers.announce()
        await until_async(lambda: a.link(b).status == "new")
        assert await a.link(b).request("is", "that all?", 5.0)
        assert [taken for taken in a.handler.received if taken[2] == "new"] == [("b", "status", "new")]


@pytest.mark.parametrize("err", [LaneNotActiveError("no", detail="x"), LaneSaturatedError("full")])
async def test_refusal_of_the_owner_comes_back_as_itself(err: Exception) -> None:
    a, b = Worker("a"), Worker("b")
    async with running(a, b):
        await until_async(are_linked(a, b))
        b.handler.refusal = err
        with pytest.raises(type(err)) as raised:
            await a.link(b).submit(0, submission_of(events_of(1)))
        assert (str(raised.value), getattr(raised.value, "told", "")) == (str(err), getattr(err, "told", ""))


async def test_error_of_an_answer_comes_back_as_itself() -> None:
    async def respond(_kind: str, _body: Any) -> Any:
        raise IndexUnavailableError("disk", detail="the disk is away")

    a, b = Worker("a"), Worker("b")
    async with running(a, b):
        await until_async(are_linked(a, b))
        b.handler.respond = respond
        with pytest.raises(IndexUnavailableError) as raised:
            await a.link(b).request("where", None, 5.0)
        assert raised.value.detail == "the disk is away"


async def test_another_secret_is_refused() -> None:
    a, b = Worker("a"), Worker("b", secret=b"another secret of enough bytes")
    async with running(a, b):
        await until_async(lambda: b.peers.metrics.frames_refused["unauthenticated"] > 0)
        await until_async(lambda: a.peers.metrics.frames_refused["unauthenticated"] > 0)
        assert not a.link(b).is_up
        with pytest.raises(LaneNotActiveError):
            a.link(b).check_capacity(submission_of(events_of(1)))


class Certificates:
    """A certificate for loopback that vouches for itself, shown and asked for by all workers."""

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        write_certificate(self.certificate, self._key, name)

    def network(self, trusted: Path | None = None) -> SocketNetwork:
        """Return TCP with TLS both ways; it trusts its own certificate unless told another one."""
        return SocketNetwork(PeerTLS(self.certificate, self._key, trusted or self.certificate))


async def test_workers_speak_tls(tmp_path: Path) -> None:
    shown = Certificates(tmp_path, "gateway")
    a, b = (Worker(name, network=shown.network()) for name in "ab")
    async with running(a, b):
        await until_async(are_linked(a, b))
        events = events_of(500, value=bytes(9_000))
        answers = [
            a.link(b).submit(0, submission_of(events, deadline=deadline_of(PATIENCE_S))) for _ in range(4)
        ]
        assert [len(outcomes.offsets) for outcomes in await asyncio.gather(*answers)] == [500] * 4
        assert b.handler.submissions[3].events == events
        for worker in (a, b):
            assert not worker.peers._unauthenticated


async def test_worker_without_the_right_certificate_is_not_served(tmp_path: Path) -> None:
    theirs, mine = Certificates(tmp_path, "theirs"), Certificates(tmp_path, "mine")
    b = Worker("b", network=theirs.network())
    a = Worker("a", network=mine.network(trusted=theirs.certificate))
    plain = Worker("c")
    async with running(a, b, plain):
        await asyncio.sleep(1.5)
        assert not a.link(b).is_up
        assert not plain.link(b).is_up
        assert b.peers.metrics.accepted == 0


async def test_crowd_that_never_begins_tls_keeps_nobody_out(tmp_path: Path) -> None:
    shown = Certificates(tmp_path, "gateway")
    a, b = (Worker(name, network=shown.network()) for name in "ab")
    async with running(a, b):
        port = b.listener.getsockname()[1]
        crowd = [socket.create_connection((HOST, port)) for _ in range(100)]
        try:
            await until_async(lambda: b.peers.metrics.frames_refused["too_many_strangers"] >= 36)
            assert len(b.peers._unauthenticated) <= 64
            assert await asyncio.to_thread(lambda: sum(map(has_ended, crowd))) >= 36
            await until_async(are_linked(a, b))
            await until_async(lambda: not b.peers._unauthenticated)
            assert await asyncio.to_thread(lambda: all(map(has_ended, crowd)))
        finally:
            for connection in crowd:
                connection.close()


def has_ended(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


async def test_what_is_no_tls_is_refused_and_counted(tmp_path: Path) -> None:
    shown = Certificates(tmp_path, "gateway")
    b = Worker("b", network=shown.network())
    async with running(b):
        with socket.create_connection((HOST, b.listener.getsockname()[1])) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            await until_async(lambda: b.peers.metrics.frames_refused["tls"] == 1)
        assert not b.peers._unauthenticated


async def test_large_submissions_both_ways_at_once() -> None:
    a, b = Worker("a"), Worker("b")
    async with running(a, b):
        await until_async(are_linked(a, b))
        events = events_of(40, value=bytes(750_000))
        answers = [
            one.link(other).submit(0, submission_of(events, deadline=deadline_of(PATIENCE_S)))
            for one, other in ((a, b), (b, a))
        ]
        assert [len(outcomes.offsets) for outcomes in await asyncio.gather(*answers)] == [40] * 2
        assert a.handler.submissions[0].events == b.handler.submissions[0].events == events
