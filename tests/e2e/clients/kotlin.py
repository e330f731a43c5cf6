"""The Kotlin client as `make` builds it, and a process of it that tests give calls."""

import resource
from pathlib import Path
from typing import Any, cast

from clients.conformance.harness_process import Harness

BUILD = Path(__file__).parents[3] / "build" / "kotlin"


def kotlin_command(main: str) -> str:
    """Return the command that runs a file of the client's tests."""
    return f"java -XX:TieredStopAtLevel=1 -cp {BUILD}/classes:{BUILD}/libs/* gateway.tests.{main}Kt"


class KotlinClient(Harness):
    """One run of the client."""

    def __init__(self, *, url: str, key: str, folder: Path, **options: Any) -> None:
        """Start the client on the queue in a folder; `eventsMax` and `dropsOldest` are options."""
        super().__init__(kotlin_command("Harness"), url=url, key=key, folder=folder, **options)

    def call(self, name: str, /, **arguments: Any) -> list[Any] | None:
        """Make a call of analytics; `action` is `track`. Return its place, None if nothing was queued."""
        return cast("list[Any] | None", self._ask({"do": name, **arguments}).get("place"))

    def ids(self) -> dict[str, Any]:
        """Return the client id and the anonymous id."""
        return self._ask({"do": "ids"})

    def state(self) -> dict[str, Any]:
        """Return how many events wait, the age of the oldest in ms, and whether the file has them."""
        return self._ask({"do": "state"})

    def thrown_by_odd_events(self) -> list[str]:
        """Return the names of the classes that events which are none throw."""
        return cast("list[str]", self._ask({"do": "odd"})["thrown"])

    def retry_dead_letters(self) -> int:
        """Queue the dead letters again."""
        return int(self._ask({"do": "retryDeadLetters"})["retried"])

    def limit_files(self, size: int) -> int:
        """Let the process write files of so many bytes, as on a full disk; return the limit before."""
        before, most = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, most))
        return before
