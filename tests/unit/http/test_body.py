"""Claim: whatever a client sends, reading its body takes bounded memory and time, and ends in one verdict."""

import asyncio
import gzip
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from app.http.body import GZIP_MEMBERS_MAX, PIECE_BYTES, SLICE_BYTES, BodyLimits, Inflater, read_body
from app.http.body_memory import BodyMemory, MemoryReservation
from app.http.errors import (
    BodyNotDecompressableError,
    BodyTimeoutError,
    BodyTooLargeError,
    UnsupportedEncodingError,
)

LIMITS = BodyLimits(bytes_max=10_000, compressed_bytes_max=3_000)
TEXT = b'{"batch":[' + b'{"event":"x"},' * 300 + b"{}]}"
GZIP = {b"content-encoding": b"gzip"}
zipped = partial(gzip.compress, mtime=0)
"""The same bytes in every run, for they name tests."""


def lease(capacity: int = 1_000_000) -> MemoryReservation:
    return MemoryReservation(BodyMemory(capacity))


async def look(_size_bytes: int) -> None:
    """Everybody else's turn."""
    await asyncio.sleep(0)


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


def channel(chunks: Sequence[bytes], *, then_leave: bool = False) -> Receive:
    """An ASGI channel that delivers the chunks; reading beyond its end fails the test."""
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": then_leave or chunk_number < len(chunks) - 1}
        for chunk_number, chunk in enumerate(chunks)
    ]
    if then_leave:
        messages.append({"type": "http.disconnect"})
    remaining = iter(messages)

    async def receive() -> Message:
        return next(remaining)

    return receive


def pieces(data: bytes, seed: int) -> list[bytes]:
    """Cut data at random places, empty pieces included."""
    rng = random.Random(seed)
    places = [0, *sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, 12))), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


async def read(data: bytes, headers: dict[bytes, bytes], seed: int = 0) -> bytes:
    return await read_body(channel(pieces(data, seed)), headers, LIMITS, lease(), look)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({}, TEXT),
        ({b"content-encoding": b"identity"}, TEXT),
        ({b"content-encoding": b""}, TEXT),
        (GZIP, zipped(TEXT)),
        ({b"content-encoding": b" GZIP "}, zipped(TEXT)),
        ({b"content-encoding": b"x-gzip"}, zipped(TEXT)),
        (GZIP, zipped(TEXT[:100]) + zipped(b"") + zipped(TEXT[100:])),
        (GZIP, zipped(TEXT) + b"\0" * 40),
        ({b"content-encoding": b"deflate"}, zlib.compress(TEXT)),
        ({b"content-encoding": b"deflate"}, raw_deflate(TEXT)),
    ],
)
async def test_body_is_read_however_it_is_cut(headers: dict[bytes, bytes], data: bytes, seed: int) -> None:
    assert await read(data, headers, seed) == TEXT


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("headers", "data"),
    [
        (GZIP, b"text"),
        (GZIP, b""),
        ({}, zipped(TEXT)[:-1]),
        ({b"content-encoding": b"UTF-8"}, zlib.compress(TEXT)[:-1]),
        (GZIP, zipped(TEXT)[:-1]),
        (GZIP, zipped(TEXT)[:-9] + b"\0" + zipped(TEXT)[-8:]),
        (GZIP, zipped(TEXT) + b"garbage"),
        (GZIP, zipped(TEXT) + zipped(TEXT)[:20]),
        (GZIP, zipped(b"") * (GZIP_MEMBERS_MAX + 1)),
        ({b"content-encoding": b"deflate"}, zlib.compress(TEXT) + zlib.compress(TEXT)),
        ({b"content-encoding": b"deflate"}, zlib.compress(TEXT)[:-1]),
    ],
)
async def test_body_that_is_not_what_it_says_is_refused(
    headers: dict[bytes, bytes], data: bytes, seed: int
) -> None:
    with pytest.raises(BodyNotDecompressableError):
        await read(data, headers, seed)


NOISE = random.Random(1).randbytes(900).hex().encode()
LONG = b",".join(b'{"messageId":"%d","p":"%b"}' % (n, NOISE[n : n + 40]) for n in range(120))


