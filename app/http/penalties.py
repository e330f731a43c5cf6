"""
Delays of refusals, against clients that send again at once.

A refusal without quota or memory is always delayed. One that is final is delayed after the first few: those
of requests with one write key from one address group, and the failed log-ins of an address group. Write keys
are public, so what one address sends never delays another one. Nor does what waits keep others out: where
connections run short, the greediest address gets its delayed answers at once, and loses these connections.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import Scope

from app.http.client_address import address_group
from app.http.errors import BodyMemoryFullError, InvalidWriteKeyError, QuotaExceededError, RequestError
from app.http.request_context import CONTEXT, RequestContext
from dedupe.model.errors import GatewayError

DELAY_S = 0.5

FREE = 20.0
"""The final refusals that are answered at once: a client that learns what is wrong needs a few."""

RATE = 1.0
"""How many more of them a second."""

ENTRIES_MAX = 8_192
"""The limit of remembered senders; of more, those that were refused longest ago are forgotten."""

_LOG_IN = None
"""Stands for the write key of failed log-ins, which count together: a stranger has a new key each time."""


class Penalties:
    """The delays of one ingest port; used in its event loop."""

    def __init__(self, delay_s: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`delay_s`: of each delayed answer; `clock`: in seconds."""
        self._delay_s = delay_s
        self._clock = clock
        self._left: OrderedDict[tuple[int | None, str], tuple[float, float]] = OrderedDict()
        """Free refusals and when they were counted, by sender, the last refused one last."""

    async def hold_back(self, err: GatewayError | HTTPException, scope: Scope) -> None:
        """Wait before the answer of an error if it is due, without the memory of the request's body."""
        if not self._is_due(err, scope):
            return
        context: RequestContext = scope[CONTEXT]
        context.lease.fail(err if isinstance(err, GatewayError) else RequestError())
        # Frames and causes refer to the body, whose memory is released.
        err.__traceback__ = err.__cause__ = err.__context__ = None
        await self._wait(scope)

    async def note_failed_log_ins(self, count: int, scope: Scope) -> None:
        """Count unknown keys of a request whose answer is no error, and wait if it is due."""
        if count and self._is_over(_LOG_IN, scope, count):
            await self._wait(scope)

    async def _wait(self, scope: Scope) -> None:
        """Wait, at most until the connection has to make room for others."""
        context: RequestContext = scope[CONTEXT]
        connection = context.connection() if context.connection is not None else None
        if connection is None:
            await asyncio.sleep(self._delay_s)
            return
        wait = asyncio.ensure_future(asyncio.sleep(self._delay_s))
        connection.hold(wait)
        try:
            await asyncio.wait([wait])
        finally:
            wait.cancel()
            connection.hold(None)

    def _is_due(self, err: GatewayError | HTTPException, scope: Scope) -> bool:
        if isinstance(err, QuotaExceededError | BodyMemoryFullError):
            return True
        if isinstance(err, InvalidWriteKeyError):
            return self._is_over(_LOG_IN, scope, err.keys)
        if isinstance(err, RequestError | HTTPException):
            context: RequestContext = scope[CONTEXT]
            return self._is_over(hash(context.write_key), scope, 1)
        return False

    def _is_over(self, key: int | None, scope: Scope, count: int) -> bool:
        """Count refusals; return whether the last of them is not free."""
        client = scope["client"]
        sender = key, address_group(client[0]) if client else ""
        now = self._clock()
        left, at = self._left.pop(sender, (FREE, now))
        left = min(FREE, left + (now - at) * RATE) - count
        self._left[sender] = max(0.0, left), now
        if len(self._left) > ENTRIES_MAX:
            self._left.popitem(last=False)
        return left < 0
