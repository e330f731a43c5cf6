"""Claim: a lane is given up only where it was fenced twice in a row, and serving paid off for neither."""

from random import Random

import pytest

from dedupe.model.errors import FencedError, RetriableError
from dedupe.partition.context import LaneTimes
from dedupe.partition.health import LaneHealth

TIMES = LaneTimes(fenced_again_s=60.0)


class StandingClock:
    """Stands still unless a test moves it."""

    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Served:
    """A lane's health, and what befalls the lane."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.health = LaneHealth(self.clock, TIMES, Random(0))

    def fail(self, err: Exception, *, after_s: float) -> float:
        """Serve for so long, then fail; return how long the lane waits."""
        self.health.note_active()
        self.clock.ms += round(after_s * 1000)
        self.health.note_failure(err)
        return self.health.pause_s(err)


def test_two_fencings_with_a_moment_between_them_lose_the_lane() -> None:
    served = Served()

    served.fail(FencedError(), after_s=1000)
    assert not served.health.is_lost
    served.fail(FencedError(), after_s=59)
    assert served.health.is_lost


def test_lane_knows_whether_a_fencing_was_what_it_failed_of() -> None:
    served = Served()
    served.fail(FencedError(), after_s=1000)
    assert served.health.is_fenced
    served.fail(RetriableError(), after_s=0)
    assert not served.health.is_fenced
    served.fail(FencedError(), after_s=0)
    served.health.note_active()
    assert not served.health.is_fenced


@pytest.mark.regression("A lane that had served for days was lost by its second fencing.")
def test_long_service_forgives_a_fencing_however_it_ended() -> None:
    served = Served()
    served.fail(FencedError(), after_s=1000)

    served.fail(RetriableError(), after_s=60)
    served.fail(FencedError(), after_s=5)

    assert not served.health.is_lost


def test_short_service_that_ended_otherwise_forgives_nothing() -> None:
    served = Served()
    served.fail(FencedError(), after_s=1000)

    served.fail(RetriableError(), after_s=59)
    served.fail(FencedError(), after_s=5)

    assert served.health.is_lost


def test_pauses_begin_anew_once_the_lane_has_served_for_longer_than_the_longest() -> None:
    served = Served()
    pauses = [served.fail(RetriableError(), after_s=4.9) for _ in range(8)]

    assert pauses[-1] >= TIMES.backoff_max_s / 2
    assert served.fail(RetriableError(), after_s=5.0) <= TIMES.backoff_s
