"""
What the workers of a group tell each other through Kafka's coordinator, and what it asks them for. Pure.

The coordinator only passes on what members say: the one that it makes the leader reads what all of them
tell, and decides for all. Whatever comes from others may be anything.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.protocol.group import (
    JoinGroupRequest_v5,
    SyncGroupRequest_v3,
)

from dedupe.group.assignment import NOBODY, Assignment, Member, WorkerId, assign

PROTOCOL_TYPE, PROTOCOL = "gateway", "lanes-v1"
"""The coordinator keeps members of other types out of the group."""

TOLD_BYTES_MAX = 1024 * 1024
"""The longest that a member's or the leader's words may be: for 1,024 lanes about 90 KiB."""
GENERATION_MAX = 2**53

NO_INSTANCE = None
"""No static member: the coordinator would hand a name over to its copy without asking the leader."""


class Joined(NamedTuple):
    """The answer to JoinGroup."""

    code: int
    generation: int
    leader: str
    member: str
    members: list[tuple[str, bytes | None]]  # what each tells; for the leader alone


class Decision(NamedTuple):
    """What the leader lets everybody know."""

    shares: list[tuple[str, bytes]]  # by member
    unreadable: int  # members that told nothing that can be read
    outdated: list[WorkerId]  # workers of which an earlier start is a member, too


def join_request(
    group: str, member: str, told: Member, *, session_s: float, rebalance_s: float
) -> JoinGroupRequest_v5:
    """Return the request to join; `member` is empty before the coordinator has given a name."""
    protocols = [(PROTOCOL, packed(told.encoded()))]
    return JoinGroupRequest_v5(
        group, _ms(session_s), _ms(rebalance_s), member, NO_INSTANCE, PROTOCOL_TYPE, protocols
    )


def read_joined(answer: Any) -> Joined:
    """Read the answer to `join_request`."""
    members = [(name, told) for name, _, told in answer.members]
    return Joined(answer.error_code, answer.generation_id, answer.leader_id, answer.member_id, members)


def sync_request(group: str, joined: Joined, shares: Sequence[tuple[str, bytes]]) -> SyncGroupRequest_v3:
    """Return the request for what is assigned, with which the leader tells it."""
    return SyncGroupRequest_v3(group, joined.generation, joined.member, NO_INSTANCE, list(shares))


def decide(joined: Joined, lanes: int, *, standbys: bool) -> Decision:
    """
    Return what the leader tells each member.

    Who tells nothing readable is not counted on. Of two members with one worker's name, a copy or one
    that is gone without having said so, only the latest start has lanes. Generations have Kafka's
    numbers, unless members know a larger one: Kafka begins anew with a group that was empty for a while.
    """
    told = {name: member for name, text in joined.members if (member := _member_of(text)) is not None}
    latest: dict[WorkerId, str] = {}
    for name in sorted(told, key=lambda name: (told[name].started_ms, name)):
        latest[told[name].worker] = name
    outdated = {name: member.worker for name, member in told.items() if latest[member.worker] != name}
    if not told:
        return Decision([], len(joined.members), [])
    assignment = assign([told[name] for name in latest.values()], lanes, standbys=standbys)
    seen = max(member.generation for member in told.values())
    assignment = assignment._replace(generation=max(joined.generation, seen + 1))
    share = packed(assignment.encoded())
    shares = [
        (name, packed(_without(outdated[name], assignment).encoded()) if name in outdated else share)
        for name, _ in joined.members
    ]
    return Decision(shares, len(joined.members) - len(told), sorted(outdated.values()))


def read_share(share: bytes | None, lanes: int) -> Assignment:
    """Read what the leader told. Raises ValueError."""
    assignment = Assignment.decode(unpacked(share))
    if not len(assignment.owners) == len(assignment.followers) == lanes:
        raise ValueError(f"it is not about {lanes} lanes")
    if not 0 < assignment.generation <= GENERATION_MAX:
        raise ValueError(f"a generation of {assignment.generation}")
    return assignment


def packed(text: bytes) -> bytes:
    """
    Compress what is told.

    The coordinator keeps what all members and the leader tell in one record, of 1 MiB at most: with
    1,024 lanes the map of owners would fit in there for ten members.
    """
    return zlib.compress(text)


def unpacked(told: bytes | None) -> bytes:
    """Undo `packed`. Raises ValueError, also for what is longer than anybody tells."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(told or b"", TOLD_BYTES_MAX)
    except zlib.error as err:
        raise ValueError(f"{err}") from err
    if not inflater.eof:
        raise ValueError("cut off, or too long")
    return text


def _member_of(told: bytes | None) -> Member | None:
    """Return what a member tells of itself, None if that cannot be read."""
    try:
        member = Member.decode(unpacked(told))
    except ValueError:
        return None
    return member if 0 <= member.generation < GENERATION_MAX else None


def _without(worker: WorkerId, assignment: Assignment) -> Assignment:
    """Return the assignment as its outdated namesake shall see it: it must not think that it is meant."""
    return assignment._replace(
        owners=tuple(NOBODY if name == worker else name for name in assignment.owners),
        followers=tuple(NOBODY if name == worker else name for name in assignment.followers),
        addresses={name: at for name, at in assignment.addresses.items() if name != worker},
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
