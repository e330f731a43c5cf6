"""The Kotlin client as `make` builds it, and a process of it that tests give calls."""

from pathlib import Path
from typing import Any, cast

from clients.conformance.harness_process import Harness

BUILD = Path(__file__).parents[3] / "build" / "kotlin"


def kotlin_command(main: str) -> str:
    """Return the command that runs a file of the client's tests."""
    return f"java -XX:TieredStopAtLevel=1 -cp {BUILD}/classes:{BUILD}/libs/* gateway.tests.{main}Kt"


class KotlinClient(Harness):
    """One run of the client."""

    def __init__(self, *, url: str, key: str, folder: Path) -> None:
        """Start the client on the queue in a folder."""
        super().__init__(kotlin_command("Harness"), url=url, key=key, folder=folder)

    def call(self, name: str, /, **arguments: Any) -> list[Any] | None:
        """Make a call of analytics; `action` is `track`. Return its place, None if nothing was queued."""
        return cast("list[Any] | None", self._ask({"do": name, **arguments}).get("place"))

    def ids(self) -> dict[str, Any]:
        """Return the client id, the anonymous id and how many events wait."""
        return self._ask({"do": "ids"})

    def retry_dead_letters(self) -> int:
        """Queue the dead letters again."""
        return int(self._ask({"do": "retryDeadLetters"})["retried"])
