"""Claim: an audit computes from the records what client sessions lack, as `GET /v1/sessions` does."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession

from dedupe.decide.sessions import SessionRecord, SessionState, with_progress, with_record
from dedupe.model.identity import Identity
from dedupe.model.types import NewRecord, Session
from pipeline.audit.checks import check_records
from pipeline.audit.clients import RANGES_MAX, session_progress
from pipeline.sources.records import LogSource, Selection, read_records
from tests.pipeline.conftest import JobRunner
from tests.support.gateway import Gateway
from tests.support.http import AUTH, post
from tests.support.logs import TOPIC, append_to_log, trim_log
from tests.support.records import RecordMaker

PARTITIONS = 2
SECRET = "a secret of the tests"
RECORDS = 600
U64_MAX = 2**64 - 1
SESSIONS = [(bytes([client] * 16), bytes([session] * 16)) for client in range(1, 7) for session in (1, 2)]


@dataclass
class History:
    """What a gateway would have written for clients that lose and reorder, and what it would know then."""

    lanes: dict[int, list[NewRecord]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    states: dict[tuple[bytes, bytes], SessionState] = field(default_factory=dict)
    newest: dict[tuple[bytes, bytes], tuple[int, int]] = field(default_factory=dict)  # partition, offset

    def send(self, maker: RecordMaker, names: tuple[bytes, bytes], sequence: int, acknowledged: int) -> None:
        known = self.states.get(names)
        session = with_progress(known, Session(*names, sequence, 0, acknowledged))
        event = maker.event(f"id-{sequence}", session=session)
        lane = self.lanes[event.partition]
        self.states[names] = with_record(known, SessionRecord(len(lane), 0, session))
        self.newest[names] = event.partition, len(lane)
        lane.append(maker.record(event))

    def missing_after(self, offset: int) -> dict[tuple[bytes, bytes], tuple[int, int, int]]:
        """Of sessions that have a record from the offset on: acknowledged, highest, how many are missing."""
        return {
            names: (
                state.acknowledged_through,
                state.highest,
                sum(last - first + 1 for first, last in state.missing()),
            )
            for names, state in self.states.items()
            if self.newest[names][1] >= offset
        }


@pytest.fixture(scope="module")
def history() -> History:
    moments, made, maker = random.Random(7), History(), RecordMaker(PARTITIONS)
    for names in SESSIONS[::5]:  # of these everything up to near the largest sequence is acknowledged
        made.send(maker, names, U64_MAX - 500, U64_MAX - 501)
    for _ in range(RECORDS):
        names = moments.choice(SESSIONS)
        state = made.states.get(names) or SessionState(0, 0, 0, 0, 0, -1)
        ahead = [n for n in range(state.watermark + 1, state.watermark + 90) if not state.has(n)]
        is_acknowledged = moments.random() < 0.02
        acknowledged = moments.randint(state.watermark, state.highest) if is_acknowledged else 0
        made.send(maker, names, ahead[min(int(moments.expovariate(0.2)), len(ahead) - 1)], acknowledged)
    return made


@pytest.mark.parametrize("start", [0, 60, 150])
def test_sessions_lack_what_the_gateway_says_though_retention_took_the_oldest_records(
    start: int, history: History, spark: SparkSession, tmp_path: Path
) -> None:
    append_to_log(tmp_path, history.lanes)
    for partition in range(PARTITIONS):
        trim_log(tmp_path, partition, start)
    rows = session_progress(records_of(spark, tmp_path), range(PARTITIONS) if start == 0 else []).collect()

    found = {(bytes(row["client_hash"]), bytes(row["session_hash"])): row for row in rows}
    expected = history.missing_after(start)
    assert sum(missing > 0 for _, _, missing in expected.values()) > 6
    assert {
        names: (row["acknowledged_through"], row["highest"], row["missing"]) for names, row in found.items()
    } == expected
    for names, row in found.items():
        assert [tuple(map(int, range_)) for range_ in row["ranges"]] == history.states[names].missing()[
            :RANGES_MAX
        ]
        assert (row["partition"], row["last"]["offset"]) == history.newest[names]
    assert not any(row["is_from_middle"] for row in rows)


def test_session_of_an_archive_without_its_progress_is_known_from_the_middle_on(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    """Without that column nothing below its lowest sequence counts as missing."""
    append_to_log(tmp_path, history.lanes)
    trim_log(tmp_path, 0, 100)
    records = records_of(spark, tmp_path)

    rows = session_progress(records.withColumn("gs", records["gs"].substr(1, 0)), [1]).collect()

    expected = history.missing_after(0)
    for row in rows:
        names = bytes(row["client_hash"]), bytes(row["session_hash"])
        assert row["is_from_middle"] == (row["partition"] == 0)
        if row["partition"] == 1:
            assert row["missing"] == expected[names][2]
    assert {row["partition"] for row in rows} == {0, 1}


def test_sequences_use_all_64_bits(spark: SparkSession, tmp_path: Path) -> None:
    maker = RecordMaker(1)
    sent = (2**63 - 1, 2**63, U64_MAX)
    events = [maker.event(f"id-{n}", session=Session(b"c" * 16, b"s" * 16, n)) for n in sent]
    append_to_log(tmp_path, maker.lanes(events))

    (row,) = session_progress(records_of(spark, tmp_path), [0]).collect()

    assert [tuple(map(int, range_)) for range_ in row["ranges"]] == [(1, 2**63 - 2), (2**63 + 1, U64_MAX - 1)]
    assert (row["highest"], row["missing"]) == (U64_MAX, U64_MAX - 3)


def records_of(spark: SparkSession, data: Path) -> DataFrame:
    return check_records(read_records(spark, LogSource(str(data), TOPIC), Selection()), PARTITIONS)


# ---- against a gateway


class Phone:
    """One client session of a gateway under test."""

    def __init__(self, http: httpx.Client, client: str, session: str) -> None:
        self._http, self.session = http, session
        self._head = {"Gateway-Client": client, "Gateway-Session": session}
        identity = Identity(SECRET.encode())
        self.hashes = identity.client_hash("web", client), identity.session_hash("web", client, session)
        self.missing = ""

    def send(self, *sequences: int, acknowledged: int = 0) -> None:
        batch = [{"type": "track", "event": "Tested", "sequence": n} for n in sequences]
        head = (
            self._head | {"Gateway-Acknowledged-Through": str(acknowledged)} if acknowledged else self._head
        )
        answer = post(self._http, "/v1/events", {"batch": batch}, **head)
        assert list(answer.json()) == ["success", "receipts"], answer.text
        self.missing = answer.headers.get("Gateway-Session-Missing", "")

    @property
    def standing(self) -> dict[str, Any]:
        answer = self._http.get(f"/v1/sessions/{self.session}", headers=self._head)
        assert answer.status_code == httpx.codes.OK
        return dict(answer.json())


def test_audits_tell_each_clients_gaps_as_its_gateway_does(
    job: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    with Gateway(tmp_path / "gateway", {"GATEWAY_IDENTITY_SECRET": SECRET}) as gateway:
        source, archive = f"log://{gateway.data}", tmp_path / "archive"
        since_last = ("--since-last", tmp_path / "memory", "--window", "7d", "--index-keys-max", 500_000_000)
        with httpx.Client(base_url=gateway.url, auth=AUTH) as http:
            names = [("phone", "0ujtsYcgvSTl8PAuAdqWYSMnLOv"), ("phone", "0ujsszwN8NRY24YaXiTIE2VWDTS")]
            names += [("tablet", "0ujsszgFvbiEr7CDgE3z8MAUPFt"), ("watch", "0ujzPyRiIAffKhBux4PvQdDqMHY")]
            phone, second, tablet, watch = (Phone(http, *name) for name in names)
            phone.send(9, 5)
            phone.send(1, 2)
            second.send(*range(2, 81, 2))
            tablet.send(1, 2, 3)
            watch.send(3, 7)
            done = job("audit", "--source", source, "--deep", "--report", tmp_path, *since_last)
            first = report(tmp_path)
            assert done.exit_code == 0, done
            assert first["worst"] == [expected(client) for client in (second, phone, watch)]
            assert figures(first) == (3, 4, 3, 40 + 5 + 5, 0)

            phone.send(4)
            watch.send(8, acknowledged=5)
            tablet.send(4)
            latest = job("audit", "--source", source, "--report", tmp_path, *since_last)
            news = report(tmp_path)
            whole = job("audit", "--source", source, "--report", tmp_path)
            everything, finding = report(tmp_path), notice(tmp_path)
            job("archive", "--source", source, "--out", archive, "--format", "parquet", "--once")
            stored = job("audit", "--source", f"parquet://{archive}", "--report", tmp_path)
            of_archive = report(tmp_path)
        phone_missing = phone.missing

    assert (latest.exit_code, whole.exit_code, stored.exit_code) == (0, 0, 0), (latest, whole, stored)
    # The first audit's records are not read again, and yet nothing before them counts as missing.
    assert figures(news) == (3, 3, 2, 4 + 1, 0)
    assert {gaps["client_hash"]: gaps["missing"] for gaps in news["worst"]} == {
        phone.hashes[0].hex(): 4,
        watch.hashes[0].hex(): 1,
    }
    assert figures(everything) == (3, 4, 3, 40 + 4 + 1, 0)
    assert everything == of_archive
    assert "client sessions: 4 of 3 clients, 3 with gaps, 45 sequences missing" in whole.stdout
    assert phone_missing == "3,6-8"
    assert [named["detail"].partition(" (")[0] for named in finding["first"]] == [
        f"40 missing: {','.join(str(n) for n in range(1, 64, 2))},...",
        f"4 missing: {phone_missing}",
        "1 missing: 6",
    ]
    metrics = (tmp_path / "audit.prom").read_text()
    assert "pipeline_audit_client_sequences_missing 45.0" in metrics
    assert "<h2>Client sessions</h2>" in (tmp_path / "audit.html").read_text()


def expected(phone: Phone) -> dict[str, Any]:
    """The entry of audit.json for a session, by the gateway's answer."""
    state, (client_hash, session_hash) = phone.standing, phone.hashes
    return {
        "client_hash": client_hash.hex(),
        "session_hash": session_hash.hex(),
        "partition": int.from_bytes(client_hash[:8], "big") % 8,
        "acknowledged_through": state["acknowledgedThrough"],
        "highest": state["highest"],
        "missing": sum(last - first + 1 for first, last in state["missing"]),
        "ranges": state["missing"][:RANGES_MAX],
        "is_known_from_the_middle": False,
    }


def report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "audit.json").read_text())["client_sessions"])


def notice(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "audit.json").read_text())["notices"]["client_gap"])


def figures(found: dict[str, Any]) -> tuple[int, ...]:
    names = ("clients", "sessions", "with_gaps", "missing", "known_from_the_middle")
    return tuple(found[name] for name in names)
