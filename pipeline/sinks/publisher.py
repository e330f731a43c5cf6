"""
Posts stored events to a running gateway, which accepts, rejects or recognizes each of them.

Runs in Spark's Python workers, one connection a task. It may post an event again after a crash or a lost
answer: the gateway deduplicates.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import NamedTuple

import httpx
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from dedupe.model.record import FLAG_CLOUDEVENT
from pipeline.errors import PipelineError
from pipeline.schema import LOG_EPOCH

PATH = "/v1/events"
CLOUDEVENTS_PATH = "/v1/cloudevents"
REQUEST_EVENTS_MAX = 250
REQUEST_BYTES_MAX = 1024 * 1024  # an eighth of what a gateway takes by default
REQUEST_TIMEOUT_S = 30.0
RETRY_FOR_S = 600.0  # longer than a rolling update; then the batch fails, and the next start repeats it
RETRY_AFTER_S = 1.0  # without a Retry-After header

RETRIED = frozenset({408, 425, 429})
"""And every 5xx, of the gateway or of a proxy."""

BAD_BODIES = frozenset({"invalid_json", "body_too_large"})
"""Codes of a 400 that one event may cause: the others are posted without it."""


@dataclass(frozen=True)
class GatewayTarget:
    """A gateway, and the write keys for it."""

    url: str
    write_keys: Mapping[str, str]  # by source; the key of any other source is its name
    rate: float | None  # events a second, over all tasks; None: unlimited
    tasks: int


@dataclass
class PostedCounts:
    """How many events the gateway accepted and how it answered the others."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0

    def __add__(self, other: "PostedCounts") -> "PostedCounts":
        return PostedCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.accepted:,} accepted, {self.duplicates:,} duplicates, "
            f"{self.conflicts:,} conflicts, {self.rejected:,} rejected"
        )


_COUNTS = pa.schema([(field.name, pa.int64()) for field in fields(PostedCounts)])


def publish(events: DataFrame, target: GatewayTarget) -> PostedCounts:
    """
    Post events, those of one partition in the order of their offsets, one log after the other.

    Args:
        events: partition, offset, source and value of each; log_epoch of those of an archive; of events
            that a gateway stored, also fingerprint (8 bytes), flags, and session (bytes 34-89 of `gw`, or
            null).

    Raises:
        PipelineError: the gateway refused, or was unreachable for RETRY_FOR_S.
    """
    is_stored = "fingerprint" in events.columns
    nothing = F.lit(None).cast("string")
    order = ["partition", *([LOG_EPOCH] if LOG_EPOCH in events.columns else []), "offset"]
    ordered = events.select(
        *order,
        F.coalesce("source", F.lit("")).alias("source"),
        # An empty value would be no item of the batch; the gateway rejects null.
        F.when(F.length("value") > 0, F.col("value")).otherwise(F.lit(b"null")).alias("value"),
        (F.lower(F.hex("fingerprint")) if is_stored else nothing).alias("fingerprint"),
        (F.base64("session") if is_stored else nothing).alias("session"),
        (_is_cloudevent() if is_stored else F.lit(False)).alias("is_cloudevent"),
    )
    ordered = ordered.repartition(target.tasks, "partition").sortWithinPartitions(*order)
    answers = ordered.mapInArrow(_poster(target), from_arrow_schema(_COUNTS))
    sums = answers.agg(*(F.sum(name).alias(name) for name in _COUNTS.names)).collect()[0]
    return PostedCounts(*(sums[name] or 0 for name in _COUNTS.names))


def _is_cloudevent() -> Column:
    return F.coalesce(F.col("flags").bitwiseAND(FLAG_CLOUDEVENT) != 0, F.lit(False))


def _poster(target: GatewayTarget) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        limit = _RateLimit(None if target.rate is None else target.rate / target.tasks)
        with httpx.Client(base_url=target.url, timeout=REQUEST_TIMEOUT_S) as client:
            for batch in batches:
                counts = PostedCounts()
                columns = (batch.column(name).to_pylist() for name in _Posted._fields)
                for events in _requests(map(_Posted, *columns)):
                    limit.wait(len(events))
                    source = events[0].source
                    counts += _post(client, target.write_keys.get(source, source), events)
                yield pa.record_batch([[getattr(counts, name)] for name in _COUNTS.names], schema=_COUNTS)

    return post


