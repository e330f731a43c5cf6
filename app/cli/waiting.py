"""Waits until gateways have prepared an open plan, and tells how far they are."""

import asyncio
from dataclasses import dataclass

from dedupe.decide.planned import hosts_of
from dedupe.storage.settling import Settling
from dedupe.storage.signs import Signs

SIGN_S = 10.0
"""How long gateways may take to say that they prepare: those that run see a plan within a second."""
SILENCE_S = 60.0
"""How long they may say nothing then: a few notes were missing, and no gateway runs any more."""
POLL_S = 0.5
TELL_S = 5.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """The wait of one command."""

    settling: Settling
    plan: int

    async def until_near(self) -> bool:
        """
        Return whether all indexes are near, or the plan is carried out; False if no gateway prepares them.

        Raises as Settling.settle does.
        """
        clock, plans = self.settling.clock, self.settling.store.routing_topic
        heard_at = told_at = clock.monotonic()
        before, told = Signs({}), ""
        routing, _ = await plans.routing(self.settling.topic.partitions)
        hosts = hosts_of(routing)
        while routing.undecided and not routing.decisions:
            now, signs = clock.monotonic(), await plans.signs(self.plan)
            if signs.are_near(routing, hosts) or signs.are_due(routing, hosts):
                break
            if signs != before:
                before, heard_at = signs, now
            if now - heard_at > (SILENCE_S if signs.told else SIGN_S):
                self.settling.tell("no gateway prepares new indexes: they are read afterwards")
                return False
            text = progress_of(signs)
            if signs.told and text != told and (now - told_at >= TELL_S or not told):
                told, told_at = text, now
                self.settling.tell(text)
            await asyncio.sleep(POLL_S)
            routing, _ = await plans.routing(self.settling.topic.partitions)
        return True


def progress_of(signs: Signs) -> str:
    """Return one sentence on how far new indexes are."""
    near = sum(said.is_near for said in signs.told.values())
    left = max((said.lag for said in signs.told.values() if said.lag is not None), default=None)
    of = f"of {near} of {len(signs.told)} partitions the heirs are prepared"
    return of if left is None else f"{of}; the last ones have {left:,} offsets to read"
