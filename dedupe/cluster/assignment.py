"""
Assignment: which worker of a group owns each lane, and which one follows it. Pure.

The rule is that of Kafka Streams (KIP-441): a lane stays where it is served, and moves only to a worker whose
index has followed it; its next owner follows it first, beside its standby. While workers are restarted one
after the other, only the lanes of the one that leaves move, to those that have returned (ADR 0033).
Exactly-once storage does not depend on it: the log fences one of two owners, and requests for a lane without
owner are answered as retriable.

A lane is a number here: the clean partitions from 0 on, then those of quarantine.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import orjson

from dedupe.cluster.input_places import Place, Reader, share_out

VERSION = 2
"""The version of encoded members and assignments. Fields of later versions are ignored."""

LATE_VERSION = 2
"""The first one of members that say when they wait for the next owners of their lanes no longer."""

WorkerId: TypeAlias = str
Decoded = TypeVar("Decoded")

BROKEN_MAX, BROKEN_CHARS_MAX = 32, 120
"""What of broken links is told to all members: the coordinator stores it once for each."""

NOBODY: WorkerId = ""
"""The owner or follower of a lane that has none."""


class Member(NamedTuple):
    """A worker's description for the group."""

    worker: WorkerId  # its name, the same after a restart
    address: str  # host:port at which other workers reach it
    zone: str = ""
    serving: tuple[int, ...] = ()  # lanes it owns and has not released
    claimed: tuple[int, ...] = ()  # of these, those claimed without an assignment
    followed: tuple[int, ...] = ()  # lanes whose index it has near the log's end
    can_follow: bool = True
    is_leaving: bool = False  # it must own and follow no lanes
    started_ms: int = 0  # of two workers with one name, the later one counts
    generation: int = 0  # of its last assignment
    version: int = VERSION
    unreached: tuple[WorkerId, ...] = ()  # members to which it has no link
    given_up: tuple[int, ...] = ()  # lanes whose leader does not answer it; it must own and follow none
    why_unreached: tuple[str, ...] = ()  # of each of `unreached`, as far as it is known
    is_new: bool = False  # it has joined lately, maybe as one of several that are restarted in turn
    is_late: bool = False  # it leaves, and does not wait for the next owners of its lanes any longer
    inputs: Mapping[str, int] = {}  # those that it can read, with the number of their partitions
    inputs_read: tuple[Place, ...] = ()
    inputs_stopped: tuple[str, ...] = ()  # those that no worker is to read
    plan: int = 0  # by which it spreads events, and numbers its lanes
    lanes: int = 0  # their number; 0 from a worker of an earlier version
    has_carried_over: bool = False  # a plan was carried out lately, so its lanes were carried over

    @property
    def is_waiting(self) -> bool:
        """Whether it leaves, and serves its lanes until their next owners have followed them."""
        return self.is_leaving and not self.is_late and self.version >= LATE_VERSION

    def encoded(self) -> bytes:
        """Encode it as one JSON object; inputs only if there are any."""
        return _encoded(self)

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Decode a member of this or a later version. Raises ValueError."""
        member = _decoded(cls, text)
        if member.worker == NOBODY:
            raise ValueError("a worker without a name")
        return member


class Assignment(NamedTuple):
    """The assignment of all lanes, the same for every member."""

    owners: tuple[WorkerId, ...]  # by lane; NOBODY if no worker is left
    followers: tuple[WorkerId, ...]  # by lane: its standby
    addresses: dict[WorkerId, str]
    is_settled: bool = True  # False: members rejoin once their followers have caught up
    generation: int = 0  # later ones have larger numbers
    version: int = VERSION
    broken: tuple[str, ...] = ()  # "a -> b: why" of members of which a does not reach b
    next_owners: tuple[WorkerId, ...] = ()  # by lane: who follows it too, to own it then; empty if nobody
    inputs: Mapping[Place, WorkerId] = {}  # who reads a partition of an input; nobody those that are missing
    plan: int = 0  # by which its lanes are numbered; also 0 from a leader of an earlier version

    def encoded(self) -> bytes:
        """Encode it as one JSON object; inputs only if there are any."""
        return _encoded(self)

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Decode an assignment of this or a later version. Raises ValueError."""
        return _decoded(cls, text)

    @property
    def is_even(self) -> bool:
        """Whether the members' numbers of lanes differ by at most one."""
        owned = Counter(self.owners)
        counts = [owned[name] for name in self.addresses]
        return not counts or max(counts) - min(counts) <= 1

    def is_of(self, lanes: int) -> bool:
        """Whether it is about this number of lanes."""
        return {*map(len, (self.owners, self.followers, self.next_owners or self.owners))} == {lanes}

    def why_without(self, member: Member) -> str:
        """Return why a member is none of those that it is about; empty if it is one."""
        if member.worker in self.addresses:
            return ""
        if member.plan < self.plan:
            return f"the group serves by plan {self.plan}, and this worker has only seen plan {member.plan}"
        return "another worker has the same GATEWAY_WORKER_ID"

    def followers_of(self, lane: int) -> tuple[WorkerId, ...]:
        """Return who follows a lane: its standby and its next owner, as far as there are any."""
        names = self.followers[lane], self.next_owners[lane] if self.next_owners else NOBODY
        return tuple(name for name in names if name != NOBODY)


