"""Claim: only a cluster that says so has no such topic; one in trouble is asked again."""

import pytest

from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.cluster import UNKNOWN_TOPIC, Cluster, KafkaCluster
from tests.support.settings import kafka_config

LEADER_NOT_AVAILABLE = 5


def cluster_that_says(code: int, partitions: int, monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    cluster = KafkaCluster(kafka_config("127.0.0.1:1"))

    async def describe(_topic: str) -> Cluster:
        return Cluster("id", None, {}, [{"error_code": code, "partitions": [{}] * partitions}])

    monkeypatch.setattr(cluster, "describe", describe)
    return cluster


@pytest.mark.parametrize(("code", "partitions"), [(0, 2), (UNKNOWN_TOPIC, 0)])
async def test_topic_has_the_partitions_that_the_cluster_tells(
    code: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await cluster_that_says(code, partitions, monkeypatch).partitions_of("events") == partitions


async def test_topic_that_cannot_be_described_now_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RetriableError, match="LeaderNotAvailable"):
        await cluster_that_says(LEADER_NOT_AVAILABLE, 0, monkeypatch).partitions_of("events")


@pytest.mark.regression("A broker's name that no host can have ended the search for brokers.")
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_name_that_no_host_can_have_is_out_of_reach_and_stops_no_other(host: str) -> None:
    cluster = KafkaCluster(kafka_config(f"{host}:9092,{host}:9093"))

    with pytest.raises(RetriableError, match="no name of a host"):
        await cluster.describe()
