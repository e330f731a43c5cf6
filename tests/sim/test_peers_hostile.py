"""Claim: whoever does not know the secret gets nowhere, and nothing that comes on a connection does harm."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgpack
import pytest

from app.peers.frames import BEFORE_PROOF_BYTES_MAX, HEAD, FrameReader, Kind, frame_of, packed
from app.peers.handshake import (
    DIALS,
    MAGIC,
    NONCE_BYTES,
    Challenge,
    Hello,
    challenge_of,
    key_of,
    proof_of,
)
from dedupe.model.errors import LaneNotActiveError
from tests.sim.seeds import each_seed
from tests.support.peer_group import Group, pairs, running, until
from tests.support.peers import SECRET

CHALLENGE, HELLO, PROOF, WELCOME = Kind.CHALLENGE, Kind.HELLO, Kind.PROOF, Kind.WELCOME
NOTIFY, REQUEST, SUBMIT = Kind.NOTIFY, Kind.REQUEST, Kind.SUBMIT


class Raw(asyncio.Protocol):
    """Bytes to a worker and back."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.is_lost = True

    async def frame(self) -> tuple[int, bytes]:
        """Wait for a frame, and return its kind and body."""
        async with asyncio.timeout(5):
            while not (found := list(FrameReader().read(self.received))):
                await asyncio.sleep(0.001)
        _, kind, _, body = found[0]
        told = kind, bytes(body)
        self.received = self.received[HEAD.size + len(body) :]
        return told


async def raw(group: Group, worker: str = "b", caller: str = "stranger") -> Raw:
    """Connect to a worker without a word."""
    _, protocol = await group.net.connect(caller, Raw, worker)
    assert isinstance(protocol, Raw)
    return protocol


async def proved(group: Group, worker: str = "b", name: str = "z") -> Raw:
    """Connect as somebody who knows the secret."""
    connection = await raw(group, worker)
    hello = Hello(MAGIC, 1, 1, name, worker, bytes(NONCE_BYTES))
    connection.transport.write(frame_of(1, HELLO, 0, packed(hello)))
    _, body = await connection.frame()
    proof = proof_of(key_of(SECRET), DIALS, hello, challenge_of(memoryview(body)))
    connection.transport.write(frame_of(1, PROOF, 0, packed((proof,))))
    kind, _ = await connection.frame()
    assert kind == WELCOME
    return connection


@asynccontextmanager
async def unharmed(group: Group) -> AsyncIterator[Group]:
    """Run workers that nothing may disturb: no link is lost, nothing is raised, nobody is kept."""
    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with running(group):
        yield group
        await asyncio.sleep(3)
        for one, other in pairs(group):
            assert (await group.submit(one, other)).offsets == [0]
            assert group.peers[one].metrics.connected == len(group.peers) - 1
        for peers in group.peers.values():
            assert not peers._unauthenticated
            assert peers.metrics.frames_refused["internal"] == 0
            assert set(peers._acceptors) <= set(group.peers)
    assert raised == []


@each_seed(one_in=5)
async def test_noise_is_refused_and_counted(seed: int) -> None:
    rng = Random(seed)
    async with unharmed(Group("a", "b", seed=seed)) as group:
        connections = [await raw(group) for _ in range(5)]
        for connection in connections:
            connection.transport.write(rng.randbytes(rng.randint(1, 3000)))
        await asyncio.sleep(3)
        assert all(connection.is_lost for connection in connections)
        assert sum(group.peers["b"].metrics.frames_refused.values()) == 5


@each_seed(one_in=5)
async def test_noise_of_somebody_who_knows_the_secret_is_refused_or_answered(seed: int) -> None:
    rng = Random(seed)
    async with unharmed(Group("a", "b", seed=seed)) as group:
        group.handlers["b"].refusal = KeyError("handlers may fail as well") if seed % 3 == 0 else None
        for _ in range(5):
            connection = await proved(group)
            for _ in range(rng.randint(1, 6)):
                kind = rng.choice((SUBMIT, SUBMIT, REQUEST, NOTIFY, HELLO, PROOF, 77, CHALLENGE))
                body = rng.choice((noise, msgpack_noise, nearly_right))(rng)
                connection.transport.write(frame_of(rng.choice((1, 1, 1, 2)), kind, rng.randint(0, 3), body))
            await asyncio.sleep(0.2)
            connection.transport.abort()
        group.handlers["b"].refusal = None


