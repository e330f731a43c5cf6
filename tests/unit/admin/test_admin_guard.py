"""Claim: the admin port answers under its own names only, and tells those without the token only numbers."""

import httpx
import orjson
import pytest
from starlette.responses import Response

from app.admin.guard import AdminGuard
from app.config.networks import is_loopback


async def ask(
    host: str = "localhost", *, path: str = "/admin/v1/stats", token: str | None = None, **headers: str
) -> httpx.Response:
    guard = AdminGuard(Response(), hosts=["gateway.internal", "0.0.0.0"], token=token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://x") as client:
        return await client.get(path, headers={"Host": host, **headers})


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9090",
        "gateway.localhost",
        "127.0.0.1:9090",
        "10.1.2.3",
        "[::1]:9090",
        "[2001:db8::1]",
        "Gateway.Internal:9090",
        "",
    ],
)
async def test_own_names_and_addresses_are_answered(host: str) -> None:
    assert (await ask(host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "localhost.attacker.example:9090", "127.0.0.1.attacker.example", "[", ":9090"],
)
async def test_name_that_a_page_may_have_is_refused(host: str) -> None:
    for path in ("/admin/v1/stats", "/livez"):
        answer = await ask(host, path=path)
        assert (answer.status_code, orjson.loads(answer.content)["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_orchestrators_need_no_token(path: str) -> None:
    assert (await ask(path=path, token="a token of an operator")).status_code == 200


@pytest.mark.parametrize("path", ["/admin/v1/stats", "/livez/", "/", "//metrics"])
async def test_everything_else_needs_the_token_where_there_is_one(path: str) -> None:
    token = "a token of an operator"
    for header in ("", "Bearer", "Bearer another token", f"Basic {token}", f"Bearer {token}x"):
        answer = await ask(path=path, token=token, Authorization=header)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert token not in answer.text
    assert (await ask(path=path, token=token, Authorization=f"bearer {token}")).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("gateway.internal", False),
    ],
)
def test_loopback_is_this_machine_alone(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
