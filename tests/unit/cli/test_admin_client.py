import httpx
import pytest

from app.cli.admin_client import ask
from dedupe.errors import ConfigurationError


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
