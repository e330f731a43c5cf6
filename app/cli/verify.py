"""`gateway verify`: compares the index of a partition with its log."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import EXIT_ERROR, guarded
from app.cli.options import DEFAULT_URL, Output, Token, Url, print_rows
from app.cli.progress import progress
from dedupe.model.errors import RetriableError

SILENCE_S = 60.0
"""A gateway reports progress once a second; one that is silent for longer has ended."""


@guarded
def verify(
    partitions: Annotated[
        list[int] | None,
        typer.Argument(min=0, help="Numbers of partitions; by default all that the gateway serves."),
    ] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Partitions of the quarantine topic, not of the clean one.")
    ] = False,
    rate: Annotated[
        int, typer.Option(min=100, max=200_000, help="Records a second; 10,000 take a fifth of a processor.")
    ] = 10_000,
    timeout: Annotated[str, typer.Option(help="End with an error after this time, such as `10m`.")] = "6h",
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Compare indexes of a running gateway with the log; print each difference, then a line for each partition.

    The gateway reads every record of the window, one partition after another, while it serves. Nothing is
    changed. A difference has kind, partition, offset, key, source, message_id and index_offset. Exit code 1:
    there are differences, or a partition could not be verified in time. stderr shows the progress, on a
    terminal as a bar, else as a line every 10 s. `gateway index rebuild` repairs an index.

    Example: `gateway verify`, or `gateway verify 3 --rate 50000`
    """

    give_up_at = time.monotonic() + _seconds(timeout)
    admin = AdminClient(url, admin_token)
    numbers = partitions
    if not numbers:
        lanes = admin.ask("/admin/v1/stats")["quarantine" if quarantine else "partitions"]
        numbers = [lane["partition"] for lane in lanes if lane["state"] == "active"]
    ends: list[dict[str, Any]] = []
    with progress() as advance:
        for number in numbers:
            path = f"/admin/v1/verify/{number}"
            lines = admin.follow(path, silence_s=SILENCE_S, rate=rate, quarantine=quarantine or None)
            ends.append(_verified(_until(give_up_at, timeout, lines), advance, output))
    print_rows(ends, output)
    if not ends or not all(end["verified"] for end in ends):
        raise typer.Exit(EXIT_ERROR)


def _seconds(timeout: str) -> float:
    from app.settings.units import parse_duration

    try:
        return parse_duration(timeout)
    except ValueError as err:
        raise typer.BadParameter(f"--timeout: {err}") from err


def _until(give_up_at: float, timeout: str, lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield lines, of which there is one a second. Raises RetriableError: the time is over."""
    for line in lines:
        yield line
        if time.monotonic() > give_up_at:
            raise RetriableError(f"not all is verified in {timeout}: raise --rate, or --timeout")


def _verified(
    lines: Iterator[dict[str, Any]], advance: Callable[[int, int], None], output: Output
) -> dict[str, Any]:
    """Print the differences of one partition, and return its result. Raises RetriableError."""
    begin: dict[str, Any] = {}
    for line in lines:
        kind = line.pop("type")
        if kind == "begin":
            begin = line
        elif kind == "difference":
            print_rows([{"partition": begin["partition"], **line}], output)
        elif kind == "progress":
            advance(line["offset"] - begin["start_offset"], begin["end_offset"] - begin["start_offset"])
        elif kind == "end":
            names = ("verified", "records", "differences", "seconds")
            return {
                "topic": begin["topic"],
                "partition": begin["partition"],
                **{name: line[name] for name in names},
            }
        elif kind == "error":
            raise RetriableError(f"partition {begin['partition']} is not verified: {line['detail']}")
    raise RetriableError("the gateway ended the verification before its end")
