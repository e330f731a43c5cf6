"""What a job without batches is doing: a line a stage on stderr, each with the time since the start."""

import sys
import time
from collections.abc import Callable


def stage_teller(job: str) -> Callable[[str], None]:
    """Return a function that tells what begins now, in a few words."""
    began = time.monotonic()

    def tell(stage: str) -> None:
        print(f"{job}: {time.monotonic() - began:5.1f} s  {stage}", file=sys.stderr, flush=True)

    return tell
