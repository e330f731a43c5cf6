"""
Who owns which lane of a group of workers, and who follows it. Pure.

The rule is Kafka Streams' (KIP-441): a lane stays where it is served, and moves only to a worker whose
index has followed it; whoever should get it follows it first. Nothing here keeps the promise: a lane with
two owners is fenced by the log, and one without answers "later". So a worker may be wrong about the group
for a moment without harm.

A lane is a number here: the clean partitions from 0 on, then those of quarantine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import orjson

VERSION = 1
"""Of what members tell the group, and the group tells them. Fields that a later one adds are passed over."""

WorkerId: TypeAlias = str
Told = TypeVar("Told")

NOBODY: WorkerId = ""


class Member(NamedTuple):
    """What a worker tells the group of itself whenever it joins."""

    worker: WorkerId  # its own, the same after a restart
    address: str  # host:port at which other workers reach it
    zone: str = ""
    serving: tuple[int, ...] = ()  # lanes it owns and has not given up
    claimed: tuple[int, ...] = ()  # of these, what it took over without a word of the group
    followed: tuple[int, ...] = ()  # lanes whose index it holds nearly up to the log's end
    can_follow: bool = True
    is_leaving: bool = False  # it shall own and follow nothing more
    started_ms: int = 0  # of two with the same name, the later is meant
    generation: int = 0  # the last that it was told
    version: int = VERSION
    unreached: tuple[WorkerId, ...] = ()  # members to which it has no link

    def encoded(self) -> bytes:
        """Return it as one JSON object."""
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Read what `encoded` wrote, here or in a later version. Raises ValueError."""
        member = _decoded(cls, text)
        if member.worker == NOBODY:
            raise ValueError("a worker without a name")
        return member


