"""`gateway stats` and `gateway partitions list`: the statistics of a running gateway."""

import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded, note, write_lines
from app.cli.options import (
    DEFAULT_URL,
    WIDTH,
    Format,
    Output,
    Screen,
    Token,
    Url,
    default_format,
    print_document,
    print_rows,
    printable,
    table_of,
)
from dedupe.model.errors import RetriableError

PATH = "/admin/v1/stats"

Document = Mapping[str, Any]

CLEAR = "\x1b[H\x1b[2J"
COUNTS = ("received", "accepted", "duplicates", "conflicts", "rejected", "unknown", "refused")
ERROR_CHARS_MAX = 80
"""The limit of a partition's last error in the table."""


@guarded
def stats(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C, with rates.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Interval of --watch in seconds.")] = 2.0,
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    output: Screen = None,
) -> None:
    """
    Print the statistics of a running gateway: totals, and a line for each partition.

    JSON and YAML have all fields of /admin/v1/stats, which docs/http-api.md describes. With --watch, errors
    are printed on stderr, and the request is repeated.

    Example: `gateway stats --watch`, or `gateway stats -o json --url http://10.0.0.7:9090`
    """
    admin, chosen = AdminClient(url, admin_token), output or (default_format() if watch else Format.TABLE)
    previous: Document | None = None
    while True:
        try:
            document = admin.ask(PATH)
        except RetriableError as err:
            if not watch:
                raise
            note(str(err))
        else:
            if chosen is Format.TABLE:
                clear = CLEAR if watch and sys.stdout.isatty() else ""
                write_lines((clear + overview(document, previous)).encode())
            else:
                print_document(document, chosen)
            previous = document
        if not watch:
            return
        time.sleep(interval)


@guarded
def list_partitions(url: Url = DEFAULT_URL, admin_token: Token = None, output: Output = None) -> None:
    """
    Print a line for each partition of a running gateway: its state, window, keys, queue and last error.

    A worker of a group shows those that it serves or follows; `gateway group` shows all workers.

    Example: `gateway partitions list`, or `gateway partitions list -o yaml`
    """
    print_rows(partition_rows(AdminClient(url, admin_token).ask(PATH)), output)


def overview(document: Document, previous: Document | None = None) -> str:
    """Return a screen: the gateway, its totals, their rates since an earlier document, its partitions."""
    totals = document["totals"]
    lines = [
        f"gateway {document['version']}, up {_span(document['uptime_seconds'])}, {document['mode']}, "
        f"log {document['log']}, topic {document['topic']}"
    ]
    if document["outage"]:
        lines.append(_paragraph(f"OUTAGE: {document['outage']}"))
    seconds = document["uptime_seconds"] - (previous["uptime_seconds"] if previous else 0)
    earlier = previous["totals"] if previous and seconds > 0 else None
    counts = [
        {
            "": name,
            "events": f"{totals[name]:,}",
            **({"per s": f"{(totals[name] - earlier[name]) / seconds:,.0f}"} if earlier else {}),
        }
        for name in COUNTS
    ]
    tables = [_right(counts), *_partition_tables(document)]
    refused = document.get("refused_requests", {})  # older gateways do not say it
    if codes := refused.get("codes"):
        ranked = sorted(codes.items(), key=lambda item: -item[1])
        told = ", ".join(f"{count:,} {code}" for code, count in ranked)
        lines.append(_paragraph(f"refused requests: {told} (gateway sources says whose)"))
    disk = document.get("disk") or {"has_room": True}
    if not disk["has_room"]:
        lines.append(
            _paragraph(
                f"DISK FULL: {disk['free_bytes']:,} bytes are free, fewer than GATEWAY_DISK_FREE_MIN "
                f"({disk['free_min_bytes']:,}): requests get 503"
            )
        )
    if refused.get("before_events"):
        lines.append(f"refused before their events were known: {refused['before_events']:,} requests")
    keys = document.get("write_keys") or {}
    if keys.get("removed"):
        lines.append(f"write keys that vanished from the key file and still work: {keys['removed']:,}")
    if keys.get("unknown_requests"):
        lines.append(f"refused for an unknown write key: {keys['unknown_requests']:,} requests")
    return "".join(["\n".join(lines) + "\n\n", *tables])


def _right(counts: Sequence[Mapping[str, str]]) -> str:
    """Return names and figures as columns, figures to the right."""
    names = list(counts[0])
    rows = [names, *([row[name] for name in names] for row in counts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    ]
    return "\n".join(lines) + "\n\n"


def _partition_tables(document: Document) -> Iterator[str]:
    """Yield the last errors, and a table of the partitions of each topic, of at most 80 columns."""
    rows = partition_rows(document)
    for row in rows:
        if row["last_error"]:
            yield _paragraph(f"{row['topic']} {row['partition']}: {printable(row['last_error'])}") + "\n\n"
    for topic in (document["topic"], document["quarantine_topic"]):
        shown = [
            {
                "part": row["partition"],
                **{name: row[name] for name in ("state", "window")},
                **{name: _short(row[name]) for name in ("keys", "queue", "lag")},
                **{name: row[name] for name in ("owner", "standby") if name in row},
            }
            for row in rows
            if row["topic"] == topic
        ]
        yield f"topic {topic}\n{table_of(shown)}\n"


def _short(count: int | None) -> str | None:
    """Return a count in at most 4 characters: 999, 1.2K, 500M."""
    if count is None:
        return None
    number, unit = float(count), ""
    for unit in ("", "K", "M", "G", "T"):  # noqa: B007
        if number < 999.5:
            break
        number /= 1000
    return f"{number:.1f}{unit}" if unit and number < 9.95 else f"{number:.0f}{unit}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def partition_rows(document: Document) -> list[dict[str, Any]]:
    """Return a row for each partition, the quarantine's last."""
    topics = (("partitions", document["topic"]), ("quarantine", document["quarantine_topic"]))
    return [
        {
            "topic": topic,
            "partition": part["partition"],
            "state": part["state"],
            **({"owner": part["owner"], "standby": part["standby"]} if part.get("owner") else {}),
            "window": None if part["window_seconds"] is None else _span(part["window_seconds"]),
            "keys": part["keys"],
            "offset": part["applied_offset"],
            "queue": part["queue_events"],
            "lag": part["restore_lag"],
            "accepted": part["accepted"],
            "duplicates": part["duplicates"],
            "last_error": part["last_error"] and part["last_error"][:ERROR_CHARS_MAX],
        }
        for name, topic in topics
        for part in document[name]
    ]


def _span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes = int(seconds) // 60
    if minutes >= 24 * 60:
        return f"{minutes // (24 * 60)}d{minutes // 60 % 24}h"
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60}m"
    return f"{minutes}m{int(seconds) % 60}s" if minutes else f"{seconds:.0f}s"
