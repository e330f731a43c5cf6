"""How a group's leader shares out the partitions of inputs. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

PLACES_MAX = 10_000
"""Partitions of all inputs that are shared out: an assignment names each, in about 30 bytes."""

Place: TypeAlias = str
"""A partition of an input: `name/number`."""


class Reader(NamedTuple):
    """What a worker says of inputs."""

    partitions: Mapping[str, int]
    """How many partitions each input has that it can read."""
    read: Collection[Place]
    """What it reads already."""


def place_of(name: str, partition: int) -> Place:
    """Return how a partition of an input is named."""
    return f"{name}/{partition}"


def share_out(readers: Mapping[str, Reader], stopped: Collection[str]) -> dict[Place, str]:
    """
    Return who reads each partition: all read about as many, and as few as possible move.

    Args:
        readers: by worker, those alone that are to read.
        stopped: inputs that nobody is to read.
    """
    able = _able(readers, stopped)
    if not able:
        return {}
    names = sorted({name for candidates in able.values() for name in candidates})
    low, over = divmod(len(able), len(names))
    counts = {name: sum(place in able for place in readers[name].read) for name in names}
    names.sort(key=lambda name: (-counts[name], name))
    room = {name: low + (number < over) for number, name in enumerate(names)}
    shares: dict[Place, str] = {}
    for place, candidates in able.items():
        kept = next((name for name in candidates if place in readers[name].read and room[name] > 0), None)
        if kept is not None:
            shares[place] = kept
            room[kept] -= 1
    for place, candidates in able.items():
        if place not in shares:
            shares[place] = name = max(candidates, key=lambda name: room[name])
            room[name] -= 1
    return shares


def _able(readers: Mapping[str, Reader], stopped: Collection[str]) -> dict[Place, list[str]]:
    """Return who can read each partition, in their order; no more than PLACES_MAX of what was said."""
    able: dict[Place, list[str]] = {}
    for place, name in _offered(readers, stopped):
        if place in able or len(able) < PLACES_MAX:
            able.setdefault(place, []).append(name)
    return able


def _offered(readers: Mapping[str, Reader], stopped: Collection[str]) -> Iterable[tuple[Place, str]]:
    for name in sorted(readers):
        for of, count in sorted(readers[name].partitions.items()):
            if of not in stopped:
                for number in range(min(count, PLACES_MAX)):
                    yield place_of(of, number), name
