"""Assignment: even, sticky, the same for everybody; a lane moves only to a worker that has followed it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.cluster.assignment import NOBODY, Assignment, Member, assign, carried_over

LANES = 9


def member(worker: str, **more: object) -> Member:
    return Member(worker, f"{worker}:1", **more)  # type: ignore[arg-type]


def settle(members: list[Member]) -> Assignment:
    """Assign until nothing moves any more, each worker having done what it was told."""
    for _ in range(4):
        told = assign(members, LANES)
        members = [
            found._replace(
                serving=tuple(lane for lane in range(LANES) if told.owners[lane] == found.worker),
                followed=tuple(lane for lane in range(LANES) if found.worker in told.followers_of(lane)),
            )
            for found in members
        ]
        if told.is_settled:
            return told
    raise AssertionError("it did not settle")


def test_one_worker_owns_everything_and_nobody_follows() -> None:
    told = assign([member("a")], LANES)

    assert told == Assignment(("a",) * LANES, (NOBODY,) * LANES, {"a": "a:1"})


def test_a_lane_stays_until_its_next_owner_has_followed_it() -> None:
    alone, new = member("a", serving=tuple(range(LANES))), member("b")

    first = assign([alone, new], LANES)
    assert set(first.owners) == {"a"}
    assert not first.is_settled
    assert Counter(first.followers)["b"] == LANES

    followed = tuple(lane for lane in range(LANES) if first.followers[lane] == "b")
    second = assign([alone, new._replace(followed=followed)], LANES)
    assert sorted(Counter(second.owners).values()) == [4, 5]
    assert second.is_settled
    assert all(owner != follower for owner, follower in zip(second.owners, second.followers, strict=True))


def test_a_worker_that_cannot_follow_takes_lanes_at_once() -> None:
    told = assign([member("a", serving=tuple(range(LANES))), member("b", can_follow=False)], LANES)

    assert sorted(Counter(told.owners).values()) == [4, 5]


def test_lanes_of_a_lost_worker_go_to_who_has_followed_them() -> None:
    told = settle([member("a"), member("b"), member("c")])
    left = [
        member(
            name,
            serving=tuple(lane for lane in range(LANES) if told.owners[lane] == name),
            followed=tuple(lane for lane in range(LANES) if told.followers[lane] == name),
        )
        for name in "ab"
    ]

    after = assign(left, LANES)

    for lane in range(LANES):
        if told.owners[lane] != "c":
            assert after.owners[lane] == told.owners[lane]
        elif Counter(told.followers[lane] for lane in range(LANES) if told.owners[lane] == "c")["a"] < LANES:
            assert after.owners[lane] in "ab"
    assert max(Counter(after.owners).values()) <= 5


def test_a_worker_that_leaves_gives_up_what_others_have_followed() -> None:
    told = settle([member("a"), member("b")])
    leaving = [
        member(
            name,
            serving=tuple(lane for lane in range(LANES) if told.owners[lane] == name),
            followed=tuple(lane for lane in range(LANES) if told.followers[lane] == name),
            is_leaving=name == "a",
        )
        for name in "ab"
    ]

    assert set(assign(leaving, LANES).owners) == {"b"}


@pytest.mark.regression(
    "During an upgrade a worker of an earlier version waited for 20 s for the next owners of its lanes."
)
def test_worker_that_leaves_waits_for_next_owners_only_if_it_says_when_it_stops_waiting() -> None:
    lanes = tuple(range(LANES))
    leaving = member("a", serving=lanes, is_leaving=True)
    others = [member("b", is_new=True), member("c", followed=lanes)]

    assert assign([leaving, *others], LANES).owners.count("a") == LANES // 2 + 1, "c has followed its own"
    for without_waiting in (leaving._replace(version=1), leaving._replace(is_late=True)):
        told = assign([without_waiting, *others], LANES)
        assert set(told.owners) == {"c"}


def test_the_last_worker_may_leave_too() -> None:
    assert set(assign([member("a", is_leaving=True)], LANES).owners) == {"a"}


def test_owner_and_follower_are_in_different_zones_where_there_are() -> None:
    members = [member("a", zone="x"), member("b", zone="x"), member("c", zone="y"), member("d", zone="y")]
    zones = {found.worker: found.zone for found in members}

    told = settle(members)

    for owner, follower in zip(told.owners, told.followers, strict=True):
        assert zones[owner] != zones[follower]


workers = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
lanes = st.lists(st.integers(0, LANES - 1), unique=True, max_size=LANES).map(tuple)


@given(workers, st.data())
def test_any_group_settles_evenly_whatever_members_believe(names: list[str], data: st.DataObject) -> None:
    members = [
        member(
            name,
            serving=data.draw(lanes),
            followed=data.draw(lanes),
            zone=data.draw(st.sampled_from(["", "x", "y"])),
        )
        for name in names
    ]

    told = assign(members, LANES)
    assert told == assign(members[::-1], LANES)
    assert set(told.owners) <= set(names)
    assert all(owner != follower for owner, follower in zip(told.owners, told.followers, strict=True))

    settled = settle(members)
    counts = Counter(settled.owners)
    assert max(counts.values()) - min(counts[name] for name in names) <= 1
    assert (NOBODY in settled.followers) == (len(names) == 1)


@pytest.mark.parametrize("kind", [Member, Assignment])
def test_what_is_told_is_read_by_the_version_before(kind: type[Member] | type[Assignment]) -> None:
    told = member("a", serving=(1, 2)) if kind is Member else assign([member("a")], LANES)

    assert kind.decode(told.encoded()) == told
    assert kind.decode(told.encoded()[:-1] + b',"of_a_later_version":[1]}') == told
    for text in (b"", b"[]", b"{}", b'{"worker":1', told.encoded().replace(b"true", b"1")):
        with pytest.raises(ValueError):  # noqa: PT011
            kind.decode(text)


@pytest.mark.regression(
    "Two workers that did not reach each other claimed each other's partitions again and again."
)
def test_of_two_that_do_not_reach_each_other_only_one_has_lanes() -> None:
    members = [member("a", serving=(0, 1), unreached=("b",)), member("b", serving=(2, 3, 4)), member("c")]
    told = settle(members)

    assert set(told.owners) | set(told.followers) == {"b", "c"}
    assert "a" in told.addresses, "it still finds the others"


def test_whom_all_others_miss_or_who_misses_all_others_is_the_one_that_is_cut_off() -> None:
    missed = [member("a"), member("b", unreached=("a",)), member("c", unreached=("a",))]
    misses = [member("a", serving=(0, 1, 2), unreached=("b", "c")), member("b"), member("c")]
    for members in (missed, misses):
        assert set(settle(members).owners) == {"b", "c"}


@given(st.lists(st.sets(st.sampled_from("abcdef")), min_size=6, max_size=6))
def test_all_that_have_lanes_reach_each_other(unreached: list[set[str]]) -> None:
    members = [
        member(name, unreached=tuple(missed)) for name, missed in zip("abcdef", unreached, strict=True)
    ]
    told = settle(members)

    having = {*told.owners, *told.followers} - {NOBODY}
    assert having
    assert not any(
        other in having and other != found.worker
        for found in members
        if found.worker in having
        for other in found.unreached
    )


@pytest.mark.regression("Without standbys a partition waited for ever for a worker that had followed it.")
def test_without_standbys_lanes_move_at_once() -> None:
    told = assign([member("a", serving=tuple(range(LANES))), member("b")], LANES, standbys=False)

    assert sorted(Counter(told.owners).values()) == [4, 5]
    assert told.is_settled


def test_all_are_told_which_members_do_not_reach_each_other_and_why() -> None:
    members = [
        member("a", unreached=("b", "gone"), why_unreached=("closed", "silent")),
        member("b", unreached=("a", "c"), why_unreached=("its certificate has expired",)),
        member("c"),
    ]
    assert assign(members, LANES).broken == (
        "a -> b: closed",
        "b -> a: its certificate has expired",
        "b -> c: no answer",
    )
    many = [
        member(f"w{n}", unreached=tuple(f"w{m}" for m in range(40)), why_unreached=("x" * 10_000,) * 40)
        for n in range(40)
    ]
    assert len("".join(assign(many, LANES).broken)) < 5_000


@pytest.mark.regression(
    "A worker that had given lanes up took another one, which it did not reach, out with it."
)
def test_who_gets_no_lanes_costs_nobody_whom_it_does_not_reach_his_own() -> None:
    slow = member("a", serving=(0, 1, 2), given_up=(0, 1, 2), unreached=("b",))
    others = [member("b", serving=(3, 4), followed=(0, 1)), member("c", serving=(5, 6), followed=(2,))]
    assert assign([slow, *others], 7).owners == ("b", "b", "c", "b", "b", "c", "c")


def test_lanes_of_a_plan_are_assigned_to_who_had_those_of_before() -> None:
    before = Assignment(("a", "b", "c"), ("b", "c", "a"), {}, next_owners=("", "", "b"), generation=7)

    after = carried_over(before, [0, 1, 0, 1, None, 2])

    assert after.owners == ("a", "b", "a", "b", NOBODY, "c")
    assert after.followers == ("b", "c", "b", "c", NOBODY, "a")
    assert after.next_owners == ("", "", "", "", NOBODY, "b")
    assert after.generation == 7


def test_no_lane_moves_while_those_of_a_plan_have_just_been_carried_over() -> None:
    rest = tuple(range(7))
    uneven = [member("a", serving=rest, has_carried_over=True), member("b", serving=(7, 8), followed=rest)]

    at_rest = assign(uneven, LANES)
    later = assign([each._replace(has_carried_over=False) for each in uneven], LANES)

    assert at_rest.owners == ("a",) * 7 + ("b",) * 2
    assert sorted(Counter(later.owners).values()) == [4, 5]