@pytest.mark.parametrize(
    ("data", "undamaged", "code"),
    [
        (zipped(LONG)[:-1], LONG, "body_truncated"),
        (zipped(LONG)[:-8], LONG, "body_truncated"),
        (zipped(LONG)[: len(zipped(LONG)) // 2], None, "body_truncated"),
        (zipped(LONG) + zipped(LONG)[:12], LONG, "body_truncated"),
        (zlib.compress(LONG)[:-1], LONG, "body_truncated"),
        (zipped(LONG)[:-8] + b"x" * 8, LONG, "body_not_decompressable"),
        (zipped(LONG) + b"garbage", LONG, "body_not_decompressable"),
        (zipped(LONG) + zipped(b"") * GZIP_MEMBERS_MAX, LONG, "body_not_decompressable"),
        (zipped(LONG)[:300] + random.Random(3).randbytes(2_000), None, "body_not_decompressable"),
        (zlib.compress(LONG) + zlib.compress(LONG), LONG, "body_not_decompressable"),
    ],
)
async def test_damaged_body_is_inflated_up_to_the_damage_where_the_rest_is_of_use(
    data: bytes, undamaged: bytes | None, code: str
) -> None:
    damages: list[str] = []
    found = await read_body(
        channel([data]), {}, LIMITS, lease(), look, lambda damage: damages.append(damage.code)
    )
    assert damages == [code]
    if undamaged is None:
        readable = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data[:300])
        assert 0 < len(readable) <= len(found)
        assert found.startswith(readable)
        assert LONG.startswith(readable)
    else:
        assert found == undamaged
    with pytest.raises(BodyNotDecompressableError):
        await read_body(channel([data]), {}, LIMITS, lease(), look)


@pytest.mark.parametrize("data", [zipped(TEXT)[:12], b"\x1f\x8bgarbage", zlib.compress(TEXT)[:3]])
async def test_body_of_which_nothing_can_be_inflated_is_kept_as_received(data: bytes) -> None:
    assert await read_body(channel([data]), GZIP, LIMITS, lease(), look, lambda _damage: None) == data
    with pytest.raises(BodyNotDecompressableError):
        await read_body(channel([data]), GZIP, LIMITS, lease(), look)


async def test_looking_for_the_damage_takes_its_turns_and_keeps_the_bounds() -> None:
    turns: list[int] = []

    async def turn(size_bytes: int) -> None:
        turns.append(size_bytes)

    noise = random.Random(2).randbytes(400_000)
    limits = BodyLimits(bytes_max=1_000_000, compressed_bytes_max=1_000_000)
    damaged = zipped(noise)[:300_000] + b"\xff" * 50_000
    reservation = lease(4_000_000)
    found = await read_body(channel([damaged]), {}, limits, reservation, turn, lambda _damage: None)
    assert len(found) > 299_000
    assert len(turns) > 20
    assert reservation.held == 1_000_000  # as its last bytes declare


@pytest.mark.regression("A compressed body without Content-Encoding was refused.")
@pytest.mark.parametrize(
    "encoding",
    [
        None,
        *(b"", b"identity", b"IDENTITY", b"gzip", b"deflate", b"x-gzip", b"gzip;q=1", b" deflate ; q=0.5"),
        *(
            b"UTF-8",
            b"identity, gzip",
            b"gzip, identity",
            b"gzip, gzip",
            b"deflate,gzip",
            b",",
            b"none",
            b"*",
        ),
        *(b"aws-chunked", b"application/json", b"base64", b'"gzip"', b"gzip/1.0", b"brotlli", b"\xff\x00"),
    ],
)
@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        zipped(TEXT),
        gzip.compress(TEXT, compresslevel=1, mtime=0) + zipped(b""),
        *(zlib.compress(TEXT, level=level) for level in (0, 1, 6, 9)),
        *(zlib.compress(TEXT, wbits=window) for window in (9, 12)),
    ],
    ids=["plain", "gzip", "two gzips", "zlib 0", "zlib 1", "zlib 6", "zlib 9", "zlib of 512", "zlib of 4096"],
)
async def test_first_bytes_decide_about_compression(encoding: bytes | None, data: bytes) -> None:
    limits = replace(LIMITS, compressed_bytes_max=len(TEXT) + 20)
    headers = {} if encoding is None else {b"content-encoding": encoding}
    for chunks in ([data], [data[:1], data[1:]], [bytes([byte]) for byte in data]):
        assert await read_body(channel(chunks), headers, limits, lease(), look) == TEXT