class Assignment(NamedTuple):
    """What the whole group is told: the same for every member."""

    owners: tuple[WorkerId, ...]  # by lane; NOBODY where there is no worker
    followers: tuple[WorkerId, ...]  # by lane; its standby
    addresses: dict[WorkerId, str]
    is_settled: bool = True  # False: ask for another one once the followers have caught up
    generation: int = 0  # later ones have larger numbers
    version: int = VERSION

    def encoded(self) -> bytes:
        """Return it as one JSON object."""
        return orjson.dumps(self._asdict())

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Read what `encoded` wrote, here or in a later version. Raises ValueError."""
        return _decoded(cls, text)


def assign(members: Sequence[Member], lanes: int, *, standbys: bool = True) -> Assignment:
    """
    Return who shall own and follow each lane; the same for the same members in any order.

    Args:
        members: n >= 1, all of the same log, no worker twice.
        lanes: how many there are.
        standbys: whether lanes are followed at all.
    """
    by_name = {member.worker: member for member in sorted(members)}
    staying = {name: member for name, member in by_name.items() if not member.is_leaving} or by_name
    served_by = _served_by(by_name.values(), lanes)
    staying = _connected(staying, served_by)
    wanted = _balanced(served_by, staying, lanes)
    owners = wanted
    if standbys:  # else nobody would ever have followed what it shall own
        owners = [_owner_now(lane, served_by[lane], wanted[lane], staying) for lane in range(lanes)]
    followers = _followers(owners, wanted, staying) if standbys and len(staying) > 1 else [NOBODY] * lanes
    return Assignment(
        tuple(owners),
        tuple(followers),
        {name: member.address for name, member in by_name.items()},
        is_settled=owners == wanted,
    )


def _served_by(members: Iterable[Member], lanes: int) -> list[WorkerId]:
    """Return who serves each lane now. Of two who believe so the log decides, and who claimed it was last."""
    found = list(members)
    served_by = [NOBODY] * lanes
    claims = [(member.worker, member.claimed) for member in found]
    for name, numbers in [*claims, *((member.worker, member.serving) for member in found)]:
        for lane in numbers:
            if 0 <= lane < lanes and served_by[lane] == NOBODY:
                served_by[lane] = name
    return served_by


def _connected(staying: Mapping[WorkerId, Member], served_by: Sequence[WorkerId]) -> dict[WorkerId, Member]:
    """
    Return workers that all reach each other: without those that miss most, or are missed by most.

    A lane of theirs could not be reached by others, who would take it away and lose it again in turn.
    """
    connected = dict(staying)
    broken = {
        frozenset((name, other))
        for name, member in staying.items()
        for other in member.unreached
        if other in staying and other != name
    }
    while broken:
        missed = Counter(name for pair in broken for name in pair)
        worst = max(missed, key=lambda name: (missed[name], -served_by.count(name), name))
        del connected[worst]
        broken = {pair for pair in broken if worst not in pair}
    return connected


def _balanced(
    served_by: Sequence[WorkerId], staying: Mapping[WorkerId, Member], lanes: int
) -> list[WorkerId]:
    """Return owners whose counts differ by one at most, with as few moves as that takes."""
    owned: dict[WorkerId, list[int]] = {name: [] for name in staying}
    free: list[int] = []
    for lane, name in enumerate(served_by):
        owned.get(name, free).append(lane)
    low, over = divmod(lanes, len(owned))
    # Those who own most keep the larger shares, so that nothing moves without need.
    by_count = sorted(owned, key=lambda name: (-len(owned[name]), name))
    shares = {name: low + (place < over) for place, name in enumerate(by_count)}
    for name, kept in owned.items():
        free += kept[shares[name] :]
        del kept[shares[name] :]
    for lane in sorted(free):
        able = [name for name in owned if len(owned[name]) < shares[name]]
        owned[_fittest(able, lane, staying, owned)].append(lane)
    return [name for _, name in sorted((lane, name) for name, kept in owned.items() for lane in kept)]


def _fittest(
    names: Iterable[WorkerId],
    lane: int,
    staying: Mapping[WorkerId, Member],
    given: Mapping[WorkerId, Sequence[int]],
) -> WorkerId:
    """Return who has followed the lane, else who has least."""
    return min(names, key=lambda name: (lane not in staying[name].followed, len(given[name]), name))


def _owner_now(
    lane: int, served_by: WorkerId, wanted: WorkerId, staying: Mapping[WorkerId, Member]
) -> WorkerId:
    """Return who owns the lane until whoever should has followed it."""
    is_ready = not staying[wanted].can_follow or lane in staying[wanted].followed
    return wanted if is_ready or served_by not in staying else served_by


def _followers(
    owners: Sequence[WorkerId], wanted: Sequence[WorkerId], staying: Mapping[WorkerId, Member]
) -> list[WorkerId]:
    """Return another worker than its owner for each lane: who shall own it next, else by zone and count."""
    given: dict[WorkerId, list[int]] = {name: [] for name, member in staying.items() if member.can_follow}
    followers = []
    for lane, (owner, next_owner) in enumerate(zip(owners, wanted, strict=True)):
        able = [name for name in given if name != owner]
        if next_owner != owner and next_owner in able:
            able = [next_owner]
        if not able:
            followers.append(NOBODY)
            continue
        zone = staying[owner].zone if owner in staying else ""
        others = [name for name in able if staying[name].zone != zone] if zone else []
        name = _fittest_follower(others or able, lane, staying, given)
        given[name].append(lane)
        followers.append(name)
    return followers


def _fittest_follower(
    names: Iterable[WorkerId],
    lane: int,
    staying: Mapping[WorkerId, Member],
    given: Mapping[WorkerId, Sequence[int]],
) -> WorkerId:
    """Return who follows it already if that is fair, else who follows least."""
    names = list(names)
    least = min(len(given[name]) for name in names)
    return min(
        names,
        key=lambda name: (
            lane not in staying[name].followed or len(given[name]) > least + 1,
            len(given[name]),
            name,
        ),
    )


def _decoded(kind: type[Told], text: bytes) -> Told:
    """Read the fields that this version knows."""
    fields = orjson.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    hints = get_type_hints(kind)
    known = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
        if name in hints
    }
    if wrong := [name for name, value in known.items() if not _fits(value, hints[name])]:
        raise ValueError(f"{', '.join(wrong)}: of another type")
    try:
        return kind(**known)
    except TypeError as err:
        raise ValueError(f"{err}") from err


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of the type that a field has."""
    if isinstance(value, tuple):
        return get_origin(hint) is tuple and all(type(each) is get_args(hint)[0] for each in value)
    if isinstance(value, dict):  # its keys are text as in any JSON
        return get_origin(hint) is dict and all(type(each) is get_args(hint)[1] for each in value.values())
    return type(value) is hint
