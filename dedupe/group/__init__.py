"""The group of workers that share one log: who owns which lane, who follows it, and how events get there."""

from dedupe.group.assignment import NOBODY, Assignment, Member, WorkerId, assign
from dedupe.group.membership import Describe, Membership, Take

__all__ = ["NOBODY", "Assignment", "Describe", "Member", "Membership", "Take", "WorkerId", "assign"]
