"""
Claim: with the topics of docs/operations.md and the rights of docs/kafka.md, and no other, a gateway takes
events; without them `gateway topics check` names each.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.documents import ROOT, blocks_of
from tests.support.gateway import Gateway
from tests.support.http import AUTH, cli, new_event, post
from tests.support.kafka import KafkaBroker
from tests.support.kafka_tools import lines_of, run_tool
from tests.support.processes import HOST, free_port

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COMMANDS = [
    line
    for page, part in (("operations.md", "Kafka"), ("kafka.md", "Rights"))
    for block in blocks_of(ROOT / "docs" / page, "sh", part)
    for line in lines_of(block)
]
PASSWORD = "a-password"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, int]]:
    """A broker with ACLs: whoever does not log in may do everything, whoever does what is allowed."""
    port = free_port()
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.security.protocol.map": ",".join(
            ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "SASL_PLAINTEXT:SASL_PLAINTEXT")
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_gateway="{PASSWORD}";',
    }
    folder = tmp_path_factory.mktemp("kafka-rights")
    with KafkaBroker(folder, properties=properties, listeners={"SASL_PLAINTEXT": port}) as running:
        yield running, port


def gateway_of(folder: Path, servers: str, **more: str) -> Gateway:
    return Gateway(
        folder,
        {
            "GATEWAY_LOG": "kafka",
            "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
            "GATEWAY_PARTITIONS": "2",
            **more,
        },
    )


def not_of_kafkas_own(text: bytes) -> list[bytes]:
    """Leave out the lines about topics that Kafka creates at their first use."""
    return [line for line in text.splitlines() if not line.startswith((b"topic __", b"not shown: topic __"))]


def test_topics_and_rights_of_the_document_are_enough(
    broker: tuple[KafkaBroker, int], tmp_path: Path
) -> None:
    running, port = broker
    administrator = gateway_of(tmp_path / "administrator", running.bootstrap_servers)
    gateway = gateway_of(
        tmp_path / "gateway",
        f"{HOST}:{port}",
        GATEWAY_KAFKA_SECURITY_PROTOCOL="SASL_PLAINTEXT",
        GATEWAY_KAFKA_SASL_USERNAME="gateway",
        GATEWAY_KAFKA_SASL_PASSWORD=PASSWORD,
    )

    create = next(line for line in COMMANDS if line.startswith("gateway topics create"))
    created = cli(administrator, *create.replace("--replicas 3", "--replicas 1").split()[1:])
    assert b"topic events created, 2 partitions" in created.stderr
    assert all(b"must be at least" in line for line in created.stdout.splitlines())  # a single broker

    refused = cli(gateway, "topics", "check")
    missing = set(
        re.findall(r"^(\S+(?: id)? \S+): Kafka does not allow (\w+)", refused.stdout.decode(), re.M)
    )
    rights = {(f"topic {topic}", name) for topic in (*TOPICS, ROUTING) for name in TOPIC_RIGHTS}
    rights |= {(f"transactional id gateway-{topic}-0", "Describe") for topic in TOPICS}
    rights |= {(f"group gateway-{topic}-pin", "Read") for topic in TOPICS}
    assert (refused.returncode, missing) == (2, rights)

    for line in COMMANDS:
        if line.startswith("kafka-acls.sh"):
            run_tool(line, running.bootstrap_servers)
    checked = cli(gateway, "topics", "check")
    assert not_of_kafkas_own(checked.stdout) == not_of_kafkas_own(created.stdout)
    hidden = [line for line in checked.stdout.splitlines() if line.startswith(b"not shown")]
    assert all(b": topic __" in line for line in hidden)
    assert (checked.returncode, b"transaction.state.log.min.isr" in checked.stdout) == (2, True)
    with gateway, httpx.Client(base_url=gateway.url, auth=AUTH) as client:
        events = [new_event() for _ in range(20)]
        assert post(client, "/v1/batch", {"batch": [*events, 5]}).status_code == 200
        done = cli(gateway, "events")
        assert done.returncode == 0, done.stderr.decode()
        assert len(done.stdout.splitlines()) == len(events)

        for line in COMMANDS:
            if line.startswith("kafka-transactions.sh"):
                shown = run_tool(line, running.bootstrap_servers)
                assert ("gateway-events-0" in shown) == line.endswith(" list")
    assert [line for line in COMMANDS if not line.startswith(("kafka-acls.sh", "kafka-transactions.sh"))] == [
        "gateway topics create --replicas 3",
        "gateway topics check",
    ]


TOPICS, ROUTING = ("events", "events.quarantine"), "events.routing"
TOPIC_RIGHTS = ("Read", "Write", "Describe", "DescribeConfigs")
