"""The use of the native module by a worker."""

from dataclasses import dataclass


@dataclass(slots=True)
class NativeUse:
    """Counts since the start."""

    version: str
    events: int = 0
    """The events that the module has identified."""
    odd_events: int = 0
    """The events in bodies that it has read, which the Python code has identified."""
    other_bodies: int = 0
    """The bodies that it has left to the Python code."""
    panics: int = 0
    """Its faults, each of which the Python code has made good."""
