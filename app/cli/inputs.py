"""`gateway inputs`: shows and controls the topics on Kafka that a running gateway reads."""

from typing import Annotated
from urllib.parse import quote

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded, note
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_rows

inputs = typer.Typer(
    name="inputs", help="Control the topics on Kafka that a running gateway reads.", no_args_is_help=True
)


@inputs.command("list")
@guarded
def list_inputs(
    partitions: Annotated[bool, typer.Option("--partitions", help="One line for each partition.")] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Print one line for each input: what this worker read since the start, what became of it, what is left.

    A line has input, topic, source, stopped, paused, records, empty, accepted, duplicates, conflicts,
    rejected, lag and records_per_s; with --partitions also partition, position, committed and end. Why one
    is stopped is told on stderr, too. Exit code 1: an input is stopped.

    Example: `gateway inputs list`, or `gateway inputs list --partitions -o json`
    """
    rows = AdminClient(url, admin_token).ask("/admin/v1/inputs")["inputs"]
    lines = [{"input": row["input"], **each} for row in rows for each in row.pop("partitions")]
    print_rows(lines if partitions else rows, output)
    stopped = [row for row in rows if row["stopped"]]
    for row in stopped:
        note(f"{row['input']} is stopped: {row['stopped']}")
    if stopped:
        raise typer.Exit(EXIT_ERROR)


Name = Annotated[str, typer.Argument(help="The input's name in the file of inputs.")]


@inputs.command("pause")
@guarded
def pause_input(name: Name, url: Url = DEFAULT_URL, admin_token: Token = None) -> None:
    """
    Have no worker read on, also after restarts, until the input is resumed.

    Example: `gateway inputs pause web`
    """
    AdminClient(url, admin_token).ask(f"/admin/v1/inputs/{quote(name, safe='')}/pause", method="POST")
    note(f"{name} is paused")


@inputs.command("resume")
@guarded
def resume_input(name: Name, url: Url = DEFAULT_URL, admin_token: Token = None) -> None:
    """
    Have an input read on that is paused or has stopped.

    Example: `gateway inputs resume web`
    """
    AdminClient(url, admin_token).ask(f"/admin/v1/inputs/{quote(name, safe='')}/resume", method="POST")
    note(f"{name} is read on")


@inputs.command("seek")
@guarded
def seek_input(
    name: Name,
    to: Annotated[str, typer.Option(help="An offset, earliest, or latest.")],
    partition: Annotated[int | None, typer.Option(min=0, help="One partition instead of all.")] = None,
    reads_past_window: Annotated[
        bool, typer.Option("--reads-past-window", help="Also where records are older than the window.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
) -> None:
    """
    Have an input read on elsewhere: behind an offset nothing is skipped, and what was stored is recognised.

    Records older than the window may have been stored, and would be once more, so such a place is refused
    without --reads-past-window.

    Example: `gateway inputs seek web --to earliest`, or `gateway inputs seek web --partition 3 --to 1200`
    """
    told = AdminClient(url, admin_token).ask(
        f"/admin/v1/inputs/{quote(name, safe='')}/seek",
        method="POST",
        to=to,
        partition=partition,
        reads_past_window=reads_past_window or None,
    )
    for number, offset in told["offsets"].items():
        note(f"partition {number} is read on from offset {offset}")
