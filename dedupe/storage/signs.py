"""
What is said of an open plan in the notes of its topic, by which all gateways carry it out together. Pure.

Hints alone: whenever a partition is cut, that is safe.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import orjson

from dedupe.decide.resharding import Routing

PREPARED = "prepared"
"""A note of each partition that decides of a plan, by its owner: how far the indexes are that it prepares."""

CUT_NOW = "cut-now"
"""A note of partition 0: the plan that an operator wants carried out without waiting any longer."""

NEAR = 1_000
"""Offsets that an index may lack when its source is cut: they are read within some hundredths of a second."""


class Prepared(NamedTuple):
    """What the owner of a partition says of its heirs."""

    plan: int
    lag: int | None  # offsets that the slowest of them has to read; None: not known yet
    marks: int = 0  # how often the plan was marked, as far as the owner knows

    def encoded(self) -> str:
        """Encode the note."""
        return orjson.dumps(self._asdict()).decode()

    @property
    def is_near(self) -> bool:
        """Whether a cut would wait for none of them."""
        return self.lag is not None and self.lag <= NEAR


class Signs(NamedTuple):
    """What is said of one plan."""

    told: Mapping[int, Prepared]  # by partition
    is_cut_now: bool = False
    is_closing: bool = False

    def are_near(self, routing: Routing, hosts: Collection[int]) -> bool:
        """Whether all indexes of a plan are near its last marks; for hosts see dedupe.decide.planned."""
        told = [self.told.get(each) for each in hosts]
        return all(said is not None and said.is_near and said.marks == len(routing.marks) for said in told)

    def are_due(self, routing: Routing, hosts: Collection[int]) -> bool:
        """Whether the plan is to be carried out, or closed, now."""
        if self.is_cut_now or self.is_closing:
            return True
        return not routing.takes_marks and (bool(routing.marks) or self.are_near(routing, hosts))


def signs_of(
    plan: int, prepared: Mapping[int, str], cut_now: Mapping[int, str], *, is_closing: bool
) -> Signs:
    """Return what notes say of a plan; what they say of others, or in another form, counts as unsaid."""
    told = {partition: said for partition, text in prepared.items() if (said := _read(text)).plan == plan}
    return Signs(told, str(plan) in cut_now.values(), is_closing)


def _read(text: str) -> Prepared:
    try:
        fields = orjson.loads(text)
        plan, lag, marks = fields["plan"], fields["lag"], fields.get("marks", 0)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Prepared(0, None)
    return Prepared(plan if isinstance(plan, int) else 0, lag if isinstance(lag, int) else None, marks)
