"""Claim: the dbt models of sessions and users run over the tables of the job, and are right."""

import json
import os
import subprocess
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.transforms.table_layout import SeenTable, next_layout
from pipeline.transforms.table_rows import Record, cells_of, columns_of_table, read_entry, row_of, tables_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "deploy" / "dbt"
DBT = ROOT / "build" / "dbt" / "bin" / "dbt"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PROFILE = {"gateway_events": {"target": "t", "outputs": {"t": {"type": "duckdb", "path": "models.duckdb"}}}}
TIMES = ("received_at", "sent_at", "original_timestamp", "timestamp")
EVENTS: list[tuple[int, dict[str, Any]]] = [
    (0, {"type": "page", "anonymousId": "a"}),
    (29, {"type": "track", "event": "Seen", "anonymousId": "a"}),
    (60, {"type": "track", "event": "Seen", "anonymousId": "a"}),
    (10, {"type": "track", "event": "Seen", "userId": "u"}),
    (5, {"type": "identify", "userId": "u", "traits": {"plan": "free", "age": 7}}),
    (7, {"type": "identify", "userId": "u", "traits": {"plan": "paid"}}),
    (6, {"type": "identify", "userId": "v", "traits": {"age": 3}}),
]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The tables of these events as the job lays them out in Parquet, made without Spark."""
    entries = defaultdict(list)
    for offset, (minute, event) in enumerate(EVENTS):
        time, value = NOON + timedelta(minutes=minute), json.dumps(event).encode()
        entry = read_entry(Record(0, offset, time, "web", b"id-%d" % offset, value, None))
        for table in tables_of(entry):
            entries[table].append(entry)
    for table, rows in entries.items():
        seen = SeenTable((0, 0))
        for entry in rows:
            seen.see((0, entry.record.offset), cells_of(entry, table), 500)
        layout = next_layout(table, {}, seen, columns_max=500).layout
        names = [*columns_of_table(table, has_content=False), *layout, "_rescued"]
        stored = [row_of(entry, table, layout) for entry in rows]
        columns = {name: [row.get(name) for row in stored] for name in names}
        times = {n: pa.array(columns[n], pa.timestamp("us", "UTC")) for n in TIMES}
        folder = tmp_path / "lake" / table / "dt=2026-01-01"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({**columns, **times}).drop(["dt"]), folder / "part-0.parquet")
    return tmp_path / "lake"


def test_sessions_and_users_are_built_and_pass_their_own_tests(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "profiles.yml").write_text(json.dumps(PROFILE))
    command: list[str | Path] = [
        DBT,
        "build",
        "--project-dir",
        PROJECT,
        "--profiles-dir",
        tmp_path,
        "--target-path",
        "target",
    ]
    command += ["--log-path", "logs", "--vars", '{"activity_tables": ["tracks", "pages"]}']

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "LAKE": str(lake)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    with duckdb.connect(tmp_path / "models.duckdb", read_only=True) as models:
        sessions = models.execute(
            "SELECT visitor, date_diff('minute', began_at, ended_at), events FROM sessions ORDER BY ALL"
        ).fetchall()
        users = models.execute("SELECT user_id, plan, age FROM users ORDER BY ALL").fetchall()
    assert sessions == [("a", 0, 1), ("a", 29, 2), ("u", 0, 1)]
    assert users == [("u", "paid", 7), ("v", None, 3)]
