"""Claim: each rule names the setting and its value; a setting that is not shown is never taken for good."""

import pytest

from dedupe.storage.kafka.setting_rules import (
    Demands,
    notes_on_broker,
    problems_of,
    tiered_problem,
    transaction_rules,
)
from dedupe.storage.setting_problems import Level

DEMANDS = Demands(retention_ms=8 * 86_400_000, batch_bytes_max=900 * 1024, transaction_timeout_ms=30_000)
GOOD = {
    "producer.id.expiration.ms": "86400000",
    "transactional.id.expiration.ms": "604800000",
    "connections.max.idle.ms": "600000",
    "socket.request.max.bytes": "104857600",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "transaction.max.timeout.ms": "900000",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group.min.session.timeout.ms", "6001"),
        ("group.max.session.timeout.ms", "5999"),
        ("socket.request.max.bytes", "900000"),
        ("listener.name.external.connections.max.idle.ms", "-1"),
    ],
)
def test_wrong_setting_of_a_broker_is_named(setting: str, value: str) -> None:
    assert problems_of("broker 1", "", GOOD, DEMANDS.broker_rules()) == []
    (problem,) = problems_of("broker 1", "", GOOD | {setting: value}, DEMANDS.broker_rules())
    assert problem.is_wrong
    assert problem.topic == ""
    assert problem.text.startswith(f"broker 1: {setting} is {value}, must be ")


def test_settings_that_are_not_shown_are_named_and_no_reason_to_refuse() -> None:
    rules = DEMANDS.topic_rules()
    (problem,) = problems_of("topic t", "t", {}, rules)
    assert problem.level is Level.NOT_SHOWN
    assert not problem.is_wrong
    assert all(name in problem.text for name in rules)
    hidden: dict[str, str | None] = {**GOOD, "connections.max.idle.ms": None}
    (problem,) = problems_of("broker 1", "", hidden, DEMANDS.broker_rules())
    assert problem.setting == "connections.max.idle.ms"


def test_unclean_election_of_the_owners_topic_is_unsafe() -> None:
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "2"}
    (problem,) = problems_of("topic x", "x", configs, transaction_rules())
    assert (problem.level, problem.setting) == (Level.UNSAFE, "unclean.leader.election.enable")


@pytest.mark.parametrize(
    ("waits", "value", "count"), [(False, "true", 1), (True, "true", 0), (False, "false", 0)]
)
def test_tiered_topic_is_warned_of_where_reads_are_cut_off(*, waits: bool, value: str, count: int) -> None:
    found = tiered_problem("t", {"remote.storage.enable": value}, brokers_wait=waits)
    assert [problem.level for problem in found] == [Level.WARNING] * count


def test_logins_that_end_are_told() -> None:
    assert notes_on_broker("broker 1", {"connections.max.reauth.ms": "0"}) == []
    (note,) = notes_on_broker("broker 1", {"listener.name.sasl.connections.max.reauth.ms": "4000"})
    assert (note.level, note.is_wrong) == (Level.INFO, False)
