"""Ends of a simulated process, right after a step of a commit."""

from collections.abc import Callable


class SimulatedCrashError(BaseException):
    """The process ends here."""


def crash_at(step: str, hits: int) -> Callable[[str], None]:
    """Return a crash point that ends the process right after a step was reached for the n-th time."""
    reached = 0

    def crashpoint(name: str) -> None:
        nonlocal reached
        reached += name == step
        if name == step and reached >= hits:
            raise SimulatedCrashError(step)

    return crashpoint
