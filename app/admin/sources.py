"""
The sources: what each sends, since the workers' starts and today, its quotas, and who sends unknown keys.

Today begins at 00:00 UTC, or with the worker if that started later. In a group the figures are the sums of
all workers that answer, except uses of quotas, which are those of the worker nearest to its limit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Response
from prometheus_client.core import CounterMetricFamily, Metric

from app.admin.answers import json_answer
from app.admin.group import ask_others
from app.admin.ingest_loop import IngestLoop
from app.admin.scopes import READ
from app.admin.scraped import ScrapedCollector
from app.auth.ingress_limits import IngressLimits
from app.auth.key_file import KeyFile
from app.group import GroupLanes
from app.http.refusal_counts import SOURCES_MAX, RefusalCounts
from app.http.source_use import SourceUse
from dedupe.metrics import AnswerCounts
from dedupe.model.clock import Clock

SOURCES = "sources"
"""Kind of a request between workers."""

SENDERS_TOLD = 20

GROUPS = (
    *("events", "rejected_reasons", "refused_codes", "refused_quotas"),
    *("duplicate_causes", "duplicate_libraries", "libraries"),
)
"""Of each source: by verdict, reason, error code, limit, cause, cause and library, library and version."""

Counts = dict[str, dict[str, Counter[str]]]
Document = dict[str, Any]


class Sources:
    """The figures of one worker; used in the ingest's loop."""

    def __init__(
        self,
        answers: AnswerCounts,
        refusals: RefusalCounts,
        ingress: IngressLimits,
        use: SourceUse,
        clock: Clock,
    ) -> None:
        """`use` tells when a day begins."""
        self._answers, self._refusals, self._ingress, self._use = answers, refusals, ingress, use
        self._clock = clock
        self._began_ms = self._today_ms = clock.now_ms()
        self._until_today: Counts = {}
        use.turn_day(self._began_ms)
        use.on_new_day = self._begin_day

    def _begin_day(self, began_ms: int) -> None:
        self._today_ms, self._until_today = began_ms, self._counts()

    def document(self) -> Document:
        """Return the figures of this worker; see `merged`."""
        self._use.turn_day(self._clock.now_ms())
        total = self._counts()
        return {
            "since_ms": self._began_ms,
            "today_since_ms": self._today_ms,
            "total": total,
            "today": _difference(total, self._until_today),
            "quotas": self._quotas(),
            "unknown_keys": self._unknown_keys(),
        }

    def _counts(self) -> Counts:
        counts: Counts = {}

        def add(source: str, group: str, name: str, count: int) -> None:
            if count:
                counts.setdefault(source, {}).setdefault(group, Counter())[name] += count

        first, others = self._answers.sources.first(SOURCES_MAX)
        for source, (tally, reasons) in [*first, ("", others)]:
            for name, count in asdict(tally).items():
                add(source, "events", name, count)
            for name, count in reasons.items():
                add(source, "rejected_reasons", name, count)
        for sender, count in self._refusals.by_sender.items():
            add(sender.source, "refused_codes", sender.code, count)
        for (source, limit), count in self._ingress.quotas.source_refusals.items():
            add(source, "refused_quotas", limit, count)
        for source, group, name, count in self._uses():
            add(source, group, name, count)
        return counts

    def _uses(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield what is known of the senders: source, group, name and count."""
        for (source, cause), count in self._use.duplicates.items():
            yield source, "duplicate_causes", cause.value, count
        for ((source, library, version), cause), count in self._use.copies().items():
            yield source, "duplicate_libraries", f"{cause.value}: {library} {version}".rstrip(), count
        for (source, library, version), count in self._use.requests().items():
            yield source, "libraries", f"{library} {version}".rstrip(), count

    def _quotas(self) -> dict[str, dict[str, Document]]:
        """Return of each source in the key file its limits with their use, that of its fullest key."""
        keys, quotas = self._ingress.write_keys, dict[str, dict[str, Document]]()
        for _, known in keys.items() if isinstance(keys, KeyFile) else ():
            own = quotas.setdefault(known.source.id, {})
            if known.source.allowance is not None:
                for limit, rate, used in known.source.allowance.uses():
                    if limit not in own or own[limit]["used"] < used:
                        own[limit] = {"per_second": round(rate, 3), "used": round(used, 4)}
        return quotas

    def _unknown_keys(self) -> Document:
        keys = self._ingress.write_keys
        if not isinstance(keys, KeyFile):
            return {"requests": 0, "senders": []}
        senders = [{**sender._asdict(), **asdict(count)} for sender, count in keys.unknown.top()]
        return {"requests": keys.unknown.requests, "senders": senders}


class SourceCollector(ScrapedCollector):
    """Collects at each scrape, in the ingest's event loop."""

    def __init__(self, use: SourceUse) -> None:
        self._use = use

    def collect(self) -> Iterator[Metric]:
        duplicates = CounterMetricFamily(
            "gateway_source_duplicates",
            "Duplicates by source and why they came: retry, same_request, input, other",
            labels=["source", "cause"],
        )
        for (source, cause), count in self._use.duplicates.items():
            duplicates.add_metric([source, cause.value], count)
        requests = CounterMetricFamily(
            "gateway_source_requests",
            "Requests with a decided event by source, library and its version",
            labels=["source", "library", "version"],
        )
        for sender, count in self._use.requests().items():
            requests.add_metric(list(sender), count)
        yield from (duplicates, requests)


def add_sources(app: FastAPI, sources: Sources, group: GroupLanes | None, ingest_loop: IngestLoop) -> None:
    """Add the path."""

    async def own(_body: Any = None) -> Document:
        return sources.document()

    if group is not None:
        group.handler.requests[SOURCES] = own

    async def of_all() -> Document:
        others, silent = ({}, {}) if group is None else await ask_others(group, SOURCES)
        return merged([sources.document(), *others.values()]) | {"silent": silent}

    @app.get("/admin/v1/sources", dependencies=[READ])
    async def get_sources() -> Response:
        """
        Return what each source sends, since the workers' starts and today (since 00:00 UTC).

        In a group of all workers that answer; `silent` names the others.
        """
        return json_answer(await ingest_loop.run(of_all))


def merged(documents: Iterable[Mapping[str, Any]]) -> Document:
    """Return the sum of n >= 1 workers, the sources with most events first; "" is all that have no name."""
    workers = list(documents)
    total, today, quotas = Counts(), Counts(), dict[str, dict[str, Document]]()
    for worker in workers:
        _add(total, worker["total"])
        _add(today, worker["today"])
        for source, limits in worker["quotas"].items():
            own = quotas.setdefault(source, {})
            for limit, use in limits.items():
                if limit not in own or own[limit]["used"] < use["used"]:
                    own[limit] = use
    names = sorted({*total, *quotas}, key=lambda name: (-_events(total, name), name))
    senders = [sender for worker in workers for sender in worker["unknown_keys"]["senders"]]
    senders.sort(key=lambda sender: -sender["requests"])
    return {
        "workers": len(workers),
        "since_ms": max(worker["since_ms"] for worker in workers),
        "today_since_ms": max(worker["today_since_ms"] for worker in workers),
        "sources": [
            {
                "source": name,
                "today": _filled(today.get(name, {})),
                "total": _filled(total.get(name, {})),
                "quotas": quotas.get(name, {}),
            }
            for name in names
        ],
        "unknown_keys": {
            "requests": sum(worker["unknown_keys"]["requests"] for worker in workers),
            "senders": senders[:SENDERS_TOLD],
        },
    }


def _events(counts: Counts, source: str) -> int:
    return sum(counts.get(source, {}).get("events", {}).values())


def _filled(groups: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    return {name: dict(groups.get(name, {})) for name in GROUPS}


def _add(counts: Counts, more: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
    for source, groups in more.items():
        for group, values in groups.items():
            counts.setdefault(source, {}).setdefault(group, Counter()).update(values)


def _difference(counts: Counts, earlier: Counts) -> Counts:
    """Return what has come since; the lists of sources only grow."""
    return {
        source: {
            group: values - earlier.get(source, {}).get(group, Counter()) for group, values in groups.items()
        }
        for source, groups in counts.items()
    }
