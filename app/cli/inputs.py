"""`gateway inputs`: shows the topics on Kafka that a running gateway reads as inputs."""

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded, note
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_rows

inputs = typer.Typer(
    name="inputs", help="Show the topics on Kafka that a running gateway reads.", no_args_is_help=True
)


@inputs.command("list")
@guarded
def list_inputs(url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None) -> None:
    """
    Print one line for each input: what was read since the start, what became of it, and what is left.

    A line has input, topic, source, records, accepted, duplicates, conflicts, rejected, empty, lag and
    stopped. Why one is stopped is told on stderr, too. Exit code 1: an input is stopped.

    Example: `gateway inputs list`, or `gateway inputs list -o json`
    """
    rows = AdminClient(url, admin_token).ask("/admin/v1/inputs")["inputs"]
    for row in rows:
        del row["partitions"]
    print_rows(rows, output)
    stopped = [row for row in rows if row["stopped"]]
    for row in stopped:
        note(f"{row['input']} is stopped: {row['stopped']}")
    if stopped:
        raise typer.Exit(EXIT_ERROR)
