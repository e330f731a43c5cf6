"""
The seam to the other workers: one link to each, over which events, commits and questions travel.

Whatever a link says may be late or missing, and nothing that keeps the promise depends on it.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol, Self

from dedupe.group.assignment import WorkerId
from dedupe.submission import Outcomes, Submission


class Status(NamedTuple):
    """What a worker tells the others of its lanes, whenever that changes."""

    generation: int = -1
    owned: frozenset[int] = frozenset()  # not given up yet, whether they serve or not
    active: frozenset[int] = frozenset()
    failing: frozenset[int] = frozenset()  # owned, but their log or index fails: not to be waited for
    is_leaving: bool = False

    def told(self) -> list[Any]:
        """Return it as plain values."""
        return [
            self.generation,
            sorted(self.owned),
            sorted(self.active),
            sorted(self.failing),
            self.is_leaving,
        ]

    @classmethod
    def heard(cls, told: object) -> Self:
        """Read what another worker, of this version or the next, has told. Raises ValueError."""
        if not isinstance(told, list | tuple) or len(told) < len(cls._fields):
            raise ValueError("not a status")
        generation, *lanes, is_leaving = told[: len(cls._fields)]
        if not all(isinstance(numbers, list | tuple) for numbers in lanes):
            raise ValueError("not a status")
        if not all(
            isinstance(value, int) for value in (generation, *(n for numbers in lanes for n in numbers))
        ):
            raise ValueError("not a status")
        owned, active, failing = map(frozenset, lanes)
        return cls(generation, owned, active, failing, bool(is_leaving))


class Link(Protocol):
    """To one other worker."""

    @property
    def is_up(self) -> bool:
        """Whether it has answered lately."""

    @property
    def can_send(self) -> bool:
        """Whether events would reach it now: not while a broken connection is being mended."""

    def check_capacity(self, submission: Submission) -> None:
        """Raise LaneSaturatedError if too much is under way, LaneNotActiveError if it is down."""

    def submit(self, lane: int, submission: Submission) -> "asyncio.Future[Outcomes]":
        """
        Forward a submission to a lane of the other worker; see SubmissionTarget.

        It fails as the lane there did, or with OutcomeUnknownError when the link breaks meanwhile.
        """

    def ask(self, kind: str, body: Any, timeout_s: float) -> Awaitable[Any]:
        """Put a question. Raises the GatewayError it is answered with, or RetriableError."""

    def tell(self, kind: str, body: Any) -> bool:
        """Say something that needs no answer, and may get lost; false if it surely is."""


class Links(Protocol):
    """To all other workers of the group."""

    def set_members(self, addresses: Mapping[WorkerId, str]) -> None:
        """Keep links to exactly these."""

    def link(self, worker: WorkerId) -> Link | None:
        """Return the one to a worker, None if it is no member."""

    def announce(self) -> None:
        """Tell everybody the status anew, soon."""
