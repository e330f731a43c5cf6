"""Settings of the interpreter: the garbage collector, and the switch between threads."""

import gc
import sys

GC_THRESHOLDS = (12_000, 8, 400)
"""
With Python's default (700, 10, 10), a fifth of the CPU would search for cycles that do not exist. Each search
blocks the event loop: the second number bounds that of the middle generation, which every object of a large
parsed body reaches, to 96,000 objects and 5 ms. The third one keeps searches of all objects rare.
"""

SWITCH_INTERVAL_S = 0.0005
"""
The wait of a thread for Python's global lock. The embedded log commits in a thread, with several such waits
in a commit: Python's default of 5 ms would make each commit slow while the event loop is busy.
"""


def tune_interpreter() -> None:
    """Set the thresholds of the garbage collector, and the switch interval of threads."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