def noise(rng: Random) -> bytes:
    return rng.randbytes(rng.randint(0, 500))


def msgpack_noise(rng: Random) -> bytes:
    def value(depth: int) -> Any:
        kind = rng.randrange(9 if depth < 4 else 6)
        if kind == 6:
            return [value(depth + 1) for _ in range(rng.randint(0, 17))]
        if kind == 7:
            return {rng.choice(("a", b"b", 3)): value(depth + 1)}
        return (
            None,
            True,
            rng.getrandbits(64),
            1.5,
            rng.randbytes(16),
            "text",
            None,
            None,
            msgpack.Timestamp(1),
        )[kind]

    return packed([value(0) for _ in range(rng.randint(0, 17))])


def nearly_right(rng: Random) -> bytes:
    optional = [None] * 5
    body = bytearray(packed([0, 1, 2, 999, bytes(24), 0, "s", ["id"], [b"{}"], [0], *optional]))
    for _ in range(rng.randint(0, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body[: rng.randint(1, len(body) * 3)])


async def test_deeply_nested_and_endless_bodies_are_refused() -> None:
    async with unharmed(Group("a", "b")) as group:
        for body in (
            b"\x91" * 100_000,
            b"\xdd\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
        ):
            connection = await proved(group)
            connection.transport.write(frame_of(1, SUBMIT, 1, body))
            await asyncio.sleep(0.5)
            assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"malformed": 4}


async def test_frame_that_is_too_large_is_refused_by_its_head() -> None:
    async with unharmed(Group("a", "b")) as group:
        limits = group.peers["b"]._shared.limits
        stranger = await raw(group)
        stranger.transport.write(HEAD.pack(BEFORE_PROOF_BYTES_MAX + 1, 1, HELLO, 0))
        for kind, length in ((SUBMIT, limits.frame_bytes_max + 1), (REQUEST, limits.message_bytes_max + 1)):
            worker = await proved(group)
            worker.transport.write(HEAD.pack(length, 1, kind, 0))
            await asyncio.sleep(0.1)
            assert worker.is_lost
        assert stranger.is_lost
        assert group.peers["b"].metrics.frames_refused == {"too_large": 3}


async def test_stranger_keeps_no_more_than_a_small_frame() -> None:
    async with unharmed(Group("a", "b")) as group:
        connection = await raw(group)
        head = HEAD.pack(BEFORE_PROOF_BYTES_MAX, 1, HELLO, 0)
        connection.transport.write(head + bytes(500))
        await asyncio.sleep(0.1)
        (stranger,) = group.peers["b"]._unauthenticated
        assert len(stranger._reader._waiting) <= HEAD.size + BEFORE_PROOF_BYTES_MAX
        await asyncio.sleep(2.2)
        assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"late_handshake": 1}


async def test_crowd_of_silent_strangers_keeps_nobody_out() -> None:
    async with unharmed(Group("a", "b")) as group:
        crowd = [await raw(group) for _ in range(100)]
        await asyncio.sleep(0.01)
        assert len(group.peers["b"]._unauthenticated) == 64
        assert sum(connection.is_lost for connection in crowd) == 36
        worker = await proved(group)
        assert not worker.is_lost
        assert group.peers["b"].metrics.frames_refused == {"too_many_strangers": 37}
        worker.transport.abort()


@pytest.mark.parametrize("kind", [PROOF, SUBMIT, REQUEST, NOTIFY, CHALLENGE, WELCOME, 6, 99])
async def test_nothing_is_served_before_the_proof(kind: int) -> None:
    async with unharmed(Group("a", "b")) as group:
        connection = await raw(group)
        connection.transport.write(frame_of(1, kind, 1, packed(["news", 1])))
        await asyncio.sleep(0.1)
        assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"wrong_state": 1}
        assert not [taken for taken in group.handlers["b"].received if taken[1] == "news"]


async def test_replayed_handshake_is_refused() -> None:
    async with unharmed(Group("a", "b")) as group:
        hello = Hello(MAGIC, 1, 1, "z", "b", bytes(NONCE_BYTES))
        first = await raw(group)
        first.transport.write(frame_of(1, HELLO, 0, packed(hello)))
        _, body = await first.frame()
        proof = frame_of(
            1, PROOF, 0, packed((proof_of(key_of(SECRET), DIALS, hello, challenge_of(memoryview(body))),))
        )
        second = await raw(group)
        second.transport.write(frame_of(1, HELLO, 0, packed(hello)))
        await second.frame()
        second.transport.write(proof)
        await asyncio.sleep(0.1)
        assert second.is_lost
        assert group.peers["b"].metrics.frames_refused == {"unauthenticated": 1}
        first.transport.write(proof)
        assert (await first.frame())[0] == WELCOME
        first.transport.abort()


