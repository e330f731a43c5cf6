"""Claim: the admin port tells versions, and settings with their origin and without secrets."""

from app.settings.model import Settings
from app.settings.section import settings_of
from tests.unit.admin.admin_port import READ_TOKEN, admin_of, client_of


async def test_settings_are_told_with_their_origin_and_without_secrets() -> None:
    secret = "a secret that nobody may see"
    app = admin_of(admin_read_token=READ_TOKEN, identity_secret=secret, window="8d")
    async with client_of(app) as client:
        answer = await client.get("/admin/v1/config", headers={"Authorization": f"Bearer {READ_TOKEN}"})
    told = {each["variable"]: (each["value"], each["origin"]) for each in answer.json()["settings"]}
    assert list(told) == [setting.variable for setting in settings_of(Settings)]
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
    assert (told["record_version"], told["index_format"], told["stats_schema_version"]) == (1, 4, 1)
    assert set(told["libraries"]) >= {"rocksdict", "aiokafka"}
