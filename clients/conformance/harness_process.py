"""A client under test: a process that speaks the harness's lines of JSON, see README.md."""

import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, cast

START_S, ANSWER_S = 60.0, 60.0


class HarnessError(Exception):
    """The harness has ended, or has said something else than an answer."""


class Harness:
    """One run of a client, from `open` to `kill` or `close`."""

    def __init__(self, command: str, *, url: str, key: str, folder: Path, **options: Any) -> None:
        """Start the client on the queue in a folder; options go to its `open`, too."""
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        folder.mkdir(parents=True, exist_ok=True)
        told = self._ask({"do": "open", "url": url, "key": key, "path": str(folder / "queue.db"), **options})
        self.client = str(told["client"])

    def track(self, events: list[dict[str, Any]]) -> None:
        """Queue events; when it returns, the client has confirmed them."""
        self._ask({"do": "track", "events": events})

    def flush(self, timeout_s: float) -> bool:
        """Return whether the client says that nothing waits."""
        return bool(self._ask({"do": "flush", "timeoutMs": int(timeout_s * 1000)})["flushed"])

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the codes and events of all dead letters."""
        return cast(list[dict[str, Any]], self._ask({"do": "deadLetters"})["letters"])

    def close(self, timeout_s: float = 2.0) -> None:
        """End in an orderly way."""
        self._ask({"do": "close", "timeoutMs": int(timeout_s * 1000)})
        self.kill()

    def kill(self) -> None:
        """End as by a loss of power, unless it has ended."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        try:
            return cast(dict[str, Any], json.loads(line))
        except ValueError as err:
            raise HarnessError(f"after {command['do']!r} the harness says {line!r}") from err
