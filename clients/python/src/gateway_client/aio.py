"""The client for asyncio: no call blocks the event loop."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from .client import Client
from .model import ClosedError, DeadLetter, Place
from .vocabulary import Vocabulary

_Told = TypeVar("_Told")


class AsyncClient(Vocabulary[Awaitable[Place | None]]):
    """
    The calls of Client, to be awaited.

    They run one after the other in a thread of their own. One that is cancelled may have queued its
    events. Callbacks are called from threads.
    """

    def __init__(self, url: str, write_key: str, path: str | os.PathLike[str], **options: Any) -> None:
        """Take the arguments of Client; the first call opens the file, and raises what that raises."""
        self._make = partial(Client, url, write_key, path, **options)
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, "gateway-client-queue")

    async def __aenter__(self) -> Self:
        await self._run(lambda client: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, event: Mapping[str, Any]) -> Place | None:
        """Queue one event of any type."""
        return await self._run(lambda client: client.send(event))

    async def send_all(self, events: Sequence[Mapping[str, Any]]) -> list[Place]:
        """Queue events in one commit."""
        return await self._run(lambda client: client.send_all(events))

    async def flush(self, timeout: float = 10.0) -> bool:
        """Wait until every event is delivered or a dead letter, and return whether that is so."""
        client = await self._run(lambda client: client)
        return await asyncio.to_thread(client.flush, timeout)

    async def close(self, timeout: float = 5.0) -> bool:
        """Deliver for so long, then end within a second; return whether nothing is left."""
        loop = asyncio.get_running_loop()
        with suppress(RuntimeError):  # it was closed before
            await loop.run_in_executor(self._thread, lambda: None)  # the first call may be opening the file
        self._thread.shutdown(wait=False)
        return self._client is None or await asyncio.to_thread(self._client.close, timeout)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the events that will not be stored, oldest first."""
        return await self._run(Client.dead_letters)

    async def retry_dead_letters(self) -> int:
        """Queue all dead letters that can be read again, and return how many these are."""
        return await self._run(Client.retry_dead_letters)

    async def reset(self) -> None:
        """Forget the user."""
        await self._run(Client.reset)

    async def opt_out(self) -> None:
        """Delete all that is queued and kept, and drop what is queued later."""
        await self._run(Client.opt_out)

    async def opt_in(self) -> None:
        """Take events again."""
        await self._run(Client.opt_in)

    @property
    def sync(self) -> Client:
        """The client below, for its properties. Raises RuntimeError before the first call."""
        if self._client is None:
            raise RuntimeError("nothing was called yet")
        return self._client

    def _say(self, event: dict[str, Any]) -> Awaitable[Place | None]:
        return self._run(lambda client: client._say(event))

    async def _run(self, call: Callable[[Client], _Told]) -> _Told:
        def run() -> _Told:
            if self._client is None:
                self._client = self._make()
            return call(self._client)

        try:
            called = asyncio.get_running_loop().run_in_executor(self._thread, run)
        except RuntimeError as err:
            raise ClosedError("the client is closed") from err
        return await called
