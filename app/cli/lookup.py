"""`gateway lookup` and `gateway sessions`: look up an event, or the sessions of a client."""

from typing import Annotated

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded, note
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_document, print_rows

sessions = typer.Typer(name="sessions", help="Show the sessions of a client.", no_args_is_help=True)


@guarded
def lookup(
    source: Annotated[str, typer.Argument(help="Source of the event.")],
    message_id: Annotated[str | None, typer.Argument(help="Its messageId.")] = None,
    client: Annotated[str | None, typer.Option(help="`Gateway-Client`, of an event of a session.")] = None,
    session: Annotated[str | None, typer.Option(help="Its `Gateway-Session`.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Its number in the session.")] = None,
    value: Annotated[
        bool, typer.Option("--value", help="Print the whole event; requires the writing token.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Print where and when an event was stored, and its places in quarantine; --url may be any worker of a
    group.

    The event is identified by its message id, or by client, session and sequence; an event of a session with
    a message id of its own also by that and its client. A few fields are printed, all with --value. Exit code
    1: it is unknown, since it was never stored, or before the window.

    Example: `gateway lookup web order-4711`, or `gateway lookup ios --client C --session S --sequence 17`
    """
    if (message_id is None) == (sequence is None):
        raise typer.BadParameter("give a message id, or --client, --session and --sequence")
    found = AdminClient(url, admin_token).ask(
        "/admin/v1/lookup",
        source=source,
        id=message_id,
        client=client,
        session=session,
        sequence=sequence,
        value=value or None,
    )
    print_document(found, output)
    if not found["seen"]:
        raise typer.Exit(EXIT_ERROR)


@sessions.command()
@guarded
def show(
    client: Annotated[str, typer.Argument(help="The client: `Gateway-Client`.")],
    source: Annotated[str, typer.Option(help="Source of the client.")],
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Print one line for each session of a client.

    A line has session_hash, watermark (every sequence up to it is stored or acknowledged),
    acknowledged_through, highest, missing (ranges below it), epoch, last_used_ms and last_offset of its
    newest record, and expired: whether it accepts no new sequences. At most 200 sessions are shown. Exit code
    1: there are none.

    Example: `gateway sessions show install-7 --source ios`
    """
    document = AdminClient(url, admin_token).ask("/admin/v1/sessions", source=source, client=client)
    print_rows(document["sessions"], output)
    if document["more"]:
        note("there are more sessions than are shown")
    if not document["sessions"]:
        note(f"no session of {document['client']} is known")
        raise typer.Exit(EXIT_ERROR)
