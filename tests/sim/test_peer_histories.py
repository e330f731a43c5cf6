"""Claim: every submission to another worker is answered once and truly, whatever fails."""

import asyncio
from random import Random

from dedupe.model.errors import LaneNotActiveError, LaneSaturatedError, OutcomeUnknownError
from dedupe.submission import Outcomes
from tests.sim.seeds import each_seed
from tests.support.peer_group import Group, pairs, running
from tests.support.peers import events_of


@each_seed(one_in=20)
async def test_every_submission_is_answered_once_whatever_happens(seed: int) -> None:
    rng = Random(seed)
    async with running(Group("a", "b", "c", seed=seed)) as group:
        waiting: list[tuple[int, asyncio.Future[Outcomes]]] = []
        number = 0
        for _ in range(60):
            for one, other in pairs(group):
                count = rng.randint(1, 40)
                try:
                    answer = group.submit(one, other, count, start=number, value=bytes(rng.randint(2, 9000)))
                except (LaneNotActiveError, LaneSaturatedError):
                    continue
                waiting.append((number, answer))
                number += count
            await fault(group, rng)
            await asyncio.sleep(rng.choice((0, 0.0003, 0.01, 0.3)))
        for one, other in pairs(group):
            group.net.mend(one, other)
            group.net.release(one, other)
        await asyncio.wait([answer for _, answer in waiting], timeout=30)
        taken = [
            submission.events[0].key
            for handler in group.handlers.values()
            for submission in handler.submissions
        ]
        assert len(taken) == len(set(taken))
        for start, answer in waiting:
            key = events_of(1, start=start)[0].key
            if (err := answer.exception()) is None:
                assert answer.result().offsets[0] == start
                assert key in taken
            elif isinstance(err, LaneNotActiveError):
                assert key not in taken
            else:
                assert isinstance(err, OutcomeUnknownError)
        await asyncio.sleep(10)
        for pair in pairs(group):
            assert (await group.submit(*pair)).offsets == [0]
        refused = {reason for peers in group.peers.values() for reason in peers.metrics.frames_refused}
        assert refused <= {"late_handshake"}


async def fault(group: Group, rng: Random) -> None:
    """Do something to the network or to a worker, mostly nothing."""
    one, other = rng.sample(sorted(group.peers), 2)
    net = group.net
    what = rng.random()
    if what < 0.1:
        net.reset(one, other)
    elif what < 0.15:
        net.cut(one, other)
    elif what < 0.25:
        net.mend(one, other)
    elif what < 0.3:
        net.hold(one, other)
    elif what < 0.45:
        net.release(one, other)
    elif what < 0.5:
        net.delays_s[one, other] = rng.choice((0.0002, 0.01, 0.15))
    elif what < 0.53:
        await group.stop(one)
        group.start(one)
