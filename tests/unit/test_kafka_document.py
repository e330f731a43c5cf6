"""
Claim: docs/kafka.md has the same rights in each language, which are those that a broker of the tests gives
(tests/integration/test_kafka_rights.py), and topics and brokers that the gateway accepts.
"""

import json
import re
import shlex
from typing import TypeAlias

import pytest
import yaml

from app.settings.model import Settings
from app.settings.section import load
from dedupe.storage.kafka.rights import NEEDED_OF_TOPICS
from dedupe.storage.kafka.setting_rules import Demands
from tests.support.documents import ROOT, blocks_of
from tests.support.kafka_tools import lines_of

PAGE = ROOT / "docs" / "kafka.md"
REPLICAS = 3

Right: TypeAlias = tuple[str, str, str, str]
"""Kind and name of a resource, whether the name is literal or a prefix, and the operation."""

OPTIONS = {
    "--topic": "topic",
    "--transactional-id": "transactionalid",
    "--group": "group",
    "--cluster": "cluster",
}
IAM = {
    "Connect": None,
    "WriteDataIdempotently": None,
    "DescribeGroup": None,
    "DescribeClusterDynamicConfiguration": "describeconfigs",
    "ReadData": "read",
    "WriteData": "write",
    "DescribeTopic": "describe",
    "DescribeTopicDynamicConfiguration": "describeconfigs",
    "AlterTransactionalId": "write",
    "DescribeTransactionalId": "describe",
    "AlterGroup": "read",
}
"""The operations of ACLs that the actions stand for; None: other actions require it, or IAM alone asks."""


@pytest.fixture
def demands(monkeypatch: pytest.MonkeyPatch) -> Demands:
    """Those of the default settings."""
    monkeypatch.setenv("GATEWAY_MODE", "development")
    settings = load(Settings)
    return Demands(
        retention_ms=round(settings.index.retention * 1000),
        batch_bytes_max=settings.limits.batch_bytes_max,
        transaction_timeout_ms=30_000,
    )


def of_acls() -> set[Right]:
    rights: set[Right] = set()
    for line in lines_of(blocks_of(PAGE, "sh", "Rights")[0]):
        words = shlex.split(line)
        pairs = [*zip(words, [*words[1:], ""], strict=True)]
        operations = [value.lower() for option, value in pairs if option == "--operation"]
        pattern = "prefix" if "prefixed" in words else "literal"
        rights |= {
            (OPTIONS[option], "" if option == "--cluster" else value, pattern, operation)
            for option, value in pairs
            if option in OPTIONS
            for operation in operations
        }
    return rights


def strimzi() -> list[dict[str, object]]:
    return [*yaml.safe_load_all(blocks_of(PAGE, "yaml", "Strimzi")[0])]


def test_rights_are_those_that_the_gateway_checks() -> None:
    of_topic = {operation for kind, name, _, operation in of_acls() if (kind, name) == ("topic", "events")}
    assert of_topic == {operation.lower() for operation in NEEDED_OF_TOPICS}


def test_user_of_strimzi_has_the_rights() -> None:
    (user,) = (each for each in strimzi() if each["kind"] == "KafkaUser")
    acls = user["spec"]["authorization"]["acls"]  # type: ignore[index]
    assert {
        (
            acl["resource"]["type"].lower(),
            acl["resource"].get("name", ""),
            acl["resource"].get("patternType", "literal"),
            operation.lower(),
        )
        for acl in acls
        for operation in acl["operations"]
    } == of_acls()


def test_terraform_gives_the_rights() -> None:
    (text,) = blocks_of(PAGE, "terraform", "Confluent Cloud")
    found = re.findall(r'\["([A-Z_]+)", "([a-z.-]+)", "([A-Z]+)", \[([A-Z_", ]+)\]\]', text)
    assert {
        (
            kind.lower().replace("_", ""),
            "" if kind == "CLUSTER" else name,
            pattern.lower().removesuffix("ed"),
            operation.lower().replace("_", ""),
        )
        for kind, name, pattern, operations in found
        for operation in re.findall(r"[A-Z_]+", operations)
    } == of_acls()


def test_policy_of_iam_gives_the_rights() -> None:
    (text,) = blocks_of(PAGE, "json", "Amazon MSK")
    rights: set[Right] = set()
    for statement in json.loads(text)["Statement"]:
        resources = statement["Resource"]
        for resource in [resources] if isinstance(resources, str) else resources:
            kind, _, _, *names = resource.rpartition(":")[2].split("/")
            name = "".join(names)
            pattern = "prefix" if name.endswith("*") else "literal"
            operations = [IAM[action.removeprefix("kafka-cluster:")] for action in statement["Action"]]
            rights |= {
                (kind.replace("-", ""), name.removesuffix("*"), pattern, operation)
                for operation in operations
                if operation is not None
            }
    assert rights == of_acls()


def test_topics_of_strimzi_are_those_that_the_gateway_creates(demands: Demands) -> None:
    topics = {each["metadata"]["name"]: each["spec"] for each in strimzi() if each["kind"] == "KafkaTopic"}  # type: ignore[index]
    assert topics == {
        "events": {"partitions": 8, "replicas": REPLICAS, "config": demands.configs(REPLICAS)},
        "events.quarantine": {"partitions": 1, "replicas": REPLICAS, "config": demands.configs(REPLICAS)},
        "events.routing": {
            "partitions": 9,
            "replicas": REPLICAS,
            "config": demands.configs(REPLICAS, keeps_all=True),
        },
    }


def test_topics_of_terraform_are_those_that_the_gateway_creates(demands: Demands) -> None:
    (text,) = blocks_of(PAGE, "terraform", "Confluent Cloud")
    created = demands.configs(REPLICAS)
    del created["unclean.leader.election.enable"]  # nobody may set it there
    assert dict(re.findall(r'^ +"([a-z.]+)" += .*"([\w-]+)"$', text, re.MULTILINE)) == created
    assert 'each.key == "events.routing" ? "-1" : ' in text


def test_topics_made_by_hand_for_old_brokers_are_good(demands: Demands) -> None:
    (line,) = lines_of(blocks_of(PAGE, "sh", "Brokers before 3.6")[0])
    made = dict(re.findall(r"--config ([a-z.]+)=(\S+)", line))
    made["max.message.bytes"] = made.pop("max.message.bytes", "1048588")
    made["segment.bytes"] = made.pop("segment.bytes", "1073741824")
    for name, (is_good, _) in demands.topic_rules().items():
        known = "message.timestamp.difference.max.ms" if name.startswith("message.timestamp.") else name
        value = made[name] if name in made else made[known]
        assert is_good(value), name


def test_brokers_are_good(demands: Demands) -> None:
    (text,) = blocks_of(PAGE, "properties")
    properties = dict(line.split("=") for line in text.split())
    assert properties.keys() == demands.broker_rules().keys()
    assert all(is_good(properties[name]) for name, (is_good, _) in demands.broker_rules().items())
