"""A broker with ACLs, and how somebody is given a right on a group."""

from aiokafka.protocol.admin import CreateAclsRequest_v1

from dedupe.storage.kafka.log import KafkaStore

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# Numbers of Kafka's protocol.
GROUP, LITERAL, READ, DESCRIBE, ALLOW = 3, 3, 3, 8, 3


async def allow(store: KafkaStore, group: str, user: str, operation: int) -> None:
    """Allow one user something on a group, and thereby nobody anything else."""
    request = CreateAclsRequest_v1([(GROUP, group, LITERAL, user, "*", operation, ALLOW)])
    answer = await store.cluster.send_to_any(request)
    assert answer.to_object()["creation_responses"][0]["error_code"] == 0
