"""Claim: the admin port answers under its own names only, and its own pages alone may change something."""

import httpx
import orjson
import pytest
from starlette.responses import Response

from app.admin.host_check import check_hosts
from app.build import build_admin_problems
from app.settings.networks import is_loopback


async def ask(
    host: str = "localhost", *, path: str = "/admin/v1/stats", method: str = "GET", **headers: str
) -> httpx.Response:
    problems = build_admin_problems()
    guard = check_hosts(Response(), hosts=["gateway.internal", "0.0.0.0"], problems=problems)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://x") as client:
        return await client.request(method, path, headers={"Host": host, **headers})


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
        assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    "origin",
    ["http://attacker.example", "null", "http://localhost:3000", "http://localhost", "http://[", "https://"],
)
async def test_page_of_another_origin_changes_nothing(origin: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await ask("localhost:9090", method=method, path="/admin/v1/drain", Origin=origin)
        assert (answer.status_code, orjson.loads(answer.content)["code"]) == (403, "origin_not_allowed")
    assert (await ask("localhost:9090", Origin=origin)).status_code == 200


@pytest.mark.regression("A page of another site could have a browser ask the admin port.")
async def test_page_of_another_site_asks_nothing_unseen_but_may_link_here() -> None:
    for sent_for in ("empty", "image", "iframe"):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": sent_for}
        answer = await ask("localhost:9090", path="/admin/v1/tail", **headers)
        assert (answer.status_code, orjson.loads(answer.content)["code"]) == (403, "origin_not_allowed")
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert (await ask("localhost:9090", path="/console/", **linked)).status_code == 200
    assert (await ask("localhost:9090", **{"Sec-Fetch-Site": "same-origin"})).status_code == 200


@pytest.mark.parametrize("origin", ["http://localhost:9090", "https://gateway.internal", ""])
async def test_own_page_and_no_page_may_change_something(origin: str) -> None:
    headers = {"Origin": origin} if origin else {}
    answer = await ask("localhost:9090", method="POST", path="/admin/v1/drain", **headers)
    assert answer.status_code == 200


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
