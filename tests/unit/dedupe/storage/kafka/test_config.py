"""Claim: bootstrap servers are read as clients of Kafka read them, or refused by name."""

import pytest

from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.config import Address
from tests.support.settings import kafka_config


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("kafka:9093", {("kafka", 9093)}),
        (" a:1,b:2 , c ", {("a", 1), ("b", 2), ("c", 9092)}),
        ("[::1]:9093,[::2]", {("::1", 9093), ("::2", 9092)}),
    ],
)
def test_bootstrap_servers_are_a_list(servers: str, addresses: set[tuple[str, int]]) -> None:
    found = kafka_config(servers).bootstrap_addresses()
    assert set(found) == {Address(*address) for address in addresses}


def test_port_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="kafka:port"):
        kafka_config("kafka:port").bootstrap_addresses()
