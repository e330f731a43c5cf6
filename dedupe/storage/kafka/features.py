"""
The features that a cluster has turned on, as ApiVersions tells them from version 4 on.

Eligible leader replicas (KIP-966) are the one that matters here: without them a replica that was the last one
in sync, and has lost what was not on its disk yet, leads again, and acknowledged events are lost.
"""

from io import BytesIO

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from dedupe.model.errors import ConfigurationError
from dedupe.storage.kafka.cluster import KafkaCluster
from dedupe.storage.kafka.versions import API_VERSIONS

ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
SUPPORTED, FINALIZED = 0, 2
"""Tags of the response."""

_FEATURES = CompactArray(
    ("name", CompactString("utf-8")), ("first", Int16), ("second", Int16), ("tags", TaggedFields)
)
"""Of supported ones lowest and highest version, of finalized ones highest and lowest."""


class ApiVersionsResponse(Response):
    """Version 4."""

    API_KEY, API_VERSION = API_VERSIONS, 4
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "api_versions",
            CompactArray(("key", Int16), ("min", Int16), ("max", Int16), ("tags", TaggedFields)),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class ApiVersionsRequest(RequestStruct):
    """Version 4; aiokafka's own end with 2, and 3 conceals features that begin with 0."""

    API_KEY, API_VERSION = API_VERSIONS, 4
    RESPONSE_TYPE = ApiVersionsResponse
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("client_software_name", CompactString("utf-8")),
        ("client_software_version", CompactString("utf-8")),
        ("tags", TaggedFields),
    )


async def missing_features(cluster: KafkaCluster) -> list[str]:
    """
    Return a sentence of advice for each feature that the brokers have and the cluster has not turned on.

    For brokers that tell of none, as those before Kafka 4.0, there is no advice.

    Raises:
        RetriableError: no answer.
    """
    try:
        response = await cluster.send_to_any(ApiVersionsRequest("gateway", "1", {}))
    except ConfigurationError:  # a broker of an earlier version
        return []
    supported = {name: highest for name, _, highest in _features(response.tags.get(SUPPORTED))}
    finalized = {name: highest for name, highest, _ in _features(response.tags.get(FINALIZED))}
    if supported.get(ELIGIBLE_LEADER_REPLICAS, 0) < 1 or finalized.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1:
        return []
    return [
        "acknowledged events are lost where the last replica in sync loses power alone, unless the cluster "
        f"has eligible leader replicas: kafka-features.sh upgrade --feature {ELIGIBLE_LEADER_REPLICAS}=1"
    ]


def _features(tagged: bytes | None) -> list[tuple[str, int, int]]:
    """Return name and versions of each feature of a tagged field."""
    found = (tagged and _FEATURES.decode(BytesIO(tagged))) or []
    return [(name, first, second) for name, first, second, _ in found]
