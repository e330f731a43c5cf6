import asyncio
import contextlib

import httpx
import pytest

from app.cli.admin_client import ask
from dedupe.errors import ConfigurationError


async def test_interrupt_that_a_library_has_swallowed_ends_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def swallow(*_: object, **__: object) -> httpx.Response:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return httpx.Response(200, json={})

    monkeypatch.setattr(httpx.AsyncClient, "request", swallow)
    asked = asyncio.ensure_future(ask("http://localhost", "/", {}, token=None, timeout_s=1))
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_line_end_of_a_file_is_no_part_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object, headers: dict[str, str], **__: object) -> httpx.Response:
        return httpx.Response(200, json=headers)

    monkeypatch.setattr(httpx.AsyncClient, "request", answer)
    shown = await ask("http://localhost", "/", {}, token=" secret\n", timeout_s=1)
    assert shown == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize("token", ["sec\nret", "secr\u00e9t"])
async def test_token_that_no_header_can_have_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigurationError, match="characters that no HTTP header can have") as caught:
        await ask("http://localhost:1", "/", {}, token=token, timeout_s=1)
    assert "sec" not in str(caught.value)
