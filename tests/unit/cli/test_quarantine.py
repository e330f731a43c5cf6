"""Claim: `gateway quarantine replay` waits for a partition that does not serve, and names what it gave up."""

import asyncio
from typing import Any

import pytest

from app.cli import quarantine
from app.cli.admin_client import AdminClient, RequestRefusedError
from app.cli.quarantine import TRIES_MAX
from app.ingest.replay import Changes
from dedupe.model.errors import ConfigurationError, RetriableError
from dedupe.storage.quarantine_reader import Kept, Place

HEAD = {"truncated": False, "length": 2, "sha256": ""}
KEPT = Kept(Place(0, 3), 1, "event_too_deep", "web", "1", b"k" * 16, HEAD, b"{}")
ADMIN = AdminClient("http://localhost")


def answer_with(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> list[tuple[str, Any]]:
    """Have the admin port give these answers, one a request; return what it was asked."""
    asked: list[tuple[str, Any]] = []

    def ask(_self: AdminClient, path: str, *, method: str, **query: Any) -> Any:
        assert method == "POST"
        asked.append((path, query))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(AdminClient, "ask", ask)
    monkeypatch.setattr(quarantine, "RETRY_S", 0)
    return asked


def replayed() -> dict[str, Any]:
    return asyncio.run(quarantine.replayed(ADMIN, KEPT, Changes(may_renew_id=True, to_source="app")))


def test_partition_that_does_not_serve_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(
        monkeypatch, [RetriableError("moving"), RetriableError("moving"), {"result": "accepted"}]
    )
    assert replayed() == {"result": "accepted"}
    assert asked == [("/admin/v1/quarantine/0/3/replay", {"new_id": True, "to_source": "app"})] * 3


@pytest.mark.regression("A replay stopped at the first error of a proxy.")
def test_event_is_given_up_after_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, [RetriableError("it is full")] * TRIES_MAX)
    line = replayed()
    assert (line["result"], line["why"], line["messageId"]) == ("failed", "it is full", "1")
    assert len(asked) == TRIES_MAX


def test_token_that_may_not_write_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, [ConfigurationError("this token may only read")])
    with pytest.raises(ConfigurationError, match="may only read"):
        replayed()


def test_record_that_is_refused_does_not_end_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, [RequestRefusedError("the gateway answers: no such record")])
    line = replayed()
    assert (line["result"], line["why"]) == ("failed", "the gateway answers: no such record")


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [({0, 1, 2}, None), ({0}, "these are missing: 1, 2"), ({1, 2}, "these are missing: 0")],
)
def test_dry_run_names_missing_pieces(numbers: set[int], problem: str | None) -> None:
    kept = KEPT._replace(head={**HEAD, "raw": True, "piece": min(numbers), "pieces": 3})
    found = quarantine._problem_of(kept, numbers)
    assert found is None if problem is None else found is not None and found.endswith(problem)
    line = asyncio.run(quarantine._result(kept, found, None, Changes()))
    assert (line["result"], line.get("why")) == ("ready" if found is None else "skipped", found)
