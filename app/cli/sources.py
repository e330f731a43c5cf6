"""`gateway sources`: what each source sends, and how it fares."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note
from app.cli.options import DEFAULT_URL, Format, Screen, Token, Url, print_rows, printable
from dedupe.model.errors import ConfigurationError

PATH = "/admin/v1/sources"

VERDICTS = ("accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")

NAMELESS = "(unknown)"
"""Requests whose source is not known: their key is wrong, or they were refused before it was read."""

TITLES = {
    "duplicate_causes": "duplicates by cause",
    "duplicate_libraries": "duplicates by cause and library",
    "rejected_reasons": "rejected and conflicting, by reason",
    "refused_codes": "refused requests, by code",
    "refused_quotas": "of these over a quota, by limit",
    "libraries": "requests by library",
}

SENDERS_SHOWN = 5

Document = Mapping[str, Any]


@guarded
def sources(
    source: Annotated[
        str | None, typer.Argument(help="Only this source, with all that is known of it.")
    ] = None,
    since_start: Annotated[
        bool, typer.Option("--since-start", help="Since the workers' starts, instead of today.")
    ] = False,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Screen = None,
) -> None:
    """
    Print what each source sends to a running gateway or group: today (since 00:00 UTC), or since its start.

    A line has the events by verdict, the requests that were refused as a whole, and how much is used of the
    quota that is nearest to its end. With a source also duplicates by cause, reasons, codes, libraries and
    their versions. Below the table stands who sends unknown write keys. Counts are in memory: they begin with
    each worker.

    Example: `gateway sources`, `gateway sources web`, or `gateway sources -o json`
    """
    document = AdminClient(url, admin_token).ask(PATH)
    rows = [row for row in document["sources"] if source in (None, row["source"])]
    if source is not None and not rows:
        raise ConfigurationError(
            f"source {source!r} has sent nothing since the gateway's start, and has no key"
        )
    period = "total" if since_start else "today"
    if output in (Format.JSON, Format.YAML):
        print_rows(rows, output)
        return
    began_ms = document["since_ms" if since_start else "today_since_ms"]
    typer.echo(f"events since {datetime.fromtimestamp(began_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC\n")
    print_rows([_row(row, period) for row in rows], Format.TABLE)
    if source is not None:
        for line in _details(rows[0], period):
            typer.echo(line)
    else:
        for lines in (_over_quotas(rows, period), _unknown_keys(document["unknown_keys"])):
            if told := "\n".join(lines):
                typer.echo("\n" + told)
    for worker, why in document["silent"].items():
        note(f"worker {worker} does not answer: {why}")


def _row(row: Document, period: str) -> dict[str, Any]:
    """Return a line of at most 80 columns, if the source's name is short."""
    counts = row[period]
    events = counts["events"]
    used = max((use["used"] for use in row["quotas"].values()), default=None)
    return {
        "source": row["source"] or NAMELESS,
        "events": _sum(events),
        "accepted": events.get("accepted", 0),
        "dup": events.get("duplicates", 0),
        "conflict": events.get("conflicts", 0),
        "rejected": events.get("rejected", 0),
        "refused": events.get("refused", 0) + events.get("unknown", 0),
        "4xx/503": _sum(counts["refused_codes"]),
        "quota": None if used is None else f"{max(0.0, used):.0%}",
    }


def _details(row: Document, period: str) -> Iterator[str]:
    for group, title in TITLES.items():
        if counts := row[period][group]:
            yield f"\n{title}"
            ranked = sorted(counts.items(), key=lambda item: -item[1])
            yield from (f"  {count:>12,}  {printable(name)}" for name, count in ranked)
    if row["quotas"]:
        yield "\nquotas: what of them is used now, and the rate at which they fill again"
        for limit, use in row["quotas"].items():
            yield f"  {max(0.0, use['used']):>12.0%}  {limit}, {use['per_second']:,.0f} a second"


def _over_quotas(rows: Sequence[Document], period: str) -> Iterator[str]:
    """Yield whose requests a quota refused, also long after: the use of a quota falls within seconds."""
    counts = [
        (count, row["source"] or NAMELESS, limit)
        for row in rows
        for limit, count in row[period]["refused_quotas"].items()
    ]
    if counts:
        yield f"{sum(count for count, *_ in counts):,} requests over a quota; most of them from"
    for count, source, limit in sorted(counts, key=lambda one: -one[0])[:SENDERS_SHOWN]:
        yield f"  {count:>8,}  {printable(source)}: {limit}"


def _unknown_keys(unknown: Document) -> Iterator[str]:
    if not unknown["requests"]:
        return
    yield f"{unknown['requests']:,} requests with an unknown write key; most of them from"
    for sender in unknown["senders"][:SENDERS_SHOWN]:
        who = f"{sender['address']}  {printable(sender['key'])}...  {sender['library']}"
        yield f"  {sender['requests']:>8,}  {who}"


def _sum(counts: Mapping[str, int]) -> int:
    return sum(counts.values())