def carried_over(before: Assignment, lanes: Sequence[int | None]) -> Assignment:
    """
    Return the assignment of lanes after a plan, as if the group had made it: each has who knows most of it.

    Args:
        before: of the lanes of before.
        lanes: by lane, which one of before it is, or of which it was divided off; None: of none.
    """

    def names(of: Sequence[WorkerId]) -> tuple[WorkerId, ...]:
        return tuple(of[lane] if lane is not None and lane < len(of) else NOBODY for lane in lanes)

    return before._replace(
        owners=names(before.owners),
        followers=names(before.followers),
        next_owners=names(before.next_owners) if before.next_owners else (),
    )


def assign(members: Sequence[Member], lanes: int, *, standbys: bool = True) -> Assignment:
    """
    Assign each lane an owner and a follower; the same members in any order give the same assignment.

    Args:
        members: n >= 1, all of one log, with unique names.
        lanes: the number of lanes.
        standbys: whether lanes are followed.
    """
    by_name = {member.worker: member for member in sorted(members)}
    staying = {name: member for name, member in by_name.items() if not member.is_leaving} or by_name
    served_by = _served_by(by_name.values(), lanes)
    staying = {name: member for name, member in staying.items() if not member.given_up} or staying
    staying = _connected(staying, served_by)
    wanted = _balanced(served_by, staying, lanes, is_resting=_is_resting(by_name, staying))
    owners = wanted
    if standbys:  # without them, the next owner would never have followed the lane
        waiting = {*staying, *(name for name, of in by_name.items() if of.is_waiting)}
        owners = [_owner_now(lane, served_by[lane], wanted[lane], staying, waiting) for lane in range(lanes)]
    followers = _followers(owners, wanted, staying) if standbys and len(staying) > 1 else [NOBODY] * lanes
    places = list(zip(owners, wanted, followers, strict=True))
    next_owners = [NOBODY if name in (owner, follower) else name for owner, name, follower in places]
    return Assignment(
        tuple(owners),
        tuple(followers),
        {name: member.address for name, member in by_name.items()},
        is_settled=owners == wanted,
        broken=_broken(by_name),
        next_owners=tuple(next_owners) if any(next_owners) else (),
        inputs=share_out(
            {name: Reader(member.inputs, member.inputs_read) for name, member in staying.items()},
            {name for member in by_name.values() for name in member.inputs_stopped},
        ),
    )


def _is_resting(members: Mapping[WorkerId, Member], staying: Mapping[WorkerId, Member]) -> bool:
    """Return whether lanes stay uneven: what is moved while others are restarted, moves once more."""
    if any(member.has_carried_over for member in staying.values()):
        return True  # clients have waited for the plan, and would wait for moves as well
    new = sum(member.is_new for member in staying.values())
    is_left = any(member.is_leaving and member.serving for member in members.values())
    return is_left or 0 < new < len(staying)


def _broken(members: Mapping[WorkerId, Member]) -> tuple[str, ...]:
    """Return the first BROKEN_MAX links between members that are down."""
    found = (
        f"{name} -> {other}: {(why or 'no answer')[:BROKEN_CHARS_MAX]}"
        for name, member in members.items()
        for other, why in zip_longest(member.unreached, member.why_unreached)
        if other in members
    )
    return tuple(islice(found, BROKEN_MAX))


