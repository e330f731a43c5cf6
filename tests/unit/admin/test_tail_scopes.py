"""Claim: who may read follows events, who may write sees what they say, and the page itself is open."""

from typing import Any

import pytest

from tests.unit.admin.admin_port import READ_TOKEN, WRITE_TOKEN, admin_of, client_of

BOTH: dict[str, Any] = {"admin_token": WRITE_TOKEN, "admin_read_token": READ_TOKEN}


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/console/", "", 200),
        ("/admin/v1/history", "", 401),
        ("/admin/v1/history", READ_TOKEN, 200),
        ("/admin/v1/tail", "", 401),
        ("/admin/v1/tail?verdict=none", READ_TOKEN, 400),
        ("/admin/v1/tail/apart", READ_TOKEN, 200),
        ("/admin/v1/tail/values?verdict=none", READ_TOKEN, 403),
        ("/admin/v1/tail/values?verdict=none", WRITE_TOKEN, 400),
    ],
)
async def test_each_path_asks_for_what_it_tells(path: str, token: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with client_of(admin_of(**BOTH)) as client:
        assert (await client.get(path, headers=headers)).status_code == status
