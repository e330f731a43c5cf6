"""The role of a worker for one lane."""

from enum import Enum


class Role(Enum):
    """A worker's role for one lane."""

    NONE = "none"
    OWNER = "owner"
    FOLLOWER = "follower"