class _Posted(NamedTuple):
    """One event of a request."""

    source: str
    value: bytes
    fingerprint: str | None  # in hex
    session: str | None  # in base64
    is_cloudevent: bool = False


def _requests(events: Iterable[_Posted]) -> Iterator[list[_Posted]]:
    """Cut events into requests of one source, one dialect and bounded size."""
    batch, size = list[_Posted](), 0
    for event in events:
        is_full = len(batch) == REQUEST_EVENTS_MAX or size + len(event.value) > REQUEST_BYTES_MAX
        if batch and (is_full or _kind(event) != _kind(batch[0])):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event.value)
    if batch:
        yield batch


def _kind(event: _Posted) -> tuple[str, bool]:
    return event.source, event.is_cloudevent


def _post(client: httpx.Client, write_key: str, events: list[_Posted]) -> PostedCounts:
    path, body = _body_of(events)
    fingerprints = [event.fingerprint for event in events if event.fingerprint is not None]
    headers = {"Prefer": "handling=strict"}  # else parts of a value that is no JSON could be taken for events
    if len(fingerprints) == len(events):
        headers["Gateway-Fingerprints"] = ",".join(fingerprints)
    if any(event.session for event in events):
        headers["Gateway-Sessions"] = ",".join(event.session or "" for event in events)
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        pause, reason = RETRY_AFTER_S, "no answer"
        try:
            answer = client.post(path, content=body, headers=headers, auth=(write_key, ""))
        except httpx.TransportError as err:
            reason = repr(err)
        else:
            if answer.status_code == httpx.codes.OK:
                return _counts(answer)
            if _code(answer) in BAD_BODIES:
                return _post_halves(client, write_key, events)
            reason = f"{answer.status_code} {answer.text[:200]}"
            if answer.status_code not in RETRIED and not answer.is_server_error:
                raise PipelineError(f"the gateway refused: {reason}")
            pause = float(answer.headers.get("Retry-After", pause))
        if time.monotonic() + pause > deadline:
            raise PipelineError(f"the gateway accepted nothing for {RETRY_FOR_S:.0f} s: {reason}")
        time.sleep(pause)


def _body_of(events: list[_Posted]) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    items = b",".join(event.value for event in events)
    return (
        (CLOUDEVENTS_PATH, b"[%b]" % items) if events[0].is_cloudevent else (PATH, b'{"batch":[%b]}' % items)
    )


def _post_halves(client: httpx.Client, write_key: str, events: list[_Posted]) -> PostedCounts:
    """Post a refused request in two halves; an event that is refused alone counts as rejected."""
    if len(events) == 1:
        return PostedCounts(rejected=1)
    half = len(events) // 2
    return _post(client, write_key, events[:half]) + _post(client, write_key, events[half:])


def _code(answer: httpx.Response) -> str | None:
    """Return the error code of a 400; None for any other answer."""
    if answer.status_code != httpx.codes.BAD_REQUEST:
        return None
    try:
        document = answer.json()
    except ValueError:
        return None
    return document.get("code") if isinstance(document, dict) else None


def _counts(answer: httpx.Response) -> PostedCounts:
    codes = [rejection["code"] for rejection in answer.json().get("rejected", ())]
    return PostedCounts(
        accepted=int(answer.headers.get("Gateway-Accepted", 0)),
        duplicates=int(answer.headers.get("Gateway-Duplicates", 0)),
        conflicts=codes.count("conflict"),
        rejected=len(codes) - codes.count("conflict"),
    )


@dataclass
class _RateLimit:
    """Limits the average rate since the first event."""

    rate: float | None
    _began: float = field(default_factory=time.monotonic)
    _events: int = 0

    def wait(self, events: int) -> None:
        if self.rate is not None:
            time.sleep(max(0.0, self._began + self._events / self.rate - time.monotonic()))
        self._events += events
