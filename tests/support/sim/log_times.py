"""
How long a simulated log takes, in seconds: nothing, unless a test of delays says otherwise.

Only waiting is simulated. What a process computes, and its own disk, take no time here.
"""

from typing import NamedTuple, TypeAlias

Span: TypeAlias = tuple[float, float]
"""The least and the most; each time is drawn evenly between them."""

NO_TIME: Span = (0.0, 0.0)


class LogTimes(NamedTuple):
    """Of one connection."""

    fence: Span = NO_TIME  # both markers, until both partitions are read to them
    produce: Span = NO_TIME  # an append, a decision or a note, until it is acknowledged
    ask: Span = NO_TIME  # a batch of a read, a question about offsets, the routing topic's newest records


MEASURED = LogTimes(fence=(0.070, 0.135), produce=(0.005, 0.015), ask=(0.002, 0.005))
"""
Of one broker on the two cores that three workers use, too: a fence is "some 0.1 s" (docs/adr/0049); cutting
is 0.25 s and fencing again 0.15 s of a pause, with what stands around them ("More partitions" in
loadtests/results/group_faults.md). An append of one event takes 4 to 15 ms (loadtests/results/appends.md).
"""

THREE_BROKERS = MEASURED._replace(produce=(0.011, 0.038))
"""A lone Produce waits for the replicas of three brokers."""
