"""Claim: the clients follow clients/PROTOCOL.md: its vectors, and every scenario of the conformance run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from clients.conformance import scenarios
from clients.conformance.__main__ import run
from clients.conformance.scenarios import SCENARIOS
from clients.python.src.gateway_client.answers import Answer, Fate, UndecidedError, Verdict, judge
from clients.python.src.gateway_client.model import Batch, Queued, event_of
from clients.python.src.gateway_client.settlement import settlement_of
from tests.e2e.clients.kotlin import kotlin_command
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "clients/conformance/vectors.json").read_bytes())["vectors"]
HARNESSES = {
    "javascript": f"node {ROOT}/clients/conformance/harness/javascript_client.mjs",
    "kotlin": kotlin_command("Harness"),
    "python": f"{sys.executable} {ROOT}/clients/conformance/harness/python_client.py",
}


def test_kotlin_client_passes_the_vectors() -> None:
    command = [*kotlin_command("Vectors").split(), str(ROOT / "clients/conformance/vectors.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_python_client_passes_the_vectors(vector: dict[str, Any]) -> None:
    told = vector["batch"]
    events = [Queued.of(event) for event in told["events"]]
    marks = told["sentBefore"], told["doubtfulThrough"]
    batch = Batch("client", told["session"], told["firstSequence"], events, *marks, is_last=False)
    body = vector["answer"]["body"].replace("[*100000", "[" * 100_000)
    answer = Answer(vector["answer"]["status"], httpx.Headers(vector["answer"]["headers"]), body.encode())
    try:
        verdicts = judge(batch, answer)
    except UndecidedError as err:
        action = "halve" if err.is_about_this_body else "again long" if err.is_about_the_key else "again"
        assert action == vector["action"]
    else:
        if vector["action"] == "settle":
            assert [_plain(verdict) for verdict in verdicts] == vector["verdicts"]
            found = settlement_of(batch, verdicts)
            assert {
                "done": found.done,
                "moved": [event_of(event.content) for event in found.moved],
                "deadLetters": [[letter.place.sequence, letter.code] for letter in found.letters],
                "doubtfulThrough": found.doubtful_through,
                "isSessionOver": found.is_session_over,
            } == vector["settlement"]
        else:  # a 200 that is no object, which this client takes for one that names no event
            assert {verdict.fate for verdict in verdicts} == {Fate.AGAIN}
    assert answer.retry_after_s == vector.get("retryAfterSeconds", answer.retry_after_s)


def _plain(verdict: Verdict) -> object:
    return [verdict.fate.value, verdict.code] if verdict.code else verdict.fate.value


@pytest.mark.slow
@pytest.mark.parametrize("client", HARNESSES)
def test_client_passes_every_scenario(client: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failures = run(HARNESSES[client], tmp_path, patience_s=PATIENCE_S)
    told = capfd.readouterr().out
    assert failures == 0, told
    assert told.count(" ok\n") == len(SCENARIOS)


STANDING_S = 12.0
"""For scenarios that a client fails by delivering nothing; the right one needs a few seconds."""
STANDS_STILL = {
    "never_halves": "flush is not true within",
    "obeys_proxies": "flush is not true within",
    "gives_up_after_401": "the queue stands still",
}
WRONG_CLIENTS = {
    "acknowledges_without_verdict": "odd_answers",
    "renumbers_on_retry": "lost_answers",
    "keeps_in_memory": "killed",
    "ends_at_its_leisure": "dripping_answer",
    "drops_on_413": "small_proxy",
    "never_halves": "silent_proxy",
    "hides_rejections": "poison",
    "gives_up_after_401": "wrong_key_for_a_while",
    "obeys_proxies": "asked_to_wait",
    "asks_too_soon": "asked_to_wait",
    "moves_without_id": "restored_backup",
    "never_asks": "other_source",
    "gives_up_damaged_queues": "damaged",
}


@pytest.mark.regression("The conformance run let clients pass that store moved events twice.")
@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "scenario"), WRONG_CLIENTS.items(), ids=list(WRONG_CLIENTS))
def test_a_client_that_is_wrong_does_not_pass(
    wrong: str, scenario: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} -m tests.e2e.clients.wrong_client {wrong}"
    patience_s = STANDING_S if wrong in STANDS_STILL else scenarios.PATIENCE_S
    assert run(command, tmp_path, only=scenario, patience_s=patience_s) == 1
    assert STANDS_STILL.get(wrong, "FAILED") in capfd.readouterr().out


@pytest.mark.slow
def test_a_client_that_sends_again_in_another_session_does_not_pass_a_crash_of_the_gateway(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = f"{sys.executable} -m tests.e2e.clients.wrong_client renumbers_on_retry"
    assert run(command, tmp_path, only="crashed_gateway") == 1
    told = capfd.readouterr().out
    assert "stored twice" in told
    assert " 0 stored twice" not in told