@pytest.mark.parametrize("begin", [b"", b" ", b"\r\n\t ", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b" " * 900])
@pytest.mark.parametrize("rest", [b"{}", b"[]", b'"{}"', b"{broken", b"["])
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"utf-8", b""])
async def test_body_that_begins_like_json_is_plain(begin: bytes, rest: bytes, encoding: bytes) -> None:
    assert await read(begin + rest, {b"content-encoding": encoding}) == begin + rest


@pytest.mark.parametrize(
    "data", [b"", b"text", b"(", b"\x1f\x9d\x90", b"x\xff", b"x\xbb\0\0\0\0", b"\xef\xbb{"]
)
async def test_header_decides_where_the_first_bytes_do_not(data: bytes) -> None:
    assert await read(data, {}) == await read(data, {b"content-encoding": b"identity"}) == data
    with pytest.raises(BodyNotDecompressableError):
        await read(data, GZIP)
    if data:
        with pytest.raises(UnsupportedEncodingError):
            await read(data, {b"content-encoding": b"utf-8"})


async def test_plain_body_may_be_larger_than_a_compressed_one_whatever_the_header_says() -> None:
    text = b"[" + b" " * 9_998 + b"]"
    for headers in ({}, GZIP, {b"content-encoding": b"UTF-8"}):
        declared = {**headers, b"content-length": b"10000"}
        assert await read_body(channel(pieces(text, 1)), declared, LIMITS, lease(), look) == text
        with pytest.raises(BodyTooLargeError):
            await read(text + b" ", headers)


async def test_compressed_body_keeps_its_bounds_whatever_the_header_says() -> None:
    noise = gzip.compress(random.Random(1).randbytes(3_100))
    for headers in ({}, GZIP, {b"content-encoding": b"UTF-8"}):
        for too_large in (noise, gzip.compress(b"x" * 10_001), zlib.compress(b"x" * 10_001)):
            memory = BodyMemory(1_000_000)
            with pytest.raises(BodyTooLargeError):
                await read_body(channel([too_large]), headers, LIMITS, MemoryReservation(memory), look)
            assert memory.peak <= LIMITS.bytes_max
    reservation = MemoryReservation(BodyMemory(1_000_000))
    await read_body(channel([zlib.compress(TEXT)]), {}, LIMITS, reservation, look)
    assert reservation.held == len(TEXT)


@pytest.mark.parametrize(
    "encoding", [b"br", b"zstd", b"gzip, br", b"compress", b"Zstd;q=1", b"identity,br", b"dcb"]
)
async def test_other_encodings_are_refused_before_reading(encoding: bytes) -> None:
    with pytest.raises(UnsupportedEncodingError):
        await read_body(channel([]), {b"content-encoding": encoding}, LIMITS, lease(), look)


async def test_largest_body_passes() -> None:
    assert await read(b"x" * 10_000, {b"content-length": b"10000"}) == b"x" * 10_000
    assert await read(gzip.compress(b"x" * 10_000), GZIP) == b"x" * 10_000


@pytest.mark.parametrize("seed", range(5))
async def test_one_byte_too_many_is_refused(seed: int) -> None:
    with pytest.raises(BodyTooLargeError):
        await read(b"x" * 10_001, {}, seed)
    with pytest.raises(BodyTooLargeError):
        await read(gzip.compress(b"x" * 10_001), GZIP, seed)
    with pytest.raises(BodyTooLargeError):
        await read(gzip.compress(b"x" * 9_000) + gzip.compress(b"x" * 1_001), GZIP, seed)
    with pytest.raises(BodyTooLargeError):
        await read(gzip.compress(random.Random(1).randbytes(3_100)), GZIP, seed)


async def test_bomb_is_refused_at_the_first_byte_too_many() -> None:
    bomb = gzip.compress(b"\0" * 1_000_000)
    assert len(bomb) < LIMITS.compressed_bytes_max
    memory = BodyMemory(1_000_000)
    with pytest.raises(BodyTooLargeError):
        await read_body(channel([bomb]), GZIP, LIMITS, MemoryReservation(memory), look)
    assert memory.peak <= LIMITS.bytes_max


