"""Claim: a gateway finds out while it serves that its index knows an event that the log does not have."""

import asyncio
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import httpx
import orjson
import pytest

from dedupe.model.clock import SystemClock
from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import Entry
from dedupe.storage.index import IndexIdentity
from dedupe.storage.rocksdb.database import Database
from dedupe.storage.rocksdb.format import ENTRY, IDENTITY_KEY, LINEAGE_KEY, decode_entries
from dedupe.storage.rocksdb.snapshots import IndexSnapshots
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from dedupe.storage.snapshots.bucket import Bucket
from tests.fault.conftest import kafka_log
from tests.support.constants import IMPATIENT, Constants
from tests.support.gateway import Gateway
from tests.support.http import AUTH, new_event, post
from tests.support.rocks import SMALLEST
from tests.support.waiting import until

SETTINGS = {"GATEWAY_PARTITIONS": "1", "GATEWAY_IDENTITY_SECRET": "an identity secret of tests"}


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def new_gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Gateway]:
    """Return what makes a gateway on a log of its own; each duplicate of it is proved."""
    constants: Constants = {
        **IMPATIENT,
        "dedupe.partition.duplicate_proof:EVERY_S": 0.0,
        "dedupe.partition.duplicate_proof:OVERDUE_S": 0.0,
    }

    def make(name: str) -> Gateway:
        env = SETTINGS
        if request.param == "kafka":
            env = {**kafka_log(request.getfixturevalue("kafka_bootstrap")).env, **SETTINGS}
        return Gateway(tmp_path / name, env, constants=constants)

    return make


def index_of(gateway: Gateway) -> Database:
    """Open the index of a stopped gateway."""
    (path,) = (each for each in (gateway.data / "index").glob("*/0") if "quarantine" not in each.parent.name)
    return Database(path, SMALLEST, is_new=False)


def entries_in(index: Database) -> dict[bytes, Entry]:
    rows = cast(Iterable[tuple[bytes, bytes]], index.entries.items())
    stored = {key: value for key, value in rows if len(key) == KEY_BYTES}
    entries = zip(stored, decode_entries(list(stored.values())), strict=True)
    return {key: entry for key, entry in entries if entry is not None}


def sent(gateway: Gateway, *events: dict[str, Any]) -> httpx.Headers:
    with httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        return post(client, "/v1/events", {"batch": [*events]}).raise_for_status().headers


def invent(gateway: Gateway, key: bytes, fingerprint: bytes) -> int:
    """Have the index of a stopped gateway know an event at the last offset of its log; return the offset."""
    index = index_of(gateway)
    offset = max(offset for offset, _ in entries_in(index).values())
    index.entries[key] = ENTRY.pack(offset, fingerprint)
    index.close()
    return offset


def test_index_with_an_invented_entry_is_found_out_and_rebuilt(new_gateway: Callable[[str], Gateway]) -> None:
    events, never_stored = [new_event() for _ in range(20)], new_event()
    other, gateway = new_gateway("other"), new_gateway("gateway")
    with other:
        sent(other, never_stored)
    index = index_of(other)
    ((key, (_, fingerprint)),) = entries_in(index).items()
    index.close()
    with gateway:
        sent(gateway, *events)
    offset = invent(gateway, key, fingerprint)

    with gateway:
        assert sent(gateway, *events)["Gateway-Duplicates"] == "20"
        until(lambda: proofs_of(gateway)["proved"] == 1)
        assert sent(gateway, never_stored)["Gateway-Duplicates"] == "1"
        until(lambda: proofs_of(gateway)["disproved"] == 1)
        until(lambda: gateway.stats()["partitions"][0]["state"] == "active")

        assert sent(gateway, never_stored)["Gateway-Accepted"] == "1"
        assert sent(gateway, *events)["Gateway-Duplicates"] == "20"
        assert gateway.stats()["partitions"][0]["rebuilds"] == 1
        page = httpx.get(f"{gateway.admin_url}/metrics").text
        assert re.search(r'gateway_duplicate_proofs_total{outcome="disproved",partition="0",.*} 1.0', page)
    said = gateway.log_path.read_text()
    assert f"a duplicate's original is not at offset {offset}: the log has another event there" in said


def proofs_of(gateway: Gateway) -> dict[str, int]:
    proofs: dict[str, int] = gateway.stats()["partitions"][0]["duplicate_proofs"]
    return proofs


