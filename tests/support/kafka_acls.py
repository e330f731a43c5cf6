"""A broker with ACLs, and how somebody is given a right on a group or a topic."""

from aiokafka.protocol.admin import CreateAclsRequest_v1

from dedupe.storage.kafka.store import KafkaStore

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# Numbers of Kafka's protocol.
TOPIC, GROUP, LITERAL, READ, DESCRIBE, ALLOW = 2, 3, 3, 3, 8, 3


async def allow(store: KafkaStore, group: str, user: str, operation: int) -> None:
    """Allow one user something on a group, and thereby nobody anything else."""
    await _allow(store, GROUP, group, user, operation)


async def allow_on_topic(store: KafkaStore, topic: str, user: str, operation: int) -> None:
    """Allow one user something on a topic, and thereby nobody anything else."""
    await _allow(store, TOPIC, topic, user, operation)


async def _allow(store: KafkaStore, kind: int, name: str, user: str, operation: int) -> None:
    request = CreateAclsRequest_v1([(kind, name, LITERAL, user, "*", operation, ALLOW)])
    answer = await store.cluster.send_to_any(request)
    assert answer.to_object()["creation_responses"][0]["error_code"] == 0
