"""Claim: `make prove` says of each part whether it held, and fails if one was broken."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.test_reshard_kills import GROWTH, SHRINK, cells_of
from tools.prove.__main__ import prove
from tools.prove.parts import CELL_S, PARTS, Part, network, reshard
from tools.prove.report import as_markdown, status_of
from tools.prove.run import BROKEN, HELD, LEFT_OUT, ROOT, Proof, Ran, Result, missed_in

EMPTY_TEST = "def test_nothing(): pass\n"


@pytest.fixture
def proof(tmp_path: Path) -> Proof:
    return Proof(7, tmp_path)


def test_each_part_has_a_verdict_and_a_broken_one_fails_the_run(proof: Proof) -> None:
    told: list[str] = []
    parts = [
        Part("one", 1, lambda *_: Result(HELD, "3 things", "seed 5"), about="tries one"),
        Part("two", 1, lambda *_: Result(BROKEN, "4 things", "its end"), about="tries two"),
        Part("three", 1, lambda *_: pytest.fail("it has run"), lambda: "it needs root", "tries three"),
    ]
    rows = prove(proof, parts, 1, told.append)
    report = as_markdown(rows, {"commit": "abc"})

    assert [row.result.verdict for row in rows] == [HELD, BROKEN, LEFT_OUT]
    assert status_of(rows) == 1
    assert status_of(rows[:1] + rows[2:]) == 0
    assert "1 parts held, 1 broken, 1 left out" in report
    for text in (
        "commit: abc",
        "| one | held | 3 things |",
        "seed 5",
        "its end",
        "it needs root",
        "tries two",
    ):
        assert text in report
    assert len(told) == 2 * len(parts)


def test_time_that_a_part_leaves_is_for_those_after_it(proof: Proof) -> None:
    budgets: list[float] = []

    def run(_proof: Proof, budget_s: float) -> Result:
        budgets.append(budget_s)
        return Result(HELD, "-")

    prove(proof, [Part("a", 1, run), Part("b", 1, run), Part("c", 2, run)], 4, lambda _: None)
    assert budgets == pytest.approx([60, 80, 240], abs=1)


def test_part_draws_the_same_from_a_seed_alone_and_after_others(proof: Proof) -> None:
    drawn: list[float] = []

    def draw(proof: Proof, _budget_s: float) -> Result:
        drawn.append(proof.rng.random())
        return Result(HELD, "-")

    parts = [Part("a", 1, draw), Part("b", 1, draw)]
    prove(proof, parts, 1, lambda _: None)
    prove(proof, parts[1:], 1, lambda _: None)
    assert drawn[1] == drawn[2] != drawn[0]


def test_part_that_ends_in_an_error_is_broken_and_the_others_run(proof: Proof) -> None:
    def fail(_proof: Proof, _budget_s: float) -> Result:
        raise OSError("no space")

    rows = prove(proof, [Part("a", 1, fail), Part("b", 1, lambda *_: Result(HELD, "-"))], 1, lambda _: None)
    assert [row.result.verdict for row in rows] == [BROKEN, HELD]
    assert "no space" in rows[0].result.detail


def test_tests_are_counted_and_what_they_print_is_kept(proof: Proof, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(EMPTY_TEST + "def test_fails(): raise ValueError(5)\n")
    ran, passed = proof.tests("some", ["--rootdir", str(tmp_path), str(tmp_path)], 60)
    assert (ran.status, passed) == (1, 1)
    assert "ValueError: 5" in ran.tail
    assert (tmp_path / "some.log").read_text() == ran.output


def test_failed_tests_are_named_so_that_pytest_finds_them(proof: Proof, tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    text = "@pytest.mark.parametrize('gap_s', [1, 'a b'])\ndef test_late(gap_s):\n assert gap_s == 1\n"
    (folder / "test_some.py").write_text(f"import pytest\n{text}")
    at = ["--rootdir", str(tmp_path)]
    proof.tests("some", [*at, str(folder)], 60)
    missed = missed_in(proof.results("some"))

    assert list(missed) == ["tests/test_some.py::test_late[a b]"]
    assert "assert 'a b' == 1" in missed["tests/test_some.py::test_late[a b]"]
    assert missed_in(tmp_path / "absent.xml") == {}


@pytest.mark.parametrize(
    ("message", "load", "runs"),
    [("assert 7.1 <= 6.0 + where 7.1 = Seen().gap_s", 9.0, 2), ("assert 1 == 0", 9.0, 1), ("gap_s", 0.1, 1)],
)
def test_network_fault_that_misses_its_time_on_a_busy_machine_is_tried_again_and_told(
    proof: Proof, monkeypatch: pytest.MonkeyPatch, message: str, load: float, runs: int
) -> None:
    names = []

    def tests(name: str, arguments: list[str], _limit_s: float, **_: object) -> tuple[Ran, int]:
        names.append(name)
        is_held = len(names) > 1
        failure = "" if is_held else f'<failure message="{message.replace("<", "&lt;")}"/>'
        case = f'<testcase classname="tests.network.test_some" name="test_it">{failure}</testcase>'
        proof.results(name).write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
        return Ran(int(not is_held), f"case {name}: seen\n"), int(is_held)

    monkeypatch.setattr(proof, "tests", tests)
    monkeypatch.setattr(proof, "run", lambda *_: Ran(0, "tests/network/test_some.py::test_it\n"))
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0, 0))
    result = network(proof, 60)

    assert len(names) == runs
    assert result.verdict == (HELD if runs == 2 else BROKEN)
    assert ("load of 9, and were tried again" in result.detail) == (runs == 2)
    assert result.tried == f"{runs - 1} of 1 faults"


@pytest.mark.parametrize(("budget_s", "cells"), [(0.0, "2"), (10 * CELL_S, "10"), (3600.0, "all")])
def test_kills_of_plans_are_as_many_as_there_is_time_for(
    proof: Proof, monkeypatch: pytest.MonkeyPatch, budget_s: float, cells: str
) -> None:
    asked: list[dict[str, str]] = []

    def tests(*_: object, **env: str) -> tuple[Ran, int]:
        asked.append(env)
        return Ran(0, "held: growth-giver-seen\nheld: shrink-giver-seen\nof something else\n"), 1

    monkeypatch.setattr(proof, "tests", tests)
    result = reshard(proof, budget_s)

    assert [env["RESHARD_CELLS"] for env in asked] == [cells]
    everything = len(cells_of(GROWTH)) + len(cells_of(SHRINK))
    assert result.tried.startswith(f"2 of {everything} kills")
    assert f"RESHARD_SEED={asked[0]['RESHARD_SEED']}, RESHARD_CELLS={cells}" in result.detail


def test_command_that_hangs_is_killed_at_its_limit(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.prove.run.GRACE_S", 0.0)
    ran = proof.run("hangs", [sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert ran.status != 0
    assert "killed" in ran.output


def test_every_part_says_what_it_tries_and_names_tests_that_exist() -> None:
    assert all(part.claim for part in PARTS)
    source = (ROOT / "tools" / "prove" / "parts.py").read_text()
    named = [word.strip('",[]') for word in source.split() if word.startswith(('"tests/', '["tests/'))]
    assert named
    assert all((ROOT / name.partition("::")[0]).exists() for name in named)


def test_help_names_the_parts() -> None:
    command = [sys.executable, "-m", "tools.prove", "--help"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(part.name in " ".join(printed.split()) for part in PARTS)
