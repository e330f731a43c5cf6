"""
Claim: a first signal stops in order and a second one at once, loudly; the end of a parent is no second one.

A process of its own each time: the second signal ends it.
"""

import subprocess
import sys
from pathlib import Path
from signal import SIGTERM, Signals

import pytest

from app.process.life import PARENT_ENDED
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]

SIGNALLED_PROCESS = """
import asyncio, signal, sys
from app.telemetry.logging_setup import configure_logging
from app.telemetry.stderr import protect_stderr
from app.process.life import stop_signals

async def main():
    with stop_signals() as stop:
        heard = asyncio.Event()  # a signal of its own tells that those before it were heard
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, heard.set)
        for number in map(int, sys.argv[1:]):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGWINCH)
        await heard.wait()
        assert stop.is_set()

protect_stderr()
configure_logging(level="info", is_json=False)
asyncio.run(main())
print("stopped in order")
"""


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([SIGTERM], 0, "stopping"),
        ([SIGTERM, SIGTERM], 128 + SIGTERM, "stopped by a second signal"),
        ([PARENT_ENDED, PARENT_ENDED, PARENT_ENDED], 0, "stopping"),
        ([SIGTERM, PARENT_ENDED], 0, "stopping"),
        ([PARENT_ENDED, SIGTERM], 128 + SIGTERM, "stopped by a second signal"),
    ],
)
def test_second_signal_ends_at_once_unless_it_tells_of_the_parent(
    signals: list[Signals], code: int, said: str
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SIGNALLED_PROCESS, *(str(number.value) for number in signals)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == code
    assert said in process.stderr
    assert ("stopped in order" in process.stdout) == (code == 0)