@pytest.mark.regression("A stalled body held the memory that it had announced.")
async def test_compressed_body_that_stalls_holds_nothing_but_what_it_sent() -> None:
    memory = BodyMemory(1_000_000)
    is_waiting = asyncio.Event()
    sent = iter([gzip.compress(TEXT)[:-1]])

    async def receive() -> Message:
        for chunk in sent:
            return {"type": "http.request", "body": chunk, "more_body": True}
        is_waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    reading = asyncio.create_task(read_body(receive, GZIP, LIMITS, MemoryReservation(memory), look))
    await is_waiting.wait()
    assert memory.peak == 0  # what arrives is charged by the connection
    reading.cancel()


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 10_000_000,
        random.Random(1).randbytes(3_000_000),
        b'{"event":"x"},' * 500_000,
    ],
)
def test_compressed_body_is_inflated_in_small_steps(data: bytes) -> None:
    compressed = gzip.compress(data)
    sizes = [len(piece) for piece in Inflater(is_gzip=True, bytes_max=10_000_000).inflate(compressed)]
    assert sum(sizes) == len(data)
    assert max(sizes) <= PIECE_BYTES
    assert len(sizes) >= max(len(data) / PIECE_BYTES, len(compressed) / SLICE_BYTES)


async def test_each_step_but_the_first_waits_for_a_turn() -> None:
    turns: list[int] = []

    async def turn(size_bytes: int) -> None:
        turns.append(size_bytes)

    limits = BodyLimits(bytes_max=8_000_000, compressed_bytes_max=10_000)
    await read_body(channel([gzip.compress(b"x" * 8_000_000)]), GZIP, limits, lease(10_000_000), turn)
    assert len(turns) >= 8_000_000 // PIECE_BYTES
    turns.clear()
    await read_body(channel([gzip.compress(TEXT)]), GZIP, LIMITS, lease(), turn)
    assert not turns


@pytest.mark.parametrize(("headers", "length"), [({}, b"10001"), (GZIP, b"10001"), ({}, b"9" * 40)])
async def test_declared_length_is_refused_before_reading(headers: dict[bytes, bytes], length: bytes) -> None:
    with pytest.raises(BodyTooLargeError):
        await read_body(channel([]), {**headers, b"content-length": length}, LIMITS, lease(), look)


async def test_client_that_leaves_ends_the_reading() -> None:
    with pytest.raises(ClientDisconnect):
        await read_body(channel([b"half"], then_leave=True), {}, LIMITS, lease(), look)


async def test_body_that_does_not_arrive_is_given_up() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(BodyTimeoutError):
        await read_body(
            receive, {}, BodyLimits(bytes_max=1, compressed_bytes_max=1, grace_s=0.01), lease(), look
        )


def test_patience_ends_with_the_grace_or_the_rate() -> None:
    limits = BodyLimits(bytes_max=1, compressed_bytes_max=1, grace_s=10, rate_min=512)
    assert limits.patience_s(0) == limits.patience_s(5_120) == 10
    assert limits.patience_s(5_120 + 1_024) == 12
    assert limits.patience_s(512 * 3_600) == 3_600


@pytest.mark.regression("Phones with a slow uplink got a 503 at each try of a large body.")
@pytest.mark.parametrize(
    ("size", "rate", "arrives"),
    [
        (475_000, 12_000, True),
        (4_500_000, 100_000, True),
        (8 << 20, 2_300, True),
        (60_000, 2_100, True),
        (15_000, 600, True),  # within the grace
        (475_000, 1_900, False),
        (8 << 20, 1, False),
    ],
)
def test_slow_uplink_gets_any_size_through(size: int, rate: int, arrives: bool) -> None:
    limits = BodyLimits(bytes_max=8 << 20, compressed_bytes_max=4 << 20)
    seconds = range(1, 1 + size // rate)
    assert all(second < limits.patience_s((second - 1) * rate) for second in seconds) is arrives


async def test_body_that_trickles_is_given_up() -> None:
    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": True}

    limits = BodyLimits(bytes_max=9, compressed_bytes_max=9, grace_s=0.01, rate_min=512)
    with pytest.raises(BodyTimeoutError):
        await read_body(receive, {}, limits, lease(), look)
