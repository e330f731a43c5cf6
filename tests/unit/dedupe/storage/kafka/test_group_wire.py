"""Claim: a leader decides for all whatever members say, and no member takes nonsense for a decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.cluster.assignment import NOBODY, Assignment, Member
from dedupe.storage.kafka.group_wire import (
    GENERATION_MAX,
    TEXT_BYTES_MAX,
    Decision,
    Joined,
    decide,
    packed,
    read_share,
    unpacked,
)

LANES = 4
KAFKA_GENERATION = 7


def told(name: str, **more: object) -> bytes:
    return packed(Member(name, f"{name}:1")._replace(**more).encoded())  # type: ignore[arg-type]


def decided(*words: bytes | None) -> Decision:
    """Decide for members named 0, 1, ..., the first being the leader."""
    members = [(str(number), text) for number, text in enumerate(words)]
    return decide(Joined(0, KAFKA_GENERATION, "0", "0", members), LANES, standbys=True)


def shares_of(decision: Decision) -> list[Assignment]:
    return [read_share(share, LANES) for _, share in decision.shares]


def test_all_are_told_the_same() -> None:
    first, second = shares_of(decided(told("a"), told("b")))

    assert first == second
    assert set(first.owners) == {"a", "b"}
    assert first.addresses == {"a": "a:1", "b": "b:1"}
    assert first.generation == KAFKA_GENERATION


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        b"",
        b"garbage",
        packed(b"garbage"),
        packed(b"[" * 2000),
        packed(b" " * TEXT_BYTES_MAX + b"{}"),
        told("b")[:-1],
        told("b", worker=5),
        told("b", worker=NOBODY),
        told("b", serving=(0, "1")),
        told("b", serving=(0, True)),
        told("b", followed=7),
        told("b", address=None),
        told("b", started_ms="now"),
        told("b", generation=-1),
        told("b", generation=2**64 - 1),
    ],
)
def test_member_that_cannot_be_read_is_left_out_and_told_all_the_same(garbage: bytes | None) -> None:
    decision = decided(told("a"), garbage)

    assert decision.unreadable == 1
    first, second = shares_of(decision)
    assert first == second
    assert set(first.owners) == {"a"}


def test_lanes_that_there_are_not_are_nobodys() -> None:
    (share,) = shares_of(decided(told("a", serving=(-1, -(10**9), LANES, 2**63), followed=(-1, 2**63))))

    assert share.owners == ("a",) * LANES


def test_of_two_with_one_name_the_later_start_is_meant_and_the_earlier_sees_itself_nowhere() -> None:
    decision = decided(told("a", started_ms=2, serving=(0,)), told("a", started_ms=1), told("b"))

    meant, outdated, other = shares_of(decision)
    assert decision.outdated == ["a"]
    assert meant == other
    assert set(meant.owners) == set(meant.followers) == {"a", "b"}
    assert set(outdated.owners) == set(outdated.followers) == {"b", NOBODY}
    assert outdated.addresses == {"b": "b:1"}
    assert outdated.generation == meant.generation


def test_earlier_one_of_a_name_reads_no_inputs() -> None:
    later, earlier = told("a", started_ms=2, inputs={"raw": 2}), told("a", started_ms=1, inputs={"raw": 2})
    meant, outdated = shares_of(decided(later, earlier))
    assert meant.inputs == {"raw/0": "a", "raw/1": "a"}
    assert outdated.inputs == {}


def test_generation_is_larger_than_any_that_a_member_knows() -> None:
    (first, _) = shares_of(decided(told("a", generation=40), told("b", generation=3)))
    assert first.generation == 41

    (alone,) = shares_of(decided(told("a", generation=KAFKA_GENERATION - 1)))
    assert alone.generation == KAFKA_GENERATION


def test_nobody_who_can_be_read_is_nothing_to_decide() -> None:
    assert decided(b"garbage") == Decision([], 1, [])


@given(st.lists(st.one_of(st.none(), st.binary(), st.binary().map(packed)), max_size=4))
def test_whatever_strangers_say_the_leader_decides(words: list[bytes | None]) -> None:
    decision = decided(told("a"), *words)

    assert decision.unreadable == len(words)
    assert all(set(share.owners) == {"a"} for share in shares_of(decision))


@given(st.one_of(st.none(), st.binary(), st.binary().map(packed)))
def test_nonsense_is_no_decision(share: bytes | None) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is said
        read_share(share, LANES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"owners": ("a",) * (LANES - 1)},
        {"followers": ("a",) * (LANES + 1)},
        {"owners": (1,) * LANES},
        {"addresses": {"a": 1}},
        {"addresses": []},
        {"is_settled": 1},
        {"inputs": {"raw/0": 1}},
        {"inputs": ["raw/0"]},
        {"generation": 0},
        {"generation": GENERATION_MAX + 1},
        {"generation": 1.5},
        {"plan": "1"},
    ],
)
def test_decision_about_something_else_is_none(wrong: dict[str, object]) -> None:
    good = Assignment(("a",) * LANES, (NOBODY,) * LANES, {"a": "a:1"}, generation=1)
    assert read_share(packed(good.encoded()), LANES) == good

    with pytest.raises(ValueError):  # noqa: PT011 - the type of one field, or a count
        read_share(packed(good._replace(**wrong).encoded()), LANES)  # type: ignore[arg-type]


def test_what_is_told_is_short_and_read_in_bounds() -> None:
    names = [f"gateway-{number}.workers.production.svc" for number in range(50)]
    lanes = 1024
    told = Assignment(
        tuple(names[lane * 7 % 50] for lane in range(lanes)), (NOBODY,) * lanes, {}, generation=1
    ).encoded()

    assert 50 * len(packed(told)) < 512 * 1024  # of the record that the coordinator keeps for the group
    assert unpacked(packed(told)) == told
    with pytest.raises(ValueError, match="too long"):
        unpacked(packed(bytes(TEXT_BYTES_MAX + 1)))


def test_lanes_of_a_plan_are_shared_out_among_those_who_know_it() -> None:
    late = told("a", serving=(0, 1, 2, 3), lanes=LANES)
    decision = decided(late, *(told(name, plan=1, lanes=2 * LANES) for name in "bc"))

    assignments = [read_share(share, 2 * LANES) for _, share in decision.shares]
    assert {*assignments[1].owners} == {"b", "c"}
    assert len({*map(repr, assignments)}) == 1
    with pytest.raises(ValueError, match="about 8 lanes by plan 1, not about 4 lanes"):
        read_share(decision.shares[0][1], LANES)
