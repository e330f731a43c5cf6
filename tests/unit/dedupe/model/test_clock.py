"""Claim: log time goes on through a machine's sleep, and follows a wall clock that is set only if asked."""

import sys
import time

import pytest

from dedupe.model.clock import APART_S, SINCE_BOOT, SystemClock


class Machine:
    """Stands in for the system's clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s = 1_700_000_000.0
        self.since_boot_s = 5_000.0
        monkeypatch.setattr(time, "time", lambda: self.wall_s)
        monkeypatch.setattr(time, "monotonic", lambda: 100.0)  # as it stands still in a sleep
        monkeypatch.setattr(time, "clock_gettime", lambda clock: {SINCE_BOOT: self.since_boot_s}[clock])

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds
        self.since_boot_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_log_time_goes_on_while_the_machine_sleeps(machine: Machine) -> None:
    clock = SystemClock()
    machine.sleep(30 * 86_400)

    assert clock.now_ms() == 1_700_000_000_000 + 30 * 86_400_000


@pytest.mark.parametrize("set_by_s", [-86_400.0, 86_400.0])
def test_wall_clock_that_is_set_moves_nothing(machine: Machine, set_by_s: float) -> None:
    clock = SystemClock()
    machine.wall_s += set_by_s

    assert clock.now_ms() == 1_700_000_000_000
    assert clock.offset_s == -set_by_s


@pytest.mark.parametrize("set_by_s", [-86_400.0, 86_400.0])
def test_log_time_follows_a_wall_clock_that_was_set_when_it_is_asked_to(
    machine: Machine, set_by_s: float
) -> None:
    clock = SystemClock()
    machine.wall_s += set_by_s

    assert clock.follow_wall_clock() == -set_by_s
    assert clock.now_ms() == 1_700_000_000_000 + set_by_s * 1000
    assert (clock.follow_wall_clock(), clock.offset_s) == (0, 0)


@pytest.mark.parametrize("set_by_s", [-APART_S, 0.0, APART_S])
def test_log_time_that_is_near_the_wall_clock_stays_as_it_is(machine: Machine, set_by_s: float) -> None:
    clock = SystemClock()
    machine.wall_s += set_by_s

    assert clock.follow_wall_clock() == 0
    assert clock.now_ms() == 1_700_000_000_000


def test_clock_that_does_not_stop_in_a_sleep_is_asked() -> None:
    assert (time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC) == SINCE_BOOT
