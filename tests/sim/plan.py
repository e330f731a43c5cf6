"""
What the simulated histories must see: each fault in each state of a lane that it can befall.

A cell with a mark is planned: if the histories of the default seeds do not reach it, a test fails.
"""

from collections.abc import Iterable

from tests.sim.world import Seen

PLAN = """
               fencing restoring active draining failed stopped
unavailable       x        x        x       x       .       .
hang              x        x        x       x       .       .
leak_cancel       x        x        x       x       .       .
lose_reply        x        .        x       x       .       .
log_full          .        .        x       x       .       .
refuse            .        .        x       x       .       .
delay_append      .        .        x       x       .       .
delay_sight       .        .        x       x       .       .
rival             .        .        x       x       .       .
disk_error        x        x        x       x       .       .
bit_flip          .        x        x       x       .       .
disk_full         x        x        x       .       x       .
low_disk          x        x        x       .       x       .
foreign_record    x        x        x       .       x       .
trim              x        x        x       .       x       x
drain             x        x        x       .       x       .
cancel            x        x        x       x       x       .
crash             x        x        x       x       x       .
clock_behind      .        .        .       .       .       x
clock_ahead       .        .        .       .       .       x
other_window      .        .        .       .       .       x
index_lost        .        .        .       .       .       x
other_disk        .        .        .       .       .       x
tail_lost         .        .        .       .       .       x
"""

ANSWERS = (
    "ok",
    "LaneNotActiveError",
    "LaneSaturatedError",
    "DiskFullError",
    "DeadlineExceededError",
    "OutcomeUnknownError",
    "CancelledError",
)
"""What a client was told, each at least once."""


def missing_cells(seen: Seen) -> list[str]:
    """Return the planned cells, "fault in state", and answers that were never seen."""
    return unseen(seen, PLAN, "in", ANSWERS)


def unseen(seen: Seen, plan: str, relation: str, answers: Iterable[str]) -> list[str]:
    """Return what was never seen of a plan's cells, named by row, relation and column, and of answers."""
    header, *rows = (line.split() for line in plan.strip().splitlines())
    cells = [
        f"{row} {relation} {column}"
        for row, *marks in rows
        for column, mark in zip(header, marks, strict=True)
        if mark == "x" and not seen[row, column]
    ]
    return cells + [f"answer {answer}" for answer in answers if not seen["answers", answer]]
