"""Claim: the admin port's own address leads to the console, without a token and behind a proxy's path."""

import pytest

from tests.unit.admin.admin_port import READ_TOKEN, admin_of, client_of


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_address_alone_leads_to_the_console(path: str) -> None:
    async with client_of(admin_of(admin_read_token=READ_TOKEN)) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (307, "console/")
        page = await client.get(path, follow_redirects=True)
    assert (page.status_code, page.url.path) == (200, "/console/")
    assert page.headers["Content-Type"].startswith("text/html")


async def test_port_of_the_probes_has_no_console() -> None:
    async with client_of(admin_of(probes=True)) as client:
        assert (await client.get("/")).status_code == 404
