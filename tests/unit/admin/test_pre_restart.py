"""Claim: who asks before a restart hears of everything that it would make worse, and of nothing else."""

from typing import Any

import pytest

from app.admin.pre_restart import document_of
from tests.support.settings import VARIABLES
from tests.unit.admin.admin_port import READ_TOKEN, admin_of, client_of


def stats(
    worker: str, states: str, *, follows: str = "", group: dict[str, Any] | None = None, **lane: Any
) -> dict[str, Any]:
    """Return a worker's statistics; `states` has a letter for each lane, quarantine's last."""
    names = {"a": "active", "f": "following", "-": "unassigned", "r": "restoring"}
    lanes = [
        {
            "partition": number,
            "state": names[state],
            "caught_up": str(number) in follows,
            "in_doubt": 0,
            "last_error": None,
            **lane,
        }
        for number, state in enumerate(states)
    ]
    quarantine = [lanes.pop() | {"partition": 0}]
    told = {"leaving": False} | (group or {})
    return {
        "worker": worker,
        "group": told,
        "disk": {"has_room": True},
        "in_flight": 3,
        "partitions": lanes,
        "quarantine": quarantine,
    }


def codes_of(document: dict[str, Any]) -> dict[str, list[str]]:
    assert document["safe"] is not any(risk["danger"] for risk in document["risks"])
    return {risk["code"]: risk["partitions"] for risk in document["risks"]}


A = stats("a", "aaf-")
B = stats("b", "ffaa", follows="01")


def test_worker_whose_standbys_are_ready_is_restarted_without_risk() -> None:
    document = document_of(A, {"b": B}, {})
    assert codes_of(document) == {}
    assert (document["worker"], document["serves"], document["in_flight"]) == ("a", ["0", "1"], 3)
    assert document["taken_over_at_once"] == ["0", "1"]


@pytest.mark.parametrize(
    ("own", "others", "silent", "codes"),
    [
        (A, {"b": stats("b", "ffaa", follows="0")}, {}, {"no_standby": ["1"]}),
        (A, {}, {"b": "timeout"}, {"silent_worker": [], "unserved": ["2", "q0"], "no_standby": ["0", "1"]}),
        (
            A,
            {"b": stats("b", "ffaa", follows="01", group={"leaving": True})},
            {},
            {"leaving_worker": [], "no_standby": ["0", "1"]},
        ),
        (A, {"b": stats("b", "ffra", follows="01")}, {}, {"unserved": ["2"]}),
        (B, {"a": A}, {}, {"no_standby": ["2", "q0"]}),
        (stats("a", "aaf-", in_doubt=2), {"b": B}, {}, {"in_doubt": ["0", "1", "2", "q0"]}),
        (stats("a", "aaf-", last_error="no"), {"b": B}, {}, {"failing": ["0", "1", "2", "q0"]}),
        (A | {"disk": {"has_room": False}}, {"b": B}, {}, {"disk_full": []}),
    ],
)
def test_each_risk_is_named_with_its_partitions(
    own: dict[str, Any], others: dict[str, Any], silent: dict[str, str], codes: dict[str, list[str]]
) -> None:
    assert codes_of(document_of(own, others, silent)) == codes


async def test_gateway_that_is_alone_says_that_clients_will_have_to_retry() -> None:
    async with client_of(admin_of()) as client:
        document = (await client.get("/admin/v1/pre-restart")).json()
    assert (document["safe"], [risk["code"] for risk in document["risks"]]) == (True, ["alone"])


async def test_settings_are_told_with_their_origin_and_without_secrets() -> None:
    secret = "a secret that nobody may see"
    app = admin_of(admin_read_token=READ_TOKEN, identity_secret=secret, window="8d")
    async with client_of(app) as client:
        answer = await client.get("/admin/v1/config", headers={"Authorization": f"Bearer {READ_TOKEN}"})
    told = {each["variable"]: (each["value"], each["origin"]) for each in answer.json()["settings"]}
    assert list(told) == list(VARIABLES)
    assert told["GATEWAY_WINDOW"] == ("8d", "environment")
    assert told["GATEWAY_RETENTION"] == ("9d", "derived")
    assert told["GATEWAY_PARTITIONS"] == (8, "default")
    assert told["GATEWAY_IDENTITY_SECRET"] == ("(set)", "environment")
    assert told["GATEWAY_ADMIN_READ_TOKEN"][0] == "(set)"
    assert secret not in answer.text
    assert READ_TOKEN not in answer.text


async def test_versions_are_told() -> None:
    async with client_of(admin_of()) as client:
        told = (await client.get("/admin/v1/version")).json()
    assert (told["record_version"], told["index_format"], told["stats_schema_version"]) == (1, 3, 1)
    assert set(told["libraries"]) >= {"rocksdict", "aiokafka"}