def _served_by(members: Iterable[Member], lanes: int) -> list[WorkerId]:
    """Return the server of each lane; of two workers that report a lane, the one that has claimed it."""
    members = list(members)
    served_by = [NOBODY] * lanes
    claims = [(member.worker, member.claimed) for member in members]
    for name, numbers in [*claims, *((member.worker, member.serving) for member in members)]:
        for lane in numbers:
            if 0 <= lane < lanes and served_by[lane] == NOBODY:
                served_by[lane] = name
    return served_by


def _connected(staying: Mapping[WorkerId, Member], served_by: Sequence[WorkerId]) -> dict[WorkerId, Member]:
    """
    Return workers that all reach each other, by removing those with the most broken links.

    Workers that cannot reach a lane's owner would claim the lane, and lose it again.
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
    served_by: Sequence[WorkerId], staying: Mapping[WorkerId, Member], lanes: int, *, is_resting: bool
) -> list[WorkerId]:
    """Return owners whose numbers of lanes differ by at most one, with the fewest moves, and none at rest."""
    owned: dict[WorkerId, list[int]] = {name: [] for name in staying}
    free: list[int] = []
    for lane, name in enumerate(served_by):
        owned.get(name, free).append(lane)
    low, over = divmod(lanes, len(owned))
    # The workers with most lanes get the larger shares, so that fewer lanes move; at rest, those that have
    # returned, since the lanes of the others will move.
    by_count = sorted(owned, key=lambda name: (is_resting != staying[name].is_new, -len(owned[name]), name))
    shares = {name: low + (place < over) for place, name in enumerate(by_count)}
    if not is_resting:
        lacking = {name for name, kept in owned.items() if len(kept) < shares[name]}
        homes = sorted(staying)
        for name, kept in owned.items():
            home = {lane: homes[lane % len(homes)] for lane in kept}
            kept.sort(key=lambda lane: (home[lane] in lacking, home[lane] != name))
            free += kept[shares[name] :]
            del kept[shares[name] :]
    for lane in sorted(free):
        able = [name for name in owned if len(owned[name]) < shares[name]] or owned
        owned[_fittest(able, lane, staying, owned)].append(lane)
    return [name for _, name in sorted((lane, name) for name, kept in owned.items() for lane in kept)]


def _fittest(
    names: Iterable[WorkerId],
    lane: int,
    staying: Mapping[WorkerId, Member],
    given: Mapping[WorkerId, Sequence[int]],
) -> WorkerId:
    """Return a worker that has followed the lane, otherwise the one with the fewest lanes."""
    return min(names, key=lambda name: (lane not in staying[name].followed, len(given[name]), name))


def _owner_now(
    lane: int,
    served_by: WorkerId,
    wanted: WorkerId,
    staying: Mapping[WorkerId, Member],
    waiting: Container[WorkerId],
) -> WorkerId:
    """Return the owner until the wanted one has followed the lane; if it cannot wait, who has followed it."""
    if not staying[wanted].can_follow or lane in staying[wanted].followed:
        return wanted
    if served_by in waiting:
        return served_by
    return next((name for name, member in staying.items() if lane in member.followed), wanted)


def _followers(
    owners: Sequence[WorkerId], wanted: Sequence[WorkerId], staying: Mapping[WorkerId, Member]
) -> list[WorkerId]:
    """Return each lane's follower: the fittest worker, in another zone if any, but not the next owner."""
    given: dict[WorkerId, list[int]] = {name: [] for name, member in staying.items() if member.can_follow}
    followers = []
    for lane, (owner, next_owner) in enumerate(zip(owners, wanted, strict=True)):
        able = [name for name in given if name not in (owner, next_owner)]
        if not able:
            able = [name for name in given if name != owner]
        if not able:
            followers.append(NOBODY)
            continue
        zone = staying[next_owner].zone
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
    """Return the lane's current follower unless it has too many, otherwise the one with the fewest."""
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


def _encoded(told: Member | Assignment) -> bytes:
    fields = told._asdict().items()
    return orjson.dumps({name: value for name, value in fields if value or not name.startswith("inputs")})


def _decoded(kind: type[Decoded], text: bytes) -> Decoded:
    """Decode the fields that this version knows."""
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
    """Return whether a value is of a field's type."""
    if isinstance(value, tuple):
        return get_origin(hint) is tuple and all(type(each) is get_args(hint)[0] for each in value)
    if isinstance(value, dict):  # its keys are strings, as in any JSON
        return get_origin(hint) in (dict, Mapping) and all(
            type(each) is get_args(hint)[1] for each in value.values()
        )
    return type(value) is hint