async def test_reflected_challenge_is_refused() -> None:
    """Somebody who is called instead of b hands a's own words back to a, on a second connection."""
    async with running(Group("a", "b")) as group:
        called = Raw()
        await group.stop("b")
        group.net.listeners["b"] = lambda: called
        kind, body = await called.frame()
        assert kind == HELLO
        from_a = Hello._make(msgpack.unpackb(body))
        back = await raw(group, "a")
        back.transport.write(frame_of(1, HELLO, 0, packed(from_a._replace(worker="b", to="a"))))
        kind, body = await back.frame()
        assert kind == CHALLENGE
        from_a_too = Challenge._make(msgpack.unpackb(body))
        called.transport.write(frame_of(1, CHALLENGE, 0, packed(from_a_too._replace(worker="b"))))
        kind, proof = await called.frame()
        assert kind == PROOF
        back.transport.write(frame_of(1, PROOF, 0, proof))
        called.transport.write(frame_of(1, WELCOME, 0, proof))
        await asyncio.sleep(0.1)
        assert back.is_lost
        assert called.is_lost
        assert group.peers["a"].metrics.frames_refused == {"unauthenticated": 2}
        assert not group.link("a", "b").is_up


@pytest.mark.regression(
    "A worker that had slept through a plan sent events to partitions that had given their slots away."
)
async def test_worker_of_an_earlier_plan_reaches_none_of_a_later_one() -> None:
    async with running(Group("a", "b", "c", plans=(0, 1, 1)), is_linked=False) as group:
        await until(lambda: group.link("b", "c").is_up and group.link("c", "b").is_up)
        await asyncio.sleep(5.0)

        assert not group.link("a", "b").is_up
        assert not group.link("b", "a").is_up
        await group.submit("c", "b")
        with pytest.raises(LaneNotActiveError):
            group.submit("a", "b")
        assert len(group.handlers["b"].submissions) == 1
        assert "another plan" in group.link("a", "b").why


async def test_own_words_echoed_are_refused() -> None:
    async with unharmed(Group("a", "b")) as group:
        connection = await raw(group)
        hello = Hello(MAGIC, 1, 1, "b", "b", bytes(NONCE_BYTES))
        connection.transport.write(frame_of(1, HELLO, 0, packed(hello)))
        await asyncio.sleep(0.1)
        assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"wrong_worker": 1}


@pytest.mark.parametrize("kind", [HELLO, PROOF, CHALLENGE, WELCOME, 5, 8, 9, 11])
async def test_frames_of_the_wrong_state_end_the_connection(kind: int) -> None:
    async with unharmed(Group("a", "b")) as group:
        connection = await proved(group)
        connection.transport.write(frame_of(1, kind, 1, packed([1, 2, 3])))
        await asyncio.sleep(0.1)
        assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"wrong_state": 1}


async def test_frame_of_another_version_than_agreed_on_ends_the_connection() -> None:
    async with unharmed(Group("a", "b")) as group:
        connection = await proved(group)
        connection.transport.write(frame_of(2, NOTIFY, 0, packed(["news", 1])))
        await asyncio.sleep(0.1)
        assert connection.is_lost
        assert group.peers["b"].metrics.frames_refused == {"version": 1}


async def test_status_that_cannot_be_told_is_none() -> None:
    async with running(Group("a", "b")) as group:
        for status in (object(), bytes(5 * 1024 * 1024)):
            group.handlers["b"].own_status = status
            group.peers["b"].announce()
            await asyncio.sleep(1)
            assert group.link("a", "b").is_up
            assert group.link("a", "b").status is None


async def test_answers_that_nobody_asked_for_end_the_connection_alone() -> None:
    async with running(Group("a", "b")) as group:
        acceptor = group.peers["b"]._acceptors["a"]
        acceptor.send(8, 0, packed(([12345], b"\0", [1])))
        await asyncio.sleep(0.1)
        assert group.peers["a"].metrics.frames_refused == {"not_asked": 1}
        await asyncio.sleep(2)
        assert group.link("a", "b").is_up
