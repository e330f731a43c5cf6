"""`gateway verify`: does the index of a partition say what its log says?"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Any

import typer

from app.cli.console import EXIT_ERROR, guarded, run_async
from app.cli.options import ANSWER_TIMEOUT_S, DEFAULT_URL, Output, Token, Url, print_rows
from app.cli.progress import progress

SILENCE_S = 60.0
"""Progress comes once a second; a gateway that tells nothing for so long has gone."""


def verify(
    partitions: Annotated[
        list[int] | None,
        typer.Argument(min=0, help="Numbers of partitions; without any, all that the gateway serves."),
    ] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Partitions of the quarantine topic, not of the clean one.")
    ] = False,
    rate: Annotated[
        int, typer.Option(min=100, max=200_000, help="Records a second; 10,000 take a fifth of a processor.")
    ] = 10_000,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Output = None,
) -> None:
    """
    Have a running gateway compare indexes with the log, and print each difference, then a line a partition.

    Reads every record of the window, one partition after another, while it serves; changes nothing. A
    difference has kind, offset, key, source, message_id and index_offset. Exit code 1: there are differences,
    or a partition could not be verified. `gateway index rebuild` mends an index.

    Example: `gateway verify`, or `gateway verify 3 --rate 50000`
    """

    async def run() -> None:
        from app.cli.admin_client import ask

        numbers = partitions
        if not numbers:
            stats = await ask(url, "/admin/v1/stats", {}, token=admin_token, timeout_s=ANSWER_TIMEOUT_S)
            lanes = stats["quarantine" if quarantine else "partitions"]
            numbers = [lane["partition"] for lane in lanes if lane["state"] == "active"]
        query = {"rate": str(rate), **({"quarantine": "true"} if quarantine else {})}
        ends: list[dict[str, Any]] = []
        with progress() as advance:
            for number in numbers:
                lines = _lines(url, f"/admin/v1/verify/{number}", query, admin_token)
                ends.append(await _verified(lines, advance, output))
        print_rows(ends, output)
        if not ends or not all(end["verified"] for end in ends):
            raise typer.Exit(EXIT_ERROR)

    guarded(lambda: run_async(run()))


def _lines(url: str, path: str, query: Mapping[str, str], token: str | None) -> AsyncIterator[dict[str, Any]]:
    from app.cli.admin_client import follow

    return follow(url, path, query, token=token, silence_s=SILENCE_S)


async def _verified(
    lines: AsyncIterator[dict[str, Any]], advance: Callable[[int, int], None], output: Output
) -> dict[str, Any]:
    """Print the differences of one partition, and return how it ended. Raises RetriableError."""
    from dedupe.errors import RetriableError

    begin: dict[str, Any] = {}
    async for line in lines:
        kind = line.pop("type")
        if kind == "begin":
            begin = line
        elif kind == "difference":
            print_rows([{"partition": begin["partition"], **line}], output)
        elif kind == "progress":
            advance(line["offset"] - begin["start_offset"], begin["end_offset"] - begin["start_offset"])
        elif kind == "end":
            place = {name: begin[name] for name in ("topic", "partition")}
            return {
                **place,
                **{name: line[name] for name in ("verified", "records", "differences", "seconds")},
            }
        elif kind == "error":
            raise RetriableError(f"partition {begin['partition']} is not verified: {line['detail']}")
    raise RetriableError("the gateway ended the verification before its end")
