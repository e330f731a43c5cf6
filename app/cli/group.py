"""`gateway group` and `gateway drain`: what a group of workers says of itself, and one that is to stop."""

from typing import Annotated, Any

import typer

from app.cli.console import guarded, run_async, write_lines

DEFAULT_URL = "http://127.0.0.1:9090"
TIMEOUT_S = 60.0
"""A drain takes as long as its partitions need to be served elsewhere, a second or two each time."""

Url = Annotated[
    str, typer.Option(envvar="GATEWAY_ADMIN_URL", help="Admin URL of a running worker: of any, or the one.")
]
Token = Annotated[
    str | None, typer.Option(envvar="GATEWAY_ADMIN_TOKEN", help="Token of the admin port, if it has one.")
]


def group(url: Url = DEFAULT_URL, admin_token: Token = None) -> None:
    """
    Print one JSON line for each worker of the group, whichever of them is asked.

    A line has the worker's name, whether it answers, and of its partitions those it serves and those it
    follows; the last line has the totals of all that answered. Exit code 1: no worker answers.
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        document = await ask(url, "/admin/v1/group", {}, token=admin_token, timeout_s=TIMEOUT_S)
        _print(document)

    guarded(lambda: run_async(run()))


def drain(
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    undo: Annotated[bool, typer.Option("--undo", help="Have the worker own partitions again.")] = False,
) -> None:
    """
    Have other workers serve all partitions of one worker, which goes on answering its clients.

    Returns once they do. SIGTERM does the same before it ends the worker. Exit code 1: they do not yet.
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        path = "/admin/v1/undrain" if undo else "/admin/v1/drain"
        await ask(url, path, {}, token=admin_token, timeout_s=TIMEOUT_S, method="POST")

    guarded(lambda: run_async(run()))


def _print(document: dict[str, Any]) -> None:
    import orjson

    def tell(line: dict[str, Any]) -> None:
        write_lines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    for name, why in document["silent"].items():
        tell({"worker": name, "answers": False, "why": why})
    for name, stats in document["workers"].items():
        clean = stats["partitions"]
        tell(
            {
                "worker": name,
                "answers": True,
                "leaving": stats["group"]["leaving"],
                "serves": [of["partition"] for of in clean if of["state"] == "active"],
                "follows": [of["partition"] for of in clean if of["caught_up"]],
                "received": stats["totals"]["received"],
            }
        )
    tell({"generation": document["generation"], "totals": document["totals"]})
