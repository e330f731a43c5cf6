"""
What a restart of this worker would risk now: for whoever restarts workers one after another.

Decided from what the workers of the group say of themselves, like any other statistics: it may be out of
date a moment later, and a restart that goes against it costs time, not events.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Response

from app.admin.answers import json_answer
from app.admin.group import Read, ask_others
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.group import GroupLanes

Stats = Mapping[str, Any]


class Risk(NamedTuple):
    """One thing that a restart might make worse."""

    code: str
    detail: str
    is_danger: bool = True  # wait with the restart, if it can wait
    partitions: Sequence[str] = ()


def add_pre_restart(app: FastAPI, group: GroupLanes | None, read: Read, ingest_loop: IngestLoop) -> None:
    """Add the path; `read` returns this worker's statistics, in the ingest's loop."""

    @app.get("/admin/v1/pre-restart", dependencies=[READ])
    async def get_pre_restart() -> Response:
        """Tell what a restart of this worker would risk now; `safe` if nothing speaks against it."""

        async def ask() -> dict[str, Any]:
            told, silent = ({}, {}) if group is None else await ask_others(group)
            return document_of(read(), told, silent)

        return json_answer(await ingest_loop.run(ask))


def document_of(own: Stats, others: Mapping[str, Stats], silent: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer, from what this worker and the others say, and who says nothing."""
    risks = list(risks_of(own, others, silent))
    return {
        "worker": own["worker"],
        "safe": not any(risk.is_danger for risk in risks),
        "risks": [
            {
                "code": risk.code,
                "danger": risk.is_danger,
                "detail": risk.detail,
                "partitions": list(risk.partitions),
            }
            for risk in risks
        ],
        "serves": _served(own),
        "taken_over_at_once": [name for name in _served(own) if name in _ready_elsewhere(others)],
        "in_flight": own["in_flight"],
    }


def risks_of(own: Stats, others: Mapping[str, Stats], silent: Mapping[str, str]) -> Iterator[Risk]:
    """Yield what speaks against a restart now, what concerns this worker alone last."""
    if own["group"] is None:
        told = "nobody else takes events: clients get 503 and retry until it serves again"
        yield Risk("alone", told, is_danger=False)
    else:
        yield from _group_risks(own, others, silent)
    if in_doubt := [name for name, lane in _lanes(own) if lane["in_doubt"]]:
        yield Risk("in_doubt", "nobody knows yet whether some events are committed", partitions=in_doubt)
    if failed := [name for name, lane in _lanes(own) if lane["last_error"]]:
        yield Risk("failing", "see last_error: a restart mends it seldom", partitions=failed)
    if restoring := [name for name, lane in _lanes(own) if lane["state"] == "restoring"]:
        yield Risk("restoring", "it is on its way to serving, and would begin later", partitions=restoring)
    if not own["disk"]["has_room"]:
        yield Risk("disk_full", "an index that has to be rebuilt may find no room")


def _group_risks(own: Stats, others: Mapping[str, Stats], silent: Mapping[str, str]) -> Iterator[Risk]:
    for name, why in silent.items():
        yield Risk("silent_worker", f"{name} does not answer: {why}")
    for name in (name for name, stats in others.items() if stats["group"]["leaving"]):
        yield Risk("leaving_worker", f"{name} is on its way out: two at once are fewer than planned")
    served_anywhere = {name for stats in (own, *others.values()) for name in _served(stats)}
    if unserved := [name for name, _ in _lanes(own) if name not in served_anywhere]:
        yield Risk("unserved", "nobody serves them now", partitions=unserved)
    ready = _ready_elsewhere(others)
    if bare := [name for name in _served(own) if name not in ready]:
        yield Risk(
            "no_standby",
            "no other worker's index is at the log's end: they are not served until one has replayed it",
            partitions=bare,
        )


def _lanes(stats: Stats) -> Iterator[tuple[str, Stats]]:
    """Yield all lanes of a worker by name: the clean ones by number, those of quarantine as q0, q1, ..."""
    for prefix, lanes in (("", stats["partitions"]), ("q", stats["quarantine"])):
        for lane in lanes:
            yield f"{prefix}{lane['partition']}", lane


def _served(stats: Stats) -> list[str]:
    return [name for name, lane in _lanes(stats) if lane["state"] == "active"]


def _ready_elsewhere(others: Mapping[str, Stats]) -> set[str]:
    """Return the lanes that another worker, which stays, would take over at once."""
    return {
        name
        for stats in others.values()
        if not stats["group"]["leaving"]
        for name, lane in _lanes(stats)
        if lane["caught_up"]
    }
