"""Claim: a path between workers that still lets something pass answers within four seconds, or is no link."""

import asyncio

import pytest
from structlog.testing import capture_logs

from app.peers.connection import UNANSWERED
from app.peers.limits import ANSWER_S
from dedupe.model.errors import OutcomeUnknownError
from tests.support.peer_group import Group, error_of, running, until
from tests.support.sim_net import SimNet

WITHIN_S = 0.25
"""A check, and the turns of the loop."""
PING_PASSES = 1_600
SLOW_S = 1.75
"""One way of a path of 3.5 s there and back."""


async def slow_down(net: SimNet, one: str, other: str, delay_s: float) -> None:
    """Make a path longer bit by bit: a step of two seconds would be a silence."""
    for part in range(1, 6):
        net.delays_s[one, other] = net.delays_s[other, one] = delay_s * part / 5
        await asyncio.sleep(1)


async def test_path_that_accepts_submissions_and_delivers_none_is_down_after_four_seconds() -> None:
    async with running(Group("a", "b")) as group:
        group.net.swallowed_over["a", "b"] = PING_PASSES
        with capture_logs() as logs:
            answer = group.submit("a", "b", value=bytes(2_000))
            took_s = await until(lambda: not group.link("a", "b").is_up)
        assert ANSWER_S <= took_s <= ANSWER_S + WITHIN_S
        assert await error_of(answer) is OutcomeUnknownError
        assert not group.handlers["b"].submissions
        assert [log["why"] for log in logs if log["event"] == "a worker is down"] == [UNANSWERED]
        assert group.handlers["a"].received[-1] == ("b", "status", None)


async def test_path_on_which_answers_vanish_is_down_after_four_seconds() -> None:
    async with running(Group("a", "b")) as group:
        group.handlers["b"].holds = True
        group.net.swallowed_over["b", "a"] = PING_PASSES
        answer = group.submit("a", "b")
        assert await until(lambda: not group.link("a", "b").is_up) <= ANSWER_S + WITHIN_S
        assert await error_of(answer) is OutcomeUnknownError


async def test_path_that_trickles_is_down_after_four_seconds_and_a_second_a_mebibyte() -> None:
    async with running(Group("a", "b")) as group:
        group.net.bytes_per_s["a", "b"] = 20_000
        answer = group.submit("a", "b", value=bytes(512 * 1024))
        took_s = await until(lambda: not group.link("a", "b").is_up)
        assert ANSWER_S + 0.5 <= took_s <= ANSWER_S + 0.5 + 2 * WITHIN_S
        assert await error_of(answer) is OutcomeUnknownError


async def test_large_body_on_a_slow_link_is_delivered() -> None:
    async with running(Group("a", "b")) as group:
        group.net.bytes_per_s["a", "b"] = 1_200_000
        answer = group.submit("a", "b", value=bytes(7_700_000))
        assert await until(answer.done) > ANSWER_S
        assert (await answer).offsets == [0]
        assert group.peers["a"].metrics.connected == 1


async def test_path_of_three_and_a_half_seconds_there_and_back_stays() -> None:
    async with running(Group("a", "b")) as group:
        await slow_down(group.net, "a", "b", SLOW_S)
        for number in range(20):
            answers = [group.submit("a", "b", start=2 * number)]
            await asyncio.sleep(0.3)
            answers.append(group.submit("a", "b", start=2 * number + 1))
            assert [(await answer).offsets for answer in answers] == [[2 * number], [2 * number + 1]]
        assert group.peers["a"].metrics.connected == 1


@pytest.mark.parametrize("delay_s", [0.0002, SLOW_S])
async def test_worker_whose_log_takes_its_time_stays_reachable(delay_s: float) -> None:
    async with running(Group("a", "b")) as group:
        await slow_down(group.net, "a", "b", delay_s)
        group.handlers["b"].holds = True
        answer = group.submit("a", "b")
        await asyncio.sleep(30)
        assert not answer.done()
        group.handlers["b"].submissions[0].accept()
        assert (await answer).offsets == [0]
        assert group.peers["a"].metrics.connected == 1


async def test_link_that_does_not_answer_again_and_again_is_tried_less_and_less_often() -> None:
    async with running(Group("a", "b")) as group:
        link, metrics = group.link("a", "b"), group.peers["a"].metrics
        for before, at_least_s in enumerate((5.0, 10.0, 15.0, 15.0), 1):
            assert metrics.connected == before
            group.net.swallowed_over["a", "b"] = PING_PASSES
            answer = group.submit("a", "b", value=bytes(2_000))
            await until(lambda: not link.is_up)
            assert answer.done()
            group.net.mend_all()
            assert at_least_s <= await until(lambda: link.is_up) <= 3 * at_least_s + 1
        await asyncio.sleep(61)
        group.net.swallowed_over["a", "b"] = PING_PASSES
        answer = group.submit("a", "b", value=bytes(2_000))
        await until(lambda: not link.is_up)
        assert await error_of(answer) is OutcomeUnknownError
        group.net.mend_all()
        assert await until(lambda: link.is_up) <= 16, "it has served for a minute"


async def test_busy_link_is_not_asked_for_echoes() -> None:
    async with running(Group("a", "b")) as group:
        dialler = group.link("a", "b")._dialler
        assert dialler is not None
        first = dialler._path_number
        group.net.delays_s["b", "a"] = 0.05
        for number in range(200):
            answer = group.submit("a", "b", start=number)
            await asyncio.sleep(0.04)
            await answer
        assert dialler._path_number == first
