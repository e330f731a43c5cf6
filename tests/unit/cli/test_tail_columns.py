"""Claim: `gateway tail` is a table that fits into a terminal, and its last column says where or why."""

from typing import Any

import pytest

from app.cli.tail import Columns

EVENT: dict[str, Any] = {
    "time_ms": 1_700_000_000_123,
    "verdict": "accepted",
    "source": "web",
    "type": "track",
    "event": "Order Completed",
    "message_id": "6f1e9a40-9f0b-4f6e-8f35-0c9c2d1b7a10",
    "partition": 3,
    "offset": 182,
    "code": None,
}


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_lines_fit(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Columns()
    long = {**EVENT, "source": "s" * 99, "event": "e" * 99, "code": "conflict", "differs": ["properties"] * 9}
    lines = [table.head(), table.line(EVENT), table.line(long)]
    assert max(len(line.rstrip("\n")) for line in lines) <= max(80, columns)
    assert {
        line.find(word) for line, word in zip(lines, ("VERDICT", "accepted", "accepted"), strict=True)
    } == {14}
    assert lines[1].endswith("  3:182\n")


def test_wide_terminal_shows_the_whole_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    line = Columns().line(EVENT)
    assert EVENT["message_id"] in line
    assert line.startswith("22:13:20.123  accepted   web         track Order Compl…  6f1e")


def test_last_column_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    conflict = {**EVENT, "verdict": "conflict", "code": "conflict", "differs": ["properties", "event"]}
    assert Columns().line(conflict).endswith("  conflict in properties, event\n")
    refused = {**EVENT, "verdict": "refused", "code": "invalid_write_key", "offset": None, "message_id": None}
    assert Columns().line(refused).endswith("  -" + " " * 37 + "invalid_write_key\n")


def test_what_clients_send_steers_no_terminal() -> None:
    assert "\x1b" not in Columns().line({**EVENT, "event": "\x1b[2J", "message_id": "\x1b]0;x\x07"})