@pytest.mark.regression("a disproved index came back from its own snapshot")
@pytest.mark.parametrize("is_killed", [False, True])
def test_disproved_index_does_not_come_back_from_its_snapshot(tmp_path: Path, *, is_killed: bool) -> None:
    events, never_stored = [new_event() for _ in range(20)], new_event()
    constants: Constants = {
        **IMPATIENT,
        "dedupe.partition.duplicate_proof:EVERY_S": 0.0,
        "dedupe.partition.duplicate_proof:OVERDUE_S": 0.0,
        "dedupe.storage.rocksdb.snapshots:RECORDS_MIN": 1,
    }
    snapshots = {"GATEWAY_SNAPSHOTS_URL": f"file://{tmp_path}/bucket", "GATEWAY_SNAPSHOTS_INTERVAL": "1s"}
    other = Gateway(tmp_path / "other", SETTINGS)
    gateway = Gateway(tmp_path / "gateway", {**SETTINGS, **snapshots}, constants=constants)
    with other:
        sent(other, never_stored)
    index = index_of(other)
    ((key, (_, fingerprint)),) = entries_in(index).items()
    index.close()
    with Gateway(tmp_path / "gateway", SETTINGS) as before:
        sent(before, *events)
    invent(gateway, key, fingerprint)

    with gateway:
        until(lambda: gateway.stats()["partitions"][0]["snapshots"]["made"] == 1)
        assert sent(gateway, never_stored)["Gateway-Duplicates"] == "1"
        until(lambda: proofs_of(gateway)["disproved"] == 1)
        until(lambda: gateway.stats()["partitions"][0]["state"] == "active")
        if is_killed:
            gateway.kill()
            shutil.rmtree(gateway.data / "index")
            gateway.start()
        assert sent(gateway, never_stored)["Gateway-Accepted"] == "1"
        assert sent(gateway, *events)["Gateway-Duplicates"] == "20"


@pytest.mark.regression("a lane that moved before its snapshots were withdrawn kept what was wrong in them")
def test_copy_of_an_index_that_was_disproved_elsewhere_is_rebuilt(tmp_path: Path) -> None:
    events, never_stored = [new_event() for _ in range(20)], new_event()
    snapshots = {"GATEWAY_SNAPSHOTS_URL": f"file://{tmp_path}/bucket", "GATEWAY_SNAPSHOTS_INTERVAL": "1s"}
    other = Gateway(tmp_path / "other", SETTINGS)
    gateway = Gateway(tmp_path / "gateway", {**SETTINGS, **snapshots}, constants=IMPATIENT)
    with other:
        sent(other, never_stored)
    index = index_of(other)
    ((key, (_, fingerprint)),) = entries_in(index).items()
    index.close()
    with Gateway(tmp_path / "gateway", SETTINGS) as before:
        sent(before, *events)
    invent(gateway, key, fingerprint)
    index = index_of(gateway)
    lineage, stored = (index.meta[key] for key in (LINEAGE_KEY, IDENTITY_KEY))
    assert lineage is not None
    assert stored is not None
    fields = orjson.loads(stored)
    identity = IndexIdentity(**fields | {"key_check": bytes.fromhex(fields["key_check"])})
    index.close()

    with gateway:
        assert sent(gateway, never_stored)["Gateway-Duplicates"] == "1"
        asyncio.run(disprove(tmp_path, identity, lineage))
        until(lambda: gateway.stats()["partitions"][0]["rebuilds"] == 1)
        until(lambda: gateway.stats()["partitions"][0]["state"] == "active")
        assert sent(gateway, never_stored)["Gateway-Accepted"] == "1"
        assert sent(gateway, *events)["Gateway-Duplicates"] == "20"
    assert "it is a copy of an index that the log has disproved" in gateway.log_path.read_text()


async def disprove(tmp_path: Path, identity: IndexIdentity, lineage: bytes) -> None:
    """Tell of an index what another worker has found out."""
    store = RocksStore(tmp_path / "none", lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=1_000)
    secret, bucket = SETTINGS["GATEWAY_IDENTITY_SECRET"].encode(), Bucket(f"file://{tmp_path}/bucket")
    snapshots = IndexSnapshots(bucket, store, secret=secret, worker="elsewhere", clock=SystemClock())
    snapshots.doubt(identity, lineage)
    await snapshots.withdraw_doubted()
    store.close()
