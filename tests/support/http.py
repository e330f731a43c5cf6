"""Small words for tests that talk to a gateway over HTTP and read its log through the command line."""

import itertools
import subprocess
from typing import Any

import httpx
import orjson

from tests.support import forked
from tests.support.gateway import Crash, Gateway
from tests.support.waiting import PATIENCE_S

AUTH = ("web", "")
COMMAND_THAT_CRASHES = "tests.support.gateway:main_of_command"

_numbers = itertools.count()


def new_event(**fields: Any) -> dict[str, Any]:
    """Return an event that no test has sent before."""
    return {"messageId": f"id-{next(_numbers)}", "type": "track", "event": "Tested", **fields}


def post(client: httpx.Client, path: str, document: Any, **headers: str) -> httpx.Response:
    """Post a document as JSON."""
    return client.post(path, content=orjson.dumps(document), headers=headers)


def cli(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with the gateway's settings."""
    return forked.run(arguments, env=gateway.environment, timeout_s=PATIENCE_S)


def cli_until(gateway: Gateway, crash: Crash, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command that ends itself at a crash point, if it comes there."""
    path = gateway.folder / "crash-of-command"
    crash.write(path)
    arguments = str(path), *arguments
    return forked.run(arguments, env=gateway.environment, timeout_s=PATIENCE_S, entry=COMMAND_THAT_CRASHES)


def division_of(gateway: Gateway) -> list[dict[str, Any]]:
    """Return what `gateway reshard status` says of each partition."""
    done = cli(gateway, "reshard", "status", "--output", "json")
    assert done.returncode == 0, done.stderr.decode()
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def stored(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    """Return what `gateway events` prints."""
    done = cli(gateway, "events", *arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return [orjson.loads(line) for line in done.stdout.splitlines()]
