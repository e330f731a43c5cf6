"""Claim: `gateway size` and docs/capacity.md stand on the figures that were measured, and on one sum."""

import math

import orjson
import pytest
from typer.testing import CliRunner, Result

from app.cli.commands import app
from app.cli.sizing import BROKER_US, SERVICE_US, Load, cost_us, dollars_of, need_of
from loadtests.capacity import BATCHES, measured_us


def sized(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["size", *arguments, "-o", "json"])


@pytest.mark.parametrize("batch_events", BATCHES)
def test_figures_are_the_measured_ones(batch_events: int) -> None:
    service, broker = measured_us(batch_events)
    assert (round(service, 1), round(broker, 1)) == (SERVICE_US[batch_events], BROKER_US[batch_events])


def test_cost_of_an_event_falls_with_the_size_of_its_request() -> None:
    assert cost_us(SERVICE_US, 1) == SERVICE_US[1]
    assert cost_us(SERVICE_US, 100) == pytest.approx(SERVICE_US[100])
    costs = [cost_us(SERVICE_US, events) for events in (1, 2, 10, 100, 2_500)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] > 0


def test_sum_of_a_hundred_million_events_one_by_one() -> None:
    need = need_of(Load(100e6, batch_events=1))
    assert need.cores == pytest.approx(100e6 * 1.05 / 86_400 * 4 * 295.1e-6 * 1.7)
    assert (need.gateways, need.partitions, need.index_copies, need.brokers) == (5, 32, 2, 3)
    keys = 2 * 700e6
    assert need.memory_gib == pytest.approx(keys * 5 / 2**30 + 5 * (512 + 812) / 1024)
    assert need.disk_gb == pytest.approx(keys * 38 * 2 / 1e9 + 5 * 2)
    assert need.broker_gb == pytest.approx(100e6 * 1_000 * 3 * 8 / 1e9)
    assert need.rebuild_s == pytest.approx(700e6 / 190_000 / 5)
    assert need.snapshot_s == pytest.approx(700e6 * 38 / 200e6 / 5)


def test_partitions_are_a_power_of_two_within_what_settings_take() -> None:
    for millions in (1, 50, 200, 1_000, 20_000):
        partitions = need_of(Load(millions * 1e6, batch_events=1)).partitions
        assert 8 <= partitions <= 1024
        assert math.log2(partitions).is_integer()


@pytest.mark.parametrize(
    ("events_a_day", "days", "partitions"), [(143e6, 7, 16), (1e9, 7, 128), (2.2e9, 28, 1_024)]
)
def test_a_partition_has_at_most_a_hundred_million_ids(
    events_a_day: float, days: int, partitions: int
) -> None:
    need = need_of(Load(events_a_day, window_s=days * 86_400))
    assert need.partitions == partitions
    assert need.lane_keys == pytest.approx(events_a_day * days / partitions)
    assert need.lane_keys <= 100e6
    assert need.memory_gib / need.gateways <= 33


def test_what_no_number_of_partitions_carries_is_said() -> None:
    said = sized("20G", "--window", "28d")
    assert "are more than the 100 million" in said.stderr
    assert "million ids" not in sized("1G").stderr


def test_storage_of_the_topic_is_told_three_ways() -> None:
    need = need_of(Load(2.2e9, window_s=28 * 86_400))
    assert need.broker_zstd_gb == pytest.approx(need.broker_gb / 4)
    local, bucket = need.tiered_gb
    assert local + 3 * bucket == pytest.approx(need.broker_zstd_gb)
    costs = [dollars_of(need, storage=storage) for storage in ("raw", "zstd", "tiered")]
    assert costs == sorted(costs, reverse=True)


def test_command_prints_needs_and_settings() -> None:
    document = orjson.loads(sized("100M", "--window", "14d").stdout)
    assert document["events_per_second"] == {"mean": 1215.3, "peak": 4861.1}
    assert document["gateways"] == 1
    assert document["settings"] == {
        "GATEWAY_PARTITIONS": 16,  # of 88 million ids
        "GATEWAY_WINDOW": "14d",
        "GATEWAY_INDEX_KEYS_MAX": 2_100_000_000,
    }
    alone = orjson.loads(sized("500M", "--no-standbys").stdout)
    followed = orjson.loads(sized("500M").stdout)
    total_gb = [sum_["gateways"] * (sum_["each_gateway"]["disk_gb"] - 2) for sum_ in (alone, followed)]
    assert total_gb[1] == pytest.approx(2 * total_gb[0], rel=0.01)


@pytest.mark.parametrize(
    "arguments", [("many",), ("0",), ("-5",), ("1M", "--window", "1h"), ("1M", "--window", "week")]
)
def test_what_is_no_number_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert sized(*arguments).exit_code == 2
