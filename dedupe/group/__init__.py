"""The group of workers that share one log: who owns which lane, who follows it, and how events get there."""

from dedupe.group.assignment import NOBODY, Assignment, Member, WorkerId, assign
from dedupe.group.codec import STATUS
from dedupe.group.host import GroupHost
from dedupe.group.keeper import Keeper, KeeperTimes, Role
from dedupe.group.links import Link, Links, Status
from dedupe.group.membership import Describe, Membership, Take
from dedupe.group.route import GroupRoute

__all__ = [
    "NOBODY",
    "STATUS",
    "Assignment",
    "Describe",
    "GroupHost",
    "GroupRoute",
    "Keeper",
    "KeeperTimes",
    "Link",
    "Links",
    "Member",
    "Membership",
    "Role",
    "Status",
    "Take",
    "WorkerId",
    "assign",
]
