"""Claim: a token opens what its scope says and nothing else, and each change leaves a line in the log."""

from typing import Any

import pytest
import structlog
from fastapi import FastAPI
from starlette.types import ASGIApp

from app.admin.scopes import OPEN, check_scopes
from tests.unit.admin.admin_port import READ_TOKEN, WRITE_TOKEN, admin_of, client_of

BOTH: dict[str, Any] = {"admin_token": WRITE_TOKEN, "admin_read_token": READ_TOKEN}
READING = ("/admin/v1/stats", "/admin/v1/openapi.json", "/admin/v1/sessions?source=a&client=b")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def ask(
    app: ASGIApp, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    async with client_of(app) as client:
        answer = await client.request(method, path, headers=headers or {})
        is_problem = answer.headers["Content-Type"] == "application/problem+json"
        return answer.status_code, answer.json()["code"] if is_problem else ""


@pytest.mark.parametrize("path", READING)
async def test_reading_needs_one_of_the_tokens(path: str) -> None:
    app = admin_of(**BOTH)
    for header in ("", "Bearer", "Bearer another", f"Basic {READ_TOKEN}", f"Bearer {READ_TOKEN}x"):
        assert await ask(app, path, headers={"Authorization": header}) == (401, "admin_token_invalid")
    for token in (READ_TOKEN, WRITE_TOKEN):
        assert (await ask(app, path, headers=bearer(token)))[1] not in {
            "admin_token_invalid",
            "admin_scope_missing",
        }


@pytest.mark.parametrize("path", ["/admin/v1/drain", "/admin/v1/undrain"])
async def test_changing_needs_the_token_that_may_write(path: str) -> None:
    app = admin_of(**BOTH)
    assert await ask(app, path, method="POST") == (401, "admin_token_invalid")
    assert await ask(app, path, method="POST", headers=bearer(READ_TOKEN)) == (403, "admin_scope_missing")
    assert await ask(app, path, method="POST", headers=bearer(WRITE_TOKEN)) == (409, "alone")


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v1/lookup/web/m-1?quarantine=false&value",
        "/admin/v1/lookup?source=web&client=c&session=s&sequence=1&value=",
        "/admin/v1/lookup?source=web&id=m-1&value",
        "/admin/v1/tail/values?verdict=wrong",
    ],
)
async def test_what_events_say_of_people_needs_the_token_that_may_write(path: str) -> None:
    app = admin_of(**BOTH)
    assert await ask(app, path) == (401, "admin_token_invalid")
    assert await ask(app, path, headers=bearer(READ_TOKEN)) == (403, "admin_scope_missing")
    status, code = await ask(app, path, headers=bearer(WRITE_TOKEN))
    assert (status, code) != (403, "admin_scope_missing")


@pytest.mark.parametrize(
    "path", ["/admin/v1/lookup/web/m-1", "/admin/v1/lookup?source=web&client=c&session=s&sequence=1"]
)
async def test_whether_an_event_arrived_the_reading_token_may_ask(path: str) -> None:
    app = admin_of(**BOTH)
    assert await ask(app, path) == (401, "admin_token_invalid")
    assert (await ask(app, path, headers=bearer(READ_TOKEN)))[1] not in {
        "admin_token_invalid",
        "admin_scope_missing",
    }


async def test_reading_token_alone_leaves_nobody_to_write() -> None:
    app = admin_of(admin_read_token=READ_TOKEN)
    post = {"method": "POST", "headers": bearer(READ_TOKEN)}
    assert await ask(app, "/admin/v1/drain", **post) == (403, "admin_scope_missing")  # type: ignore[arg-type]
    assert await ask(app, "/admin/v1/drain", method="POST") == (401, "admin_token_invalid")


async def test_without_tokens_everything_is_open() -> None:
    app = admin_of()
    assert await ask(app, "/admin/v1/stats") == (200, "")
    assert await ask(app, "/admin/v1/drain", method="POST") == (409, "alone")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_orchestrators_need_no_token_and_may_have_a_port_of_their_own(path: str) -> None:
    for probes in (False, True):
        status, code = await ask(admin_of(probes=probes, **BOTH), path)
        assert (status in {200, 503}, code) == (True, "")
    for closed in (*READING, "/", "/admin/v1/drain"):
        assert await ask(admin_of(probes=True), closed) == (404, "not_found")


async def test_refused_token_is_told_what_is_wanted_and_not_repeated() -> None:
    async with client_of(admin_of(**BOTH)) as client:
        answer = await client.get("/admin/v1/stats", headers=bearer("secret of somebody"))
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json() == {
        "type": "urn:gateway:problem:admin_token_invalid",
        "title": "Unauthorized",
        "status": 401,
        "detail": "Authorization must be Bearer and a token",
        "code": "admin_token_invalid",
    }


async def test_each_change_leaves_a_line_whatever_came_of_it() -> None:
    app = admin_of(**BOTH)
    with structlog.testing.capture_logs() as lines:
        await ask(app, "/admin/v1/stats", headers=bearer(WRITE_TOKEN))
        await ask(app, "/admin/v1/drain", method="POST", headers=bearer(READ_TOKEN))
        await ask(app, "/admin/v1/drain", method="POST", headers=bearer(WRITE_TOKEN))
    told: list[Any] = [line for line in lines if line["event"] == "changed through the admin port"]
    assert [(line["action"], line["outcome"], line["address"]) for line in told] == [
        ("POST /admin/v1/drain", "alone", "127.0.0.1")
    ]
    assert WRITE_TOKEN not in str(lines)


async def test_value_that_is_shown_leaves_a_line_that_calls_it_so() -> None:
    app = admin_of(**BOTH)
    with structlog.testing.capture_logs() as lines:
        await ask(app, "/admin/v1/lookup?source=web&id=a&value", headers=bearer(WRITE_TOKEN))
    (told,) = [line for line in lines if line["event"].endswith("through the admin port")]
    assert (told["event"], told["action"]) == ("shown through the admin port", "GET /admin/v1/lookup")


def test_route_of_which_nobody_said_who_may_use_it_is_a_bug() -> None:
    app = FastAPI()
    app.get("/said", dependencies=[OPEN])(lambda: None)
    check_scopes(app)  # FastAPI's own pages are no API routes
    app.get("/unsaid")(lambda: None)
    with pytest.raises(AssertionError, match="/unsaid must declare"):
        check_scopes(app)


async def test_openapi_document_names_every_path_its_token_and_its_refusals() -> None:
    async with client_of(admin_of()) as client:
        document = (await client.get("/admin/v1/openapi.json")).json()
    paths = document["paths"]
    assert {"/livez", "/admin/v1/stats", "/admin/v1/drain", "/admin/v1/openapi.json"} <= set(paths)
    assert paths["/admin/v1/drain"]["post"]["security"] == [{"token": []}]
    assert "security" not in paths["/livez"]["get"]
    for operations in paths.values():
        for operation in operations.values():
            assert set(operation["responses"]["default"]["content"]) == {"application/problem+json"}
            assert operation["description"]


async def test_wrong_parameter_and_unknown_path_are_problem_documents() -> None:
    app = admin_of()
    assert await ask(app, "/admin/v1/sessions") == (400, "bad_request")
    assert await ask(app, "/nothing") == (404, "not_found")
    assert await ask(app, "/admin/v1/stats", method="POST") == (405, "method_not_allowed")
