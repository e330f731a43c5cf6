"""
Claim: a replay waits for a gateway that refuses for now, gives up one event after a bounded number of
tries, and does not take a stranger's answer for a verdict.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import orjson
import pytest

from app.cli.replay import TRIES_MAX, Replayer
from app.ingest import Result
from dedupe.errors import ConfigurationError
from dedupe.quarantine_reader import Kept, Place
from tests.support.processes import HOST
from tests.support.tcp_server import TCPServer

RECEIPT = {"messageId": "1", "partition": 0, "offset": 7}


def answer_of(status: str, document: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status.encode(), b"Connection: close", b"Content-Length: %d" % len(document)]
    return b"\r\n".join([*lines, *headers, b"", document])


ACCEPTED = answer_of("200 OK", orjson.dumps({"success": True, "receipts": [RECEIPT]}), b"Gateway-Accepted: 1")
REFUSED = answer_of("503 x", b'{"code":"lane_not_active","message":"x"}', b"Retry-After: 0")
BAD_GATEWAY = answer_of("502 x", b"<html>", b"Retry-After: 0")
NO_GATEWAY = answer_of("200 OK", b"ok")
NO_ANSWER = b""

KEPT = Kept(
    Place(0, 3),
    1,
    "event_too_deep",
    "web",
    "1",
    b"k" * 16,
    {"truncated": False, "length": 17, "sha256": ""},
    b'{"messageId":"1"}',
)


class Scripted(TCPServer):
    """A server that gives one answer a connection and remembers what it was asked."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        super().__init__()
        self.requests: list[bytes] = []
        self._answers = iter(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"}]"))
        writer.write(next(self._answers))
        await writer.drain()


async def send_to(answers: Sequence[bytes]) -> tuple[Result, list[bytes]]:
    """Send one record to a scripted server; return the result and the requests it took."""
    async with (
        Scripted(answers) as server,
        aclosing(Replayer(f"http://{HOST}:{server.port}", "web")) as replayer,
    ):
        return await replayer.send(KEPT), server.requests


async def test_refusals_that_pass_are_waited_for() -> None:
    result, requests = await send_to([REFUSED, NO_ANSWER, BAD_GATEWAY, ACCEPTED])
    assert (result.name, result.receipt) == ("accepted", RECEIPT)
    assert len(set(requests)) == 1
    assert len(requests) == 4
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/events HTTP/1.1\r\n")
    assert b"\r\nidempotency-key: quarantine-" + (b"k" * 16).hex().encode() in head.lower()
    assert orjson.loads(body) == [{"messageId": "1"}]


async def test_event_is_given_up_after_its_tries() -> None:
    result, requests = await send_to([BAD_GATEWAY] * (TRIES_MAX - 1) + [REFUSED])
    assert (result.name, result.why) == ("failed", "503 lane_not_active")
    assert len(requests) == TRIES_MAX


async def test_answer_of_a_stranger_is_no_verdict() -> None:
    with pytest.raises(ConfigurationError, match="does not answer like a gateway"):
        await send_to([NO_GATEWAY])


@pytest.mark.parametrize(("status", "code"), [("401 x", b"invalid_write_key"), ("403 x", b"scope_missing")])
async def test_key_that_may_not_send_ends_the_replay(status: str, code: bytes) -> None:
    with pytest.raises(ConfigurationError, match="does not accept this write key"):
        await send_to([answer_of(status, b'{"code":"%b","message":"x"}' % code)])
