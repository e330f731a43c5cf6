"""Claim: each partition is told once, by whoever knows it best."""

from typing import Any

from app.admin.partitions import views_of_servers, with_same_plan
from tests.unit.admin.admin_port import admin_of, client_of


def stats(*lanes: tuple[str, bool], owner: str) -> dict[str, Any]:
    told = [
        {"partition": number, "state": state, "caught_up": is_ready, "owner": owner}
        for number, (state, is_ready) in enumerate(lanes)
    ]
    return {"partitions": told}


def test_partition_is_told_by_who_serves_it_else_by_its_owner_else_by_who_was_asked() -> None:
    workers = {
        "asked": stats(("following", True), ("unassigned", False), ("unassigned", False), owner="owner"),
        "other": stats(("active", False), ("following", True), ("unassigned", False), owner="other"),
        "owner": stats(("following", True), ("failed", False), ("restoring", False), owner="other"),
    }
    told = views_of_servers(workers, "partitions")
    assert [(lane["worker"], lane["state"], lane["ready"]) for lane in told] == [
        ("other", "active", ["asked", "owner"]),
        ("owner", "failed", ["other"]),
        ("owner", "restoring", []),
    ]
    del workers["owner"]
    assert views_of_servers(workers, "partitions")[2]["worker"] == "asked"


async def test_gateway_that_is_alone_tells_its_own() -> None:
    async with client_of(admin_of()) as client:
        told = (await client.get("/admin/v1/partitions")).json()
        one = (await client.get("/admin/v1/partitions/1")).json()
        quarantine = (await client.get("/admin/v1/partitions/0?quarantine=true")).json()
        missing = await client.get("/admin/v1/partitions/7")
    assert [(lane["partition"], lane["worker"], lane["ready"]) for lane in told["partitions"]] == [
        (0, "worker", []),
        (1, "worker", []),
    ]
    assert one["workers"]["worker"]["partition"] == 1
    assert quarantine["workers"]["worker"] == {
        name: value for name, value in told["quarantine"][0].items() if name not in {"worker", "ready"}
    }
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_worker_of_another_plan_is_told_apart() -> None:
    now, before = (stats(*[("active", True)] * count, owner="x") | {"quarantine": []} for count in (4, 2))

    workers, silent = with_same_plan({"asked": now, "slow": before, "other": now}, {"gone": "no answer"})

    assert [*workers] == ["asked", "other"]
    assert silent == {"gone": "no answer", "slow": "it follows another plan"}
