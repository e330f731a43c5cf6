"""What goes wrong in a simulated world, how often, and who is told: all drawn from one seed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

OnFault: TypeAlias = Callable[[str, str, int], None]
"""Called with a fault's name, topic and partition whenever it happens."""

SLOW_STEPS_MAX = 8


@dataclass(frozen=True, slots=True)
class SimFaults:
    """How often what goes wrong: the probability of each fault at each call it can befall."""

    seed: int = 0
    unavailable: float = 0.0  # any call: it and the partition's next few are not taken at all
    hang: float = 0.0  # any call: refused as above, but only after a while; append: the answer is lost so
    log_full: float = 0.0  # append: it and the partition's next few are refused, reads and fences go on
    refuse: float = 0.0  # append: the leader refuses it, and says so
    lose_reply: float = 0.0  # append or fence: done, but its caller is not told
    delay_append: float = (
        0.0  # append: under way when its time is over; it arrives later, or a fence is quicker
    )
    delay_sight: float = 0.0  # append: done, but readers see it only from a later call or fence on
    leak_cancel: float = 0.0  # any call: a CancelledError of the client's own comes out of it
    rival: float = 0.0  # append: another gateway has just fenced the partition
    slow: float = 0.0  # any step: others go first for a while
    disk_error: float = 0.0  # index: it cannot be opened, or a write fails and leaves nothing
    bit_flip: float = 0.0  # index: any use finds it damaged


NO_FAULTS = SimFaults()


def ignore_fault(_fault: str, _topic: str, _partition: int) -> None:
    """Tell nobody."""


class SimDice:
    """Decides which faults happen; `faults` may be replaced at any time."""

    def __init__(self, faults: SimFaults = NO_FAULTS) -> None:
        self.faults = faults
        self._random = Random(faults.seed)

    def says(self, probability: float) -> bool:
        """Whether something of this probability happens now."""
        return probability > 0 and self._random.random() < probability

    def count(self, most: int) -> int:
        """Return 1 to `most`."""
        return self._random.randint(1, most)

    def seconds(self, low_s: float, high_s: float) -> float:
        """Return how long something takes, in [low_s, high_s]; what takes no time draws nothing."""
        return self._random.uniform(low_s, high_s) if high_s > 0 else 0.0

    async def step(self) -> None:
        """Let other tasks run, as each wait for an answer does."""
        for _ in range(self.count(SLOW_STEPS_MAX) if self.says(self.faults.slow) else 1):
            await asyncio.sleep(0)
