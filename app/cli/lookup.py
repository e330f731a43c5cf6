"""`gateway lookup`: did an event arrive?"""

from typing import Annotated, Any

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async
from app.cli.options import ANSWER_TIMEOUT_S, DEFAULT_URL, Format, Output, Token, Url, print_document


def lookup(
    source: Annotated[str, typer.Argument(help="Source that it was sent for.")],
    message_id: Annotated[str | None, typer.Argument(help="Its messageId.")] = None,
    client: Annotated[str | None, typer.Option(help="`Gateway-Client`, of an event of a session.")] = None,
    session: Annotated[str | None, typer.Option(help="`Gateway-Session` of it.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Its number in the session.")] = None,
    value: Annotated[
        bool, typer.Option("--value", help="Print all of the event; needs the token that may write.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Print where and when an event was stored; any worker of a group may be asked.

    Known by its message id, or by client, session and sequence; an event of a session that has a message
    id of its own, by that and its client. Of the event a few fields are printed, all with --value.
    Exit code 1: it is not known: never stored, or longer ago than the window.

    Example: `gateway lookup web order-4711`, or `gateway lookup ios --client C --session S --sequence 17`
    """
    if (message_id is None) == (sequence is None):
        raise typer.BadParameter("give a message id, or --client, --session and --sequence")

    async def run() -> None:
        from app.cli.admin_client import ask

        told = {
            "source": source,
            "id": message_id,
            "client": client,
            "session": session,
            "sequence": sequence,
            "value": value or None,
        }
        query = {name: str(said) for name, said in told.items() if said is not None}
        _print(
            await ask(url, "/admin/v1/lookup", query, token=admin_token, timeout_s=ANSWER_TIMEOUT_S), output
        )

    guarded(lambda: run_async(run()))


def _print(found: dict[str, Any], output: Format | None) -> None:
    print_document(found, output)
    if not found["seen"]:
        raise typer.Exit(EXIT_ERROR)
