"""Asking standbys, before lanes are handed over, whether they could take them now."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from dedupe.cluster.assignment import NOBODY, WorkerId
from dedupe.cluster.codec import STANDBY
from dedupe.cluster.peer_directory import PeerDirectory

STANDBY_S = 1.5
"""For a standby's probe of the log."""
ANSWER_S = 2.0
"""For its answer, which contains the probe."""


def by_standby(numbers: Iterable[int], standby_of: Callable[[int], WorkerId]) -> dict[WorkerId, list[int]]:
    """Return lanes by their standbys; NOBODY has those without one."""
    followed: defaultdict[WorkerId, list[int]] = defaultdict(list)
    for number in numbers:
        followed[standby_of(number)].append(number)
    return followed


async def ask_standbys(
    directory: PeerDirectory, followed: Mapping[WorkerId, Sequence[int]], probed: int | None = None
) -> dict[WorkerId, float]:
    """
    Ask standbys whether they can take over all lanes that they follow.

    Args:
        directory: the other workers.
        followed: the lanes by standby.
        probed: a lane whose leader each of them probes; None for one of those that it follows.

    Returns:
        How long the leader took to answer each standby that can, in seconds.
    """
    healthy = {name for name, status in directory.alive().items() if not status.is_leaving}
    names = [name for name in followed if name != NOBODY and name in healthy]
    asked = [
        directory.request(
            name, STANDBY, [followed[name], followed[name][0] if probed is None else probed], ANSWER_S
        )
        for name in names
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, float)}
