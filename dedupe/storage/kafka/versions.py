"""
The versions of Kafka's requests that a broker accepts. Pure.

A broker closes the connection at a request of a version that it does not accept, without a word; so each
connection begins with ApiVersions, whose version 0 every broker answers.
"""

import struct
from typing import NamedTuple

from aiokafka.errors import KafkaError

from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.config import Address

API_VERSIONS = 18
NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    17: "SaslHandshake",
    API_VERSIONS: "ApiVersions",
    19: "CreateTopics",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    26: "EndTxn",
    32: "DescribeConfigs",
    36: "SaslAuthenticate",
}
"""Kafka's names of the requests that the gateway sends."""

_HEAD = struct.Struct(">hi")  # error code, number of ranges
_RANGE = struct.Struct(">hhh")  # key, lowest version, highest version


class BrokerVersions(NamedTuple):
    """The accepted versions of one broker."""

    broker: Address
    ranges: dict[int, tuple[int, int]]  # by request key: lowest and highest version

    def choose(self, key: int, *spoken: int) -> int:
        """
        Return the highest version that both sides speak.

        Args:
            key: the request's key.
            spoken: the gateway's versions, ascending.

        Raises:
            ConfigurationError: there is none.
        """
        lowest, highest = self.ranges.get(key, (0, -1))
        for version in reversed(spoken):
            if lowest <= version <= highest:
                return version
        broker, name = "{}:{}".format(*self.broker), NAMES.get(key, f"request {key}")
        ours = f"{spoken[0]} to {spoken[-1]}" if len(spoken) > 1 else f"{spoken[0]}"
        theirs = f"{name} {lowest} to {highest}" if highest >= lowest else f"no {name}"
        raise ConfigurationError(f"broker {broker} speaks {theirs}, this gateway {ours}")


def read_versions(broker: Address, response: bytes) -> BrokerVersions:
    """Decode the response to ApiVersions 0. Raises KafkaError: the broker refuses, or it cannot be read."""
    try:
        code, count = _HEAD.unpack_from(response)
        ranges = _RANGE.iter_unpack(response[_HEAD.size : _HEAD.size + count * _RANGE.size])
        found = {key: (lowest, highest) for key, lowest, highest in ranges}
    except struct.error as err:
        raise KafkaError(f"a broker's response to ApiVersions cannot be read: {err}") from err
    if code != 0 or len(found) != count:
        raise KafkaError(f"a broker's response to ApiVersions cannot be used: error {code}")
    return BrokerVersions(broker, found)
