"""Claim: the clients follow clients/PROTOCOL.md: its vectors, and every scenario of the conformance run."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

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


RUNS_AT_ONCE = 4
"""They mostly wait."""


class Run(NamedTuple):
    """A run of the scenarios that have `only` in their names."""

    command: str
    only: str = ""
    patience_s: float = scenarios.PATIENCE_S


RUNS = {client: Run(command, patience_s=PATIENCE_S) for client, command in HARNESSES.items()} | {
    wrong: Run(
        f"{sys.executable} -m tests.e2e.clients.wrong_client {wrong}",
        scenario,
        STANDING_S if wrong in STANDS_STILL else scenarios.PATIENCE_S,
    )
    for wrong, scenario in WRONG_CLIENTS.items()
}
"""By the client. Those that take longest come first."""


class Told(NamedTuple):
    """What a run says: how many scenarios failed, and a line of each."""

    failures: int
    lines: str


class Runs:
    """Runs side by side. A test that is repeated gets a run of its own."""

    def __init__(self, folder: Path, clients: Iterable[str], threads: Executor) -> None:
        self._numbers, self._folder = count(), folder
        self._begun = {client: threads.submit(self._run, client) for client in clients}

    def told_of(self, client: str) -> Told:
        begun = self._begun.pop(client, None)
        return self._run(client) if begun is None else begun.result()

    def _run(self, client: str) -> Told:
        command, only, patience_s = RUNS[client]
        folder, lines = self._folder / f"{client}-{next(self._numbers)}", list[str]()
        failures = run(command, folder, only=only, patience_s=patience_s, tell=lines.append)
        return Told(failures, "\n".join(lines))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The runs of all clients whose tests were chosen."""
    here = [item for item in request.session.items if item.path == request.path]
    params = [test.callspec.params for test in here if hasattr(test, "callspec")]
    chosen = {param.get("client") or param.get("wrong") for param in params}
    with ThreadPoolExecutor(RUNS_AT_ONCE) as threads:
        yield Runs(tmp_path_factory.mktemp("runs"), [client for client in RUNS if client in chosen], threads)


@pytest.mark.slow
@pytest.mark.parametrize("client", HARNESSES)
def test_client_passes_every_scenario(client: str, runs: Runs) -> None:
    failures, lines = runs.told_of(client)
    assert failures == 0, lines
    assert [line.endswith(" ok") for line in lines.splitlines()] == [True] * len(SCENARIOS)


@pytest.mark.regression("The conformance run let clients pass that store moved events twice.")
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_CLIENTS)
def test_a_client_that_is_wrong_does_not_pass(wrong: str, runs: Runs) -> None:
    failures, lines = runs.told_of(wrong)
    assert failures == 1, lines
    assert STANDS_STILL.get(wrong, "FAILED") in lines


@pytest.mark.slow
def test_a_client_that_sends_again_in_another_session_does_not_pass_a_crash_of_the_gateway(
    tmp_path: Path,
) -> None:
    command, lines = f"{sys.executable} -m tests.e2e.clients.wrong_client renumbers_on_retry", list[str]()
    assert run(command, tmp_path, only="crashed_gateway", tell=lines.append) == 1
    (told,) = lines
    assert "stored twice" in told
    assert " 0 stored twice" not in told
