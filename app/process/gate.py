"""
The gate of a server: what it serves may be exchanged, while requests wait in front of it.

server -> **Gate** -> the application of this round
"""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send


class Gate:
    """An ASGI application, open at first; all methods belong to the loop of its server."""

    def __init__(self, app: ASGIApp, *, wait_s: float) -> None:
        """
        Serve by an application until `app` is set to another one.

        Args:
            app: the first application.
            wait_s: how long a request waits for the gate to open; then the application answers it, which
                may be the one of before, and says that it serves no more.
        """
        self.app = app
        self._wait_s = wait_s
        self._inside = 0
        self._opened = asyncio.Event()
        self._opened.set()
        self._emptied = asyncio.Event()
        self._emptied.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if not self._opened.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s):
                    await self._opened.wait()
        self._inside += 1
        self._emptied.clear()
        try:
            await self.app(scope, receive, send)
        finally:
            self._inside -= 1
            if not self._inside:
                self._emptied.set()

    def open(self) -> None:
        """Let requests in."""
        self._opened.set()

    def close(self) -> None:
        """Have requests that come from now on wait."""
        self._opened.clear()

    async def wait_until_empty(self, limit_s: float) -> None:
        """Wait until all requests inside are answered, within `limit_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._emptied.wait()
