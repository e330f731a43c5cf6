"""
`gateway reshard plan` in the middle of a run: twice as many partitions, under the load of the clients.

It needs the gateway's own GATEWAY_... settings, as the reading of the log does.
"""

import subprocess
import sys
from pathlib import Path

import gevent

GATEWAY = str(Path(sys.executable).with_name("gateway"))
LIMIT_S = 180.0


class Division:
    """Divides the topic once, beside the clients of this process."""

    def __init__(self) -> None:
        self._running: gevent.Greenlet[..., None] | None = None

    def begin(self) -> None:
        """Begin, unless that was done before."""
        if self._running is None:
            self._running = gevent.spawn(_divide)

    def problems(self) -> list[str]:
        """Wait until it has ended, and return a sentence on what went wrong, if anything."""
        if self._running is None:
            return ["the topic was not divided: the run was over before its middle"]
        self._running.join(LIMIT_S)
        return [] if self._running.successful() else [f"the topic was not divided: {self._running.exception}"]


def _divide() -> None:
    partitions = len(_said("status", "--output", "json").splitlines())
    _said("plan", "--partitions", str(2 * partitions), "--notice", "0", "--force")


def _said(*arguments: str) -> bytes:
    done = subprocess.run([GATEWAY, "reshard", *arguments], capture_output=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip())
    return done.stdout
