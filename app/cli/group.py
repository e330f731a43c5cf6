"""`gateway group` and `gateway drain`: what a group of workers says of itself, and one that is to stop."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.cli.console import guarded, run_async
from app.cli.options import DEFAULT_URL, Format, Output, Token, Url, default_format, print_rows

TIMEOUT_S = 60.0
"""A drain takes as long as its partitions need to be served elsewhere, a second or two each time."""


def group(url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None) -> None:
    """
    Print one line for each worker of the group, whichever of them is asked.

    A line has the worker's name, whether it answers, and of its partitions those it serves and those it
    follows; as JSON and YAML the last one has the totals of all that answered. Exit code 1: no worker
    answers.

    Example: `gateway group -o json --url http://10.0.0.7:9090`
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        document = await ask(url, "/admin/v1/group", {}, token=admin_token, timeout_s=TIMEOUT_S)
        chosen, rows = output or default_format(), rows_of(document)
        if chosen is not Format.TABLE:
            rows.append({"generation": document["generation"], "totals": document["totals"]})
        print_rows(rows, chosen)

    guarded(lambda: run_async(run()))


def drain(
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    undo: Annotated[bool, typer.Option("--undo", help="Have the worker own partitions again.")] = False,
) -> None:
    """
    Have other workers serve all partitions of one worker, which goes on answering its clients.

    Returns once they do. SIGTERM does the same before it ends the worker. Exit code 1: they do not yet.

    Example: `gateway drain --url http://10.0.0.7:9090`, and `gateway drain --undo` to take it back
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        path = "/admin/v1/undrain" if undo else "/admin/v1/drain"
        await ask(url, path, {}, token=admin_token, timeout_s=TIMEOUT_S, method="POST")

    guarded(lambda: run_async(run()))


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each worker of a group, those that do not answer first."""
    rows: list[dict[str, Any]] = [
        {"worker": name, "answers": False, "why": why} for name, why in document["silent"].items()
    ]
    for name, stats in document["workers"].items():
        clean = stats["partitions"]
        rows.append(
            {
                "worker": name,
                "answers": True,
                "leaving": stats["group"]["leaving"],
                "serves": [of["partition"] for of in clean if of["state"] == "active"],
                "follows": [of["partition"] for of in clean if of["caught_up"]],
                "received": stats["totals"]["received"],
            }
        )
    return rows
