"""`gateway group` and `gateway drain`: shows a group of workers, and moves the partitions of one to
others."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from app.cli.admin_client import AdminClient
from app.cli.console import guarded
from app.cli.options import DEFAULT_URL, WIDTH, Format, Screen, Token, Url, print_rows

TIMEOUT_S = 60.0
"""A drain waits until other workers serve the partitions, a second or two for each move."""

RISKS = {
    "silent_worker": "another worker does not answer",
    "leaving_worker": "another worker hands its partitions over",
    "unserved": "a partition is served by nobody",
    "no_standby": "nobody else could take a partition of its over at once",
    "in_doubt": "it does not know yet whether some events are stored",
    "failing": "a partition of its fails",
    "restoring": "it restores a partition",
    "disk_full": "its disk is full",
}
"""What each risk of a restart is."""

NOT_OWNED = ("unassigned", "following")
"""States of partitions whose last error is over: others serve them, or nobody, which is another risk."""

ALONE = """It is in no group: during a restart clients get no answer, and send again.
What was acknowledged stays stored."""
"""Said of a gateway whose restart nobody bridges."""

Stats = Mapping[str, Any]


@guarded
def group(url: Url = DEFAULT_URL, admin_token: Token = None, output: Screen = None) -> None:
    """
    Print one line for each worker of the group; --url may be any of them.

    A line has the worker's name, the partitions that it serves and follows, and whether a restart is safe
    now; lines below say why not, and which workers do not reach each other. JSON and YAML have restart_risks
    (`no_standby`, `unserved`, `silent_worker`, `leaving_worker`, `in_doubt`, `failing`, `restoring`,
    `disk_full`), none if a restart is safe, and a last line with the totals of all workers that answered. A
    gateway that is in no group is one of one. Exit code 1: no worker answers.

    Example: `gateway group -o json --url http://10.0.0.7:9090`
    """
    document = group_at(AdminClient(url, admin_token))
    chosen, rows = output or Format.TABLE, rows_of(document)
    if chosen is Format.TABLE:
        print_rows([_screen_row(row) for row in rows], chosen)
        for line in (*verdicts(rows), *broken_links(document)):
            typer.echo(line)
        if is_alone(document):
            typer.echo(ALONE)
        return
    end: dict[str, Any] = {
        name: document[name] for name in ("generation", "totals", "broken") if name in document
    }
    print_rows([*rows, end], chosen)


@guarded
def drain(
    url: Url = DEFAULT_URL,
    admin_token: Token = None,
    undo: Annotated[bool, typer.Option("--undo", help="Allow the worker to own partitions again.")] = False,
) -> None:
    """
    Move all partitions of a worker to other workers; it continues to answer its clients.

    Returns once other workers serve them. SIGTERM does the same before the worker ends. Exit code 1: they do
    not serve all partitions yet.

    Example: `gateway drain --url http://10.0.0.7:9090`, and `gateway drain --undo` to revert it
    """
    path = "/admin/v1/undrain" if undo else "/admin/v1/drain"
    AdminClient(url, admin_token).ask(path, method="POST", timeout_s=TIMEOUT_S)


def group_at(admin: AdminClient) -> Stats:
    """Return the statistics of a group, or those of a gateway that is in none, in the same form."""
    own = admin.ask("/admin/v1/stats", timeout_s=TIMEOUT_S)
    if own["group"] is None:
        return {"workers": {own["worker"]: own}, "silent": {}, "totals": own["totals"]}
    return admin.ask("/admin/v1/group", timeout_s=TIMEOUT_S)


def is_alone(document: Stats) -> bool:
    """Whether this is a gateway in no group."""
    return any(stats["group"] is None for stats in document["workers"].values())


def rows_of(document: Stats) -> list[dict[str, Any]]:
    """Return a row for each worker of a group, those that do not answer first."""
    rows: list[dict[str, Any]] = [
        {"worker": name, "answers": False, "why": why} for name, why in document["silent"].items()
    ]
    for name, stats in document["workers"].items():
        clean = stats["partitions"]
        rows.append(
            {
                "worker": name,
                "answers": True,
                "leaving": _is_leaving(stats),
                "serves": [of["partition"] for of in clean if of["state"] == "active"],
                "follows": [of["partition"] for of in clean if of["caught_up"]],
                "received": stats["totals"]["received"],
                "restart_risks": list(restart_risks(name, document)),
            }
        )
    return rows


def _screen_row(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row["answers"]:
        return {"worker": row["worker"], "serves": "no answer"}
    return {
        "worker": row["worker"],
        "serves": ranges(row["serves"]),
        "follows": ranges(row["follows"]),
        "received": row["received"],
        "restart": "wait" if row["restart_risks"] else "safe now",
    }


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text: 0-3,5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ",".join("-".join(map(str, ends)) for ends in found)


def verdicts(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a paragraph of 80 columns for each worker: why it does not answer, or should not restart now."""
    for row in rows:
        if not row["answers"]:
            text = f"{row['worker']} does not answer: {row['why']}"
        elif row["restart_risks"]:
            reasons = "; ".join(f"{RISKS[risk]} ({risk})" for risk in row["restart_risks"])
            text = f"{row['worker']}: a restart now is not safe: {reasons}"
        else:
            continue
        yield textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def broken_links(document: Stats) -> Iterator[str]:
    """Yield a paragraph of 80 columns for each pair of workers that do not reach each other, with reasons."""
    pairs: dict[tuple[str, ...], list[str]] = {}
    for line in document.get("broken", ()):
        link, _, why = line.partition(": ")
        pairs.setdefault(tuple(sorted(link.split(" -> "))), []).append(f"{link}: {why}")
    for pair, reasons in pairs.items():
        text = f"{' and '.join(pair)} do not reach each other ({'; '.join(reasons)})"
        yield textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def restart_risks(worker: str, document: Stats) -> Iterator[str]:
    """Yield the risks of a worker's restart, from the statistics of its group."""
    own = document["workers"][worker]
    others = [stats for name, stats in document["workers"].items() if name != worker]
    lanes = _lanes(own)
    if document["silent"]:
        yield "silent_worker"
    if any(_is_leaving(stats) for stats in others):
        yield "leaving_worker"
    served = _names(own, "state", "active")
    if lanes.keys() - served.union(*(_names(stats, "state", "active") for stats in others)):
        yield "unserved"
    staying = [stats for stats in others if not _is_leaving(stats)]
    followed = [_names(stats, "caught_up", True) for stats in staying]
    if not is_alone(document) and served.difference(*followed):
        yield "no_standby"
    if any(lane["in_doubt"] for lane in lanes.values()):
        yield "in_doubt"
    if any(lane["last_error"] and lane["state"] not in NOT_OWNED for lane in lanes.values()):
        yield "failing"
    if _names(own, "state", "restoring"):
        yield "restoring"
    if not own["disk"]["has_room"]:
        yield "disk_full"


def _is_leaving(stats: Stats) -> bool:
    return stats["group"] is not None and stats["group"]["leaving"]


def _lanes(stats: Stats) -> dict[tuple[str, int], Stats]:
    """Return a worker's statistics of each partition, of the clean topic and of quarantine."""
    return {
        (topic, lane["partition"]): lane for topic in ("partitions", "quarantine") for lane in stats[topic]
    }


def _names(stats: Stats, field: str, value: object) -> set[tuple[str, int]]:
    return {name for name, lane in _lanes(stats).items() if lane[field] == value}
