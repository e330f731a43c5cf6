"""Claim: a path of the switch drops, delays and slows what it is told to, and nothing else."""

import pytest

from tests.support.switch import FULL_BYTES, PACKET_BYTES_MAX, QUEUE_BYTES_MAX, Path


def test_path_that_nothing_is_wrong_with_passes_all_at_once() -> None:
    path = Path()
    assert path.takes(PACKET_BYTES_MAX, 0.0)
    assert path.due(PACKET_BYTES_MAX, 5.0) == 5.0


def test_cut_loss_and_size_decide_what_is_taken() -> None:
    assert not Path(is_cut=True).takes(40, 0.9)
    assert [Path(loss=0.3).takes(40, chance) for chance in (0.2, 0.4)] == [False, True]
    assert [Path(packet_bytes_max=1_000).takes(size, 0.9) for size in (1_000, 1_001)] == [True, False]


def test_first_full_packet_ends_a_path_that_lives_on_small_ones() -> None:
    path = Path(ends_at_full=True)
    assert path.takes(FULL_BYTES - 1, 0.9)
    assert not path.takes(FULL_BYTES, 0.9)
    assert not path.takes(40, 0.9)


def test_slow_path_sends_one_after_the_other_and_loses_what_does_not_wait() -> None:
    path = Path(bytes_per_s=1_000, delay_s=0.5)
    assert [path.due(500, 0.0) for _ in range(2)] == pytest.approx([1.0, 1.5])
    assert path.due(500, 10.0) == pytest.approx(11.0)
    path.free_at = 10.0 + 2 * QUEUE_BYTES_MAX / 1_000
    assert path.due(500, 10.0) is None
