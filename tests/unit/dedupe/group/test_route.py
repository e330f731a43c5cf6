"""Claim: an answer of another worker that cannot be read is retriable, and no fault of ours."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedupe.errors import LaneNotActiveError
from dedupe.group.links import Link
from dedupe.group.route import GroupRoute
from dedupe.lane import Lane, LaneState


class Garbler:
    """A worker that serves the lane, and says this of whatever it is asked."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def ask(self, kind: str, question: Any, timeout_s: float) -> object:
        return self._answer

    def server_of(self, lane: int) -> Link:
        return cast(Link, self)


QUESTIONS: dict[str, Callable[[GroupRoute], Awaitable[object]]] = {
    "session": lambda route: route.session(bytes(32)),
    "sessions of a client": lambda route: route.sessions_of(bytes(16), 9),
    "find": lambda route: route.find(bytes(16)),
}


@pytest.mark.parametrize("answer", [5, [1], [[1]]])
@pytest.mark.parametrize("question", QUESTIONS)
async def test_answer_that_cannot_be_read_is_to_be_asked_for_again(question: str, answer: object) -> None:
    away = cast(Lane, SimpleNamespace(state=LaneState.UNASSIGNED))
    route = GroupRoute(0, away, cast(Any, Garbler(answer)))
    with pytest.raises(LaneNotActiveError):
        await QUESTIONS[question](route)
