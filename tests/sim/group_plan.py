"""
What the simulated histories of groups must see: each fault, befalling a worker in each role to a lane.

A cell with a mark is planned: if the histories of the default seeds do not reach it, a test fails.
"""

from tests.sim.plan import unseen
from tests.sim.world import Seen

PLAN = """
                   owner follower none
unavailable          x       x     .
hang                 x       x     .
leak_cancel          x       x     .
lose_reply           x       .     .
log_full             x       .     .
refuse               x       .     .
delay_append         x       .     .
delay_sight          x       .     .
rival                x       .     .
disk_error           x       x     .
bit_flip             x       x     .
disk_full            x       x     x
disk_low             x       x     x
trim                 x       x     x
tail_lost            x       x     x
kill                 x       x     x
freeze               x       x     x
leave                x       x     x
cut                  x       x     x
cut_one_way          x       x     x
reset                x       x     x
slow_network         x       x     x
large_lost           x       x     x
grey                 x       x     x
large_appends_lost   x       x     x
broker_cut_off       x       x     x
broker_slow          x       x     x
broker_frozen        x       x     x
log_cut_off          x       x     x
coordinator_down     x       x     x
coordinator_slow     x       x     x
coordinator_frozen   x       x     x
coordinator_unheard  x       x     x
coordinator_cut_off  x       x     x
clock_wrong          x       x     x
commit_lost          .       x     .
commit_doubled       .       x     .
commit_late          .       x     .
"""

ANSWERS = ("ok", "LaneNotActiveError", "DeadlineExceededError", "OutcomeUnknownError")
"""What a client was told, each at least once."""


def missing_cells(seen: Seen) -> list[str]:
    """Return the planned cells, "fault as role", and answers that were never seen."""
    return unseen(seen, PLAN, "as", ANSWERS)
