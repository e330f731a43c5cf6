"""
Claim: inputs are shared out evenly, with few moves, to those alone that can read them; older workers see
nothing of it.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from dedupe.cluster.assignment import Assignment, Member, assign
from dedupe.cluster.input_places import PLACES_MAX, Reader, share_out


def reader(count: int, *read: str) -> Reader:
    return Reader({"raw": count}, read)


@given(st.integers(1, 5), st.integers(0, 30), st.data())
def test_shares_are_even_and_only_what_must_moves(workers: int, count: int, data: st.DataObject) -> None:
    names = [f"w{number}" for number in range(workers)]
    before = {f"raw/{number}": data.draw(st.sampled_from(names)) for number in range(count)}
    readers = {name: reader(count, *(at for at, by in before.items() if by == name)) for name in names}
    shares = share_out(readers, set())
    assert set(shares) == set(before)
    owned = [list(shares.values()).count(name) for name in names]
    assert max(owned) - min(owned) <= 1
    moved = sum(shares[at] != before[at] for at in before)
    share = sorted(owned, reverse=True)
    held = sorted((list(before.values()).count(name) for name in names), reverse=True)
    assert moved == sum(max(0, has - gets) for has, gets in zip(held, share, strict=True))
    read = {name: reader(count, *(at for at, by in shares.items() if by == name)) for name in names}
    assert share_out(read, set()) == shares


def test_worker_that_leaves_or_cannot_read_gets_nothing() -> None:
    readers = {"a": reader(4), "b": Reader({}, ()), "c": Reader({"raw": 2}, ("raw/3",))}
    shares = share_out(readers, set())
    assert set(shares) == {f"raw/{number}" for number in range(4)}
    assert shares["raw/2"] == shares["raw/3"] == "a"
    assert shares["raw/1"] == "c"


def test_stopped_input_is_read_by_nobody_and_nonsense_is_bounded() -> None:
    assert share_out({"a": Reader({"raw": 3, "other": 1}, ())}, {"raw"}) == {"other/0": "a"}
    assert len(share_out({"a": Reader({"raw": 10**12, "z": 10**12, "n": -1}, ())}, set())) == PLACES_MAX


def test_members_of_versions_before_read_nothing_and_are_told_nothing_new() -> None:
    """Their descriptions have no inputs, and what there are in an assignment they ignore."""
    old, new = Member("old", "old:1"), Member("new", "new:1", inputs={"raw": 2}, inputs_read=("raw/1",))
    assert b"inputs" not in old.encoded()
    assert b"inputs" not in assign([old], 3).encoded()
    told = assign([old, Member.decode(new.encoded())], 3)
    assert told.inputs == {"raw/0": "new", "raw/1": "new"}
    assert Assignment.decode(told.encoded()) == told
    known = {name: value for name, value in json.loads(told.encoded()).items() if name != "inputs"}
    assert Assignment.decode(json.dumps(known).encode()) == told._replace(inputs={})


def test_worker_that_leaves_hands_its_partitions_on() -> None:
    leaving = Member("a", "a:1", is_leaving=True, inputs={"raw": 2}, inputs_read=("raw/0", "raw/1"))
    assert set(assign([leaving, Member("b", "b:1", inputs={"raw": 2})], 3).inputs.values()) == {"b"}
