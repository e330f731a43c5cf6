"""Assignment: a rolling restart moves each lane as seldom as it can, of however many workers and lanes."""

from collections import Counter
from itertools import permutations
from math import inf
from random import Random

import pytest

from dedupe.cluster.assignment import NOBODY, Member, assign


class Workers:
    """Workers that do at once what they are assigned."""

    def __init__(self, names: list[str], lanes: int) -> None:
        self.present, self.lanes = list(names), lanes
        self.new, self.leaving = set(names), NOBODY
        self.owners = [NOBODY] * lanes
        self.followed: dict[str, tuple[int, ...]] = {}
        self.moves = [0] * lanes
        self.settle()
        self.new.clear()

    def settle(self) -> None:
        """Assign until nothing changes any more."""
        for _ in range(10):
            told = assign([self.member(name) for name in self.present], self.lanes)
            for lane, (before, owner) in enumerate(zip(self.owners, told.owners, strict=True)):
                if before not in (NOBODY, owner):
                    self.moves[lane] += 1
                    assert lane in self.followed[owner], "it would have to read the whole log"
            self.owners = list(told.owners)
            self.followed = {
                name: self.of(name, *map(told.followers_of, range(self.lanes))) for name in self.present
            }
            if told.is_settled:
                return
        raise AssertionError("it did not settle")

    def of(self, name: str, *names_of: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(lane for lane, names in enumerate(names_of) if name in names)

    def member(self, name: str) -> Member:
        serving = self.of(name, *((owner,) for owner in self.owners))
        is_leaving, is_new = name == self.leaving, name in self.new
        return Member(
            name, f"{name}:1", "", serving, (), self.followed.get(name, ()), True, is_leaving, is_new=is_new
        )

    def replace(self, name: str, by: str) -> None:
        """Have another one join, then one leave."""
        self.present.append(by)
        self.new.add(by)
        self.settle()
        self.leaving = name
        self.settle()
        self.leaving = NOBODY
        self.present.remove(name)
        self.settle()

    def restart(self, name: str) -> None:
        """Have one leave and return."""
        self.leaving = name
        self.settle()
        self.leaving = NOBODY
        self.present.remove(name)
        self.settle()
        self.present.append(name)
        self.new.add(name)
        self.settle()


@pytest.mark.regression(
    "A rolling restart moved partitions to and fro, some to workers that had not followed them."
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lanes", [7, 9, 13, 60, 120])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_rolling_restart_moves_as_few_lanes_as_possible(count: int, lanes: int, seed: int) -> None:
    names = [f"gateway-{number}" for number in range(count)]
    workers = Workers(names, lanes)
    order = [names, names[::-1], Random(seed).sample(names, count)][seed]
    lanes_of_first = workers.owners.count(order[0])
    for name in order:
        before, owners = list(workers.moves), list(workers.owners)
        workers.restart(name)
        if name != order[-1]:
            moved = [after - earlier for after, earlier in zip(workers.moves, before, strict=True)]
            assert moved == [int(owner == name) for owner in owners], "it moves what it must, once"
    workers.new.clear()
    workers.settle()

    shares = Counter(workers.owners)
    assert max(shares.values()) - min(shares.values()) <= 1
    assert sum(workers.moves) <= lanes + lanes_of_first + shares[order[-1]]
    assert max(workers.moves) <= (2 if count < 5 else 3)


@pytest.mark.parametrize("lanes", [7, 9, 60])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_lane_moves_once_where_a_new_worker_joins_before_an_old_one_leaves(
    count: int, lanes: int
) -> None:
    names = [f"old-{number}" for number in range(count)]
    workers = Workers(names, lanes)
    for name in names:
        workers.replace(name, name.replace("old", "new"))
    workers.new.clear()
    workers.settle()

    assert workers.moves == [1] * lanes
    shares = Counter(workers.owners)
    assert max(shares.values()) - min(shares.values()) <= 1


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_no_rule_moves_fewer_lanes_in_a_rolling_restart_or_each_at_most_once(count: int) -> None:
    workers = range(count)
    fewest = [_fewest_moves(count, first) for first in workers]
    ends = list(permutations(workers))  # of one lane each, with the shares even again
    totals = [sum(fewest[first][last] for first, last in enumerate(end)) for end in ends]
    assert min(totals) == count + 2

    assert min(fewest[0]) == 2, "a lane of the first one, even if nobody minds the shares"
    assert [fewest[first][-1] for first in workers[1:]] == [2] * (count - 1), (
        "one that the last one ends with"
    )
    assert {min(fewest[first]) for first in workers[1:]} == {1}


def _fewest_moves(count: int, first: int) -> list[float]:
    """Return how often a lane moves at least that is always at a worker that runs, by its last worker."""
    workers = range(count)

    def after(moves: list[float]) -> list[float]:
        return [min(moves[before] + (before != now) for before in workers) for now in workers]

    moves: list[float] = after([0 if name == first else inf for name in workers])
    for restarted in workers:
        moves[restarted] = inf
        moves = [inf if name == restarted else least for name, least in enumerate(after(moves))]
        moves = after(moves)
    return moves


def test_lanes_are_shared_out_anew_at_once_while_nobody_is_restarted() -> None:
    workers = Workers(["a", "b"], 8)
    workers.present.append("c")
    workers.settle()
    assert Counter(workers.owners).keys() == {"a", "b", "c"}

    workers.present.append("d")
    workers.new.add("d")
    workers.settle()
    assert "d" not in workers.owners
