"""
Salvage: finds the complete events in a body that is not JSON, and the fragments between them.

See docs/adr/0022-salvage.md for the rules.
"""

from typing import NamedTuple


class Fragment(NamedTuple):
    """A part of a body that cannot be stored as an event, and is quarantined as it is."""

    position: int
    """The offset of its first byte in the inflated body."""
    content: bytes
    reason: str
    """A RejectionCode."""
