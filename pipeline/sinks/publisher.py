"""
Posts stored events to a running gateway, which gives each of them its verdict.

Runs in Spark's Python workers, one connection a task. It may post an event again, after a crash or a
lost answer, as often as it likes: the gateway knows what it has stored.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import PipelineError

PATH = "/v1/events"
REQUEST_EVENTS_MAX = 250
REQUEST_BYTES_MAX = 1024 * 1024  # an eighth of what a gateway takes by default
REQUEST_TIMEOUT_S = 30.0
RETRY_FOR_S = 600.0  # longer than a rolling update; then the batch fails, and is repeated at the next start
RETRY_AFTER_S = 1.0  # where the gateway does not say

RETRIED = frozenset({408, 425, 429})
"""And every 5xx: the gateway's own, and those of a proxy whose gateway restarts."""

BAD_BODIES = frozenset({"invalid_json", "body_too_large", "request_too_large", "too_many_events"})
"""Codes of a 400 for which one event may be to blame: the others are posted without it."""

VERDICTS = "accepted bigint, duplicates bigint, conflicts bigint, rejected bigint"
_ARROW = pa.schema([(name, pa.int64()) for name in ("accepted", "duplicates", "conflicts", "rejected")])


@dataclass(frozen=True)
class Target:
    """Where to post, and as whom."""

    url: str
    write_keys: Mapping[str, str]  # by source; a source that is not there is its own key
    rate: float | None  # events a second, of all tasks together; None: as fast as it goes
    tasks: int


@dataclass
class Verdicts:
    """What the gateway said, in events."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0

    def __add__(self, other: "Verdicts") -> "Verdicts":
        return Verdicts(
            self.accepted + other.accepted,
            self.duplicates + other.duplicates,
            self.conflicts + other.conflicts,
            self.rejected + other.rejected,
        )

    def __str__(self) -> str:
        return (
            f"{self.accepted:,} accepted, {self.duplicates:,} duplicates, "
            f"{self.conflicts:,} conflicts, {self.rejected:,} rejected"
        )


def publish(events: DataFrame, target: Target) -> Verdicts:
    """
    Post events, those of one partition in the order of their offsets.

    Args:
        events: partition, offset, source and value of each; and fingerprint (8 bytes) and session
            (bytes 34-89 of `gw`, or null), where the gateway that stored them gave them one.

    Raises:
        PipelineError: the gateway refused, or could not be reached for RETRY_FOR_S.
    """
    is_stored = "fingerprint" in events.columns
    nothing = F.lit(None).cast("string")
    ordered = events.select(
        "partition",
        "offset",
        F.coalesce("source", F.lit("")).alias("source"),
        # Nothing at all is no item of a batch, and null is one that the gateway rejects.
        F.when(F.length("value") > 0, F.col("value")).otherwise(F.lit(b"null")).alias("value"),
        (F.lower(F.hex("fingerprint")) if is_stored else nothing).alias("known_by"),
        (F.base64("session") if is_stored else nothing).alias("session"),
    )
    ordered = ordered.repartition(target.tasks, "partition").sortWithinPartitions("partition", "offset")
    answers = ordered.mapInArrow(_poster(target), VERDICTS)
    sums = answers.agg(*(F.sum(name).alias(name) for name in _ARROW.names)).collect()[0]
    return Verdicts(*(sums[name] or 0 for name in _ARROW.names))


def _poster(target: Target) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pace = _Pace(None if target.rate is None else target.rate / target.tasks)
        with httpx.Client(base_url=target.url, timeout=REQUEST_TIMEOUT_S) as client:
            for batch in batches:
                verdicts = Verdicts()
                columns = (
                    batch.column(name).to_pylist() for name in ("source", "value", "known_by", "session")
                )
                for source, events in _requests(map(_Posted, *columns)):
                    pace.wait(len(events))
                    verdicts += _post(client, target.write_keys.get(source, source), events)
                yield pa.record_batch([[getattr(verdicts, name)] for name in _ARROW.names], schema=_ARROW)

    return post


class _Posted(NamedTuple):
    """One event on its way."""

    source: str
    value: bytes
    known_by: str | None  # its fingerprint in hex
    session: str | None  # its client session in base64


def _requests(events: Iterable[_Posted]) -> Iterator[tuple[str, list[_Posted]]]:
    """Cut a run of events into requests: of one source each, and not too large."""
    source_before, taken, size = "", list[_Posted](), 0
    for event in events:
        is_full = len(taken) == REQUEST_EVENTS_MAX or size + len(event.value) > REQUEST_BYTES_MAX
        if taken and (is_full or event.source != source_before):
            yield source_before, taken
            taken, size = [], 0
        source_before = event.source
        taken.append(event)
        size += len(event.value)
    if taken:
        yield source_before, taken


def _post(client: httpx.Client, write_key: str, events: list[_Posted]) -> Verdicts:
    body = b'{"batch":[' + b",".join(event.value for event in events) + b"]}"
    known = [event.known_by for event in events if event.known_by is not None]
    headers = {"Gateway-Fingerprints": ",".join(known)} if len(known) == len(events) else {}
    if any(event.session for event in events):
        headers["Gateway-Sessions"] = ",".join(event.session or "" for event in events)
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        pause, said = RETRY_AFTER_S, "no answer"
        try:
            answer = client.post(PATH, content=body, headers=headers, auth=(write_key, ""))
        except httpx.TransportError as err:
            said = repr(err)
        else:
            if answer.status_code == httpx.codes.OK:
                return _verdicts(answer)
            if _code(answer) in BAD_BODIES:
                return _post_halves(client, write_key, events)
            said = f"{answer.status_code} {answer.text[:200]}"
            if answer.status_code not in RETRIED and not answer.is_server_error:
                raise PipelineError(f"the gateway refused: {said}")
            pause = float(answer.headers.get("Retry-After", pause))
        if time.monotonic() + pause > deadline:
            raise PipelineError(f"the gateway took nothing for {RETRY_FOR_S:.0f} s: {said}")
        time.sleep(pause)


def _post_halves(client: httpx.Client, write_key: str, events: list[_Posted]) -> Verdicts:
    """Post a refused request in two; an event that is refused all by itself is a rejected one."""
    if len(events) == 1:
        return Verdicts(rejected=1)
    half = len(events) // 2
    return _post(client, write_key, events[:half]) + _post(client, write_key, events[half:])


def _code(answer: httpx.Response) -> str | None:
    """Return the gateway's code of a refused request; None for anything else."""
    if answer.status_code != httpx.codes.BAD_REQUEST:
        return None
    try:
        document = answer.json()
    except ValueError:
        return None
    return document.get("code") if isinstance(document, dict) else None


def _verdicts(answer: httpx.Response) -> Verdicts:
    codes = [rejection["code"] for rejection in answer.json().get("rejected", ())]
    return Verdicts(
        accepted=int(answer.headers.get("Gateway-Accepted", 0)),
        duplicates=int(answer.headers.get("Gateway-Duplicates", 0)),
        conflicts=codes.count("conflict"),
        rejected=len(codes) - codes.count("conflict"),
    )


@dataclass
class _Pace:
    """Lets through so many events a second, on the average since the first."""

    rate: float | None
    _began: float = field(default_factory=time.monotonic)
    _events: int = 0

    def wait(self, events: int) -> None:
        if self.rate is not None:
            time.sleep(max(0.0, self._began + self._events / self.rate - time.monotonic()))
        self._events += events
