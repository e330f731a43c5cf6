"""`gateway sessions`: what a running gateway knows of a client's sessions."""

from typing import Annotated, Any

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async, tell
from app.cli.options import ANSWER_TIMEOUT_S, DEFAULT_URL, Format, Output, Token, Url, print_rows

sessions = typer.Typer(
    name="sessions", help="Look at what is known of a client's sessions.", no_args_is_help=True
)


@sessions.command()
def show(
    client: Annotated[str, typer.Argument(help="What the client calls itself: `Gateway-Client`.")],
    source: Annotated[str, typer.Option(help="Source that the client sends for.")],
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Print one line for each session of a client.

    A line has session_hash (of a session only its hash is known), watermark (every sequence up to it is
    stored or acknowledged), acknowledged_through, highest, missing (ranges below it), epoch, last_used_ms
    and last_offset of its newest record, and expired: whether it takes no new sequence any more. At
    most 200 sessions are shown. Exit code 1: none is known.

    Example: `gateway sessions show install-7 --source ios`
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        document = await ask(
            url,
            "/admin/v1/sessions",
            {"source": source, "client": client},
            token=admin_token,
            timeout_s=ANSWER_TIMEOUT_S,
        )
        _print(document, output)

    guarded(lambda: run_async(run()))


def _print(document: dict[str, Any], output: Format | None) -> None:
    print_rows(document["sessions"], output)
    if document["more"]:
        tell("there are more sessions than are shown")
    if not document["sessions"]:
        tell(f"no session of {document['client']} is known")
        raise typer.Exit(EXIT_ERROR)
