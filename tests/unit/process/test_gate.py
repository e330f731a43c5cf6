"""Claim: while a gate is closed no request is lost or let in, and none waits for ever."""

import asyncio

from starlette.types import Receive, Scope, Send

from app.process.gate import Gate


class Application:
    """Notes which requests it was asked, and answers once it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await self.answers.wait()


def ask(gate: Gate, path: str) -> "asyncio.Task[None]":
    async def receive() -> dict[str, object]:
        return {}

    async def send(message: object) -> None:
        """Nothing is sent."""

    async def request() -> None:
        await gate({"type": "http", "path": path}, receive, send)

    return asyncio.ensure_future(request())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_of_a_closed_gate_are_asked_of_the_next_application() -> None:
    before, after = Application(), Application()
    gate = Gate(before, wait_s=60)
    inside = ask(gate, "/inside")
    await turns()

    gate.close()
    waiting = ask(gate, "/waits")
    emptied = asyncio.ensure_future(gate.wait_until_empty(60))
    await turns()
    assert (before.asked, emptied.done()) == (["/inside"], False)
    before.answers.set()
    await asyncio.gather(inside, emptied)

    gate.app = after
    await turns()
    assert not after.asked
    gate.open()
    after.answers.set()
    await waiting
    assert (before.asked, after.asked) == (["/inside"], ["/waits"])


async def test_request_that_has_waited_for_long_is_answered_by_whoever_is_there() -> None:
    before = Application()
    before.answers.set()
    gate = Gate(before, wait_s=0.01)
    gate.close()

    await ask(gate, "/late")

    assert before.asked == ["/late"]


async def test_request_that_is_never_answered_does_not_keep_a_gate_from_emptying() -> None:
    gate = Gate(Application(), wait_s=0)
    stuck = ask(gate, "/stuck")
    await turns()

    await gate.wait_until_empty(0.01)

    assert not stuck.done()
    stuck.cancel()
    await asyncio.wait([stuck])
    await gate.wait_until_empty(60)
