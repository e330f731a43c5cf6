"""
Requests of the group protocol, and the descriptions and assignments that members exchange by them. Pure.

The coordinator passes on bytes: the member that it makes the leader decodes the descriptions of all members,
and assigns lanes to all. Bytes of other members may be anything.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.protocol.group import JoinGroupRequest_v5, SyncGroupRequest_v3

from dedupe.cluster.assignment import NOBODY, Assignment, Member, WorkerId, assign

PROTOCOL_TYPE, PROTOCOL = "gateway", "lanes-v1"
"""The coordinator refuses members of other types."""

TEXT_BYTES_MAX = 1024 * 1024
"""The limit of a description or an assignment: with 1,024 lanes they take about 90 KiB."""
GENERATION_MAX = 2**53

NO_INSTANCE = None
"""Static membership is off: the coordinator would replace a member by a copy without a rebalance."""


class Joined(NamedTuple):
    """The response to JoinGroup."""

    code: int
    generation: int
    leader: str
    member: str
    members: list[tuple[str, bytes | None]]  # ids and descriptions; for the leader alone


class Decision(NamedTuple):
    """The leader's assignments."""

    shares: list[tuple[str, bytes]]  # member ids and encoded assignments
    unreadable: int  # members whose descriptions cannot be decoded
    outdated: list[WorkerId]  # workers of which an earlier start is a member, too


def join_request(
    group: str, member_id: str, member: Member, *, session_s: float, rebalance_s: float
) -> JoinGroupRequest_v5:
    """Return the request to join; `member_id` is empty before the coordinator has given one."""
    protocols = [(PROTOCOL, packed(member.encoded()))]
    return JoinGroupRequest_v5(
        group, _ms(session_s), _ms(rebalance_s), member_id, NO_INSTANCE, PROTOCOL_TYPE, protocols
    )


def read_joined(answer: Any) -> Joined:
    """Return the response to `join_request`."""
    members = [(member_id, text) for member_id, _, text in answer.members]
    return Joined(answer.error_code, answer.generation_id, answer.leader_id, answer.member_id, members)


def sync_request(group: str, joined: Joined, shares: Sequence[tuple[str, bytes]]) -> SyncGroupRequest_v3:
    """Return the request for this member's assignment, which carries those of all from the leader."""
    return SyncGroupRequest_v3(group, joined.generation, joined.member, NO_INSTANCE, list(shares))


def decide(joined: Joined, lanes: int, *, standbys: bool) -> Decision:
    """
    Return the assignments of all members.

    A member with an unreadable description gets no lanes, and neither does one that does not know the last
    plan: it numbers lanes in another way. Of two members with one worker's name, a copy or
    one that ended without leaving, only the latest start gets lanes. Generations have Kafka's numbers,
    unless members know a larger one: Kafka counts from 1 again after a group was empty for a while.
    """
    members = {name: member for name, text in joined.members if (member := _member_of(text)) is not None}
    latest: dict[WorkerId, str] = {}
    for name in sorted(members, key=lambda name: (members[name].started_ms, name)):
        latest[members[name].worker] = name
    outdated = {name: member.worker for name, member in members.items() if latest[member.worker] != name}
    if not members:
        return Decision([], len(joined.members), [])
    known = [members[name] for name in latest.values()]
    plan = max(member.plan for member in known)
    newest = [member for member in known if member.plan == plan]
    lanes = max(member.lanes for member in newest) or lanes
    assignment = assign(newest, lanes, standbys=standbys)
    seen = max(member.generation for member in members.values())
    assignment = assignment._replace(generation=max(joined.generation, seen + 1), plan=plan)
    share = packed(assignment.encoded())
    shares = [
        (name, packed(_without(outdated[name], assignment).encoded()) if name in outdated else share)
        for name, _ in joined.members
    ]
    return Decision(shares, len(joined.members) - len(members), sorted(outdated.values()))


def read_share(share: bytes | None, lanes: int) -> Assignment:
    """Decode an assignment. Raises ValueError."""
    assignment = Assignment.decode(unpacked(share))
    if not assignment.is_of(lanes):
        told = f"{len(assignment.owners)} lanes by plan {assignment.plan}"
        raise ValueError(f"it is about {told}, not about {lanes} lanes")
    if not 0 < assignment.generation <= GENERATION_MAX:
        raise ValueError(f"a generation of {assignment.generation}")
    return assignment


def packed(text: bytes) -> bytes:
    """
    Compress a description or an assignment.

    The coordinator stores those of all members in one record, of 1 MiB at most: uncompressed, with 1,024
    lanes, it would have room for ten members.
    """
    return zlib.compress(text)


def unpacked(compressed: bytes | None) -> bytes:
    """Undo `packed`. Raises ValueError, also for more than TEXT_BYTES_MAX."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(compressed or b"", TEXT_BYTES_MAX)
    except zlib.error as err:
        raise ValueError(f"{err}") from err
    if not inflater.eof:
        raise ValueError("cut off, or too long")
    return text


def _member_of(compressed: bytes | None) -> Member | None:
    """Return a member's description, None if it cannot be decoded."""
    try:
        member = Member.decode(unpacked(compressed))
    except ValueError:
        return None
    return member if 0 <= member.generation < GENERATION_MAX else None


def _without(worker: WorkerId, assignment: Assignment) -> Assignment:
    """Return the assignment without a worker, for the earlier one of two with its name."""

    def others(names: Sequence[WorkerId]) -> tuple[WorkerId, ...]:
        return tuple(NOBODY if name == worker else name for name in names)

    return assignment._replace(
        owners=others(assignment.owners),
        followers=others(assignment.followers),
        next_owners=others(assignment.next_owners),
        addresses={name: at for name, at in assignment.addresses.items() if name != worker},
        inputs={place: name for place, name in assignment.inputs.items() if name != worker},
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
