"""
Reads one partition by Fetch requests to its leader, one after another, on a connection of its own.

aiokafka's consumer is slow to start, where recovery often wants one record, and can hang when it is stopped.
A failed request is sent again from the same position: reading has no effect.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.fetch import FetchRequest_v4, FetchRequest_v11
from aiokafka.record.memory_records import MemoryRecords

from dedupe.model.errors import RetriableError
from dedupe.model.types import LogRecord, Offset
from dedupe.storage.kafka.broker_connection import BrokerConnection
from dedupe.storage.kafka.cluster import NO_OFFSET, KafkaCluster
from dedupe.storage.kafka.config import Address, KafkaConfig
from dedupe.storage.kafka.fetched import Fetched, fetched_in
from dedupe.storage.kafka.wire import CONSUMER, READ_COMMITTED, ProducerIdAndEpoch, response_for

WAIT_MS = 100
"""The wait of a broker that has no records, before it answers."""

REMOTE_WAIT_MS = 500
"""The wait for records that are known to be there: brokers of 3.6 and 3.7 give up reading a tiered segment
after it, and the first byte of an object store takes up to 200 ms."""

FOLLOWER_S = 60.0
"""How long a follower is read from before the leader is asked again who is near: one that leaves the replicas
in sync does not say so."""

FETCH, FETCH_VERSIONS = 1, (4, 11)
STABLE_END = 2
ABORTED = {4: 3, 11: 4}
"""By version: the place of the aborted transactions among the fields of a partition in a response."""
PREFERRED = {11: 5}
"""Likewise of the broker to read from instead of this one."""
NO_EPOCH, NO_SESSION, FINAL_EPOCH, NO_RACK, NO_BROKER = -1, 0, -1, "", -1

FETCH_BYTES_OF_FEW = 64 * 1024
"""A fetch for a short read. The broker answers with one whole batch where that is larger."""

RETRY_S = 0.1
"""Between two requests of which the first returned nothing: an election takes a second."""

RESPONSE_BYTES_MAX = 2**31 - 1
"""The protocol's own limit: a broker returns one whole batch, even if that exceeds `fetch_bytes`."""


class Markers(NamedTuple):
    """The markers of a stretch of a partition."""

    producers: set[ProducerIdAndEpoch]
    is_all: bool
    """Whether the stretch holds nothing else, and was shown to its end."""

    def with_batch(self, batch: Any) -> "Markers":
        """Return them with those of one more batch."""
        if not batch.is_control_batch:
            return self._replace(is_all=False)
        return self._replace(
            producers=self.producers | {ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)}
        )


class PartitionReader:
    """
    Committed records from an offset on; never skips to another one.

    A long read in a zone with a replica in sync is one of that replica (KIP-392): below the high watermark
    all have the same. `control_markers` reads from the leader alone, whose view is what counts there.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cluster: KafkaCluster,
        tp: TopicPartition,
        start: Offset,
        *,
        fetch_bytes: int,
        wait_ms: int = WAIT_MS,
    ) -> None:
        """
        Connect at the first request; a response has about `fetch_bytes`, one batch is never split.

        A broker without records answers after `wait_ms`.
        """
        self.position = start
        """Behind the last record that was read, and behind markers that follow it."""
        self._config = config
        self._cluster = cluster
        self._tp = tp
        self.fetch_bytes = fetch_bytes
        """About what the next response may have; one record batch is never split."""
        self._wait_ms = wait_ms
        self._connection: BrokerConnection | None = None
        self._rack = config.client_rack if fetch_bytes > FETCH_BYTES_OF_FEW else NO_RACK
        self._follower_until: float | None = None
        """Until when the connection is one to a follower; None: it is to the leader."""
        self._stable_end = NO_OFFSET
        self._fetched: Fetched | None = None
        self._throttled_s = 0.0
        self._has_warned = False

    async def read(self, records_max: int) -> Sequence[LogRecord]:
        """
        Return the next records; none if only the position has moved.

        Raises:
            RetriableError: no records within the request timeout, without the time that a quota imposes;
                or a permanent error. Only `close` may follow.
        """
        before, since = self.position, monotonic()
        while True:
            try:
                records = await self._read(records_max)
            except (KafkaError, OSError, RetriableError) as err:
                if self._follower_until is not None:
                    self._stay_with_leader()
                    continue
                is_final = isinstance(err, KafkaError) and not err.retriable
                if is_final or monotonic() - since > self._config.request_timeout_s:
                    raise RetriableError(f"cannot read {self._tp}: {self._config.explain(err)}") from err
                self.close()
            else:
                if records or self.position > before:
                    return records
                if not self._throttled_s and monotonic() - since > self._config.request_timeout_s:
                    raise RetriableError(f"{self._tp} stopped delivering at offset {self.position}")
            await asyncio.sleep(max(self._throttled_s, RETRY_S))
            since += self._throttled_s

    async def poll(self, records_max: int) -> Sequence[LogRecord]:
        """
        Return the next records; none at the end of the partition, or if only the position has moved.

        Raises:
            RetriableError: no answer, or the broker refuses. Only `close` may follow.
        """
        try:
            records = await self._read(records_max)
        except (KafkaError, OSError) as err:
            raise RetriableError(f"cannot read {self._tp}: {self._config.explain(err)}") from err
        if self._throttled_s:
            await asyncio.sleep(self._throttled_s)
        return records

    def seek(self, offset: Offset) -> None:
        """Read from an offset on, on the same connection."""
        self.position, self._fetched = offset, None

    async def control_markers(self, end: Offset) -> Markers:
        """
        Return the producers of the control batches that the leader shows in [position, end).

        A deposed leader that does not know of its successor does not show all. A batch above the end proves
        nothing: the end may come from another leader. Moves the position.

        Raises:
            RetriableError: no answer, or one that cannot be read.
        """
        self._stay_with_leader()
        markers = Markers(set(), is_all=True)
        try:
            before = -1
            while before < self.position < end:
                _, raw = await self._fetch()
                if self._throttled_s:
                    await asyncio.sleep(self._throttled_s)
                    continue
                before = self.position
                with _decoding():
                    for batch in _batches_in(raw):
                        if self.position < batch.next_offset <= end:
                            self.position = batch.next_offset
                            markers = markers.with_batch(batch)
        except (KafkaError, OSError) as err:
            raise RetriableError(f"cannot read {self._tp}: {self._config.explain(err)}") from err
        return markers._replace(is_all=markers.is_all and self.position >= end)

    def close(self) -> None:
        """Close the connection and drop the unread part of its last response; raises nothing."""
        self._fetched = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._follower_until = None

    async def _read(self, records_max: int) -> Sequence[LogRecord]:
        """Return the rest of the last response, or else records of the next one; bounded."""
        if records := self._next_records(records_max):
            return records
        aborted, raw = await self._fetch()
        native = self._config.native_decode
        self._fetched = fetched_in(self._tp, raw, aborted, self.position, native=native)
        return self._next_records(records_max)

    def _next_records(self, records_max: int) -> Sequence[LogRecord]:
        """Return the next records of the last response; none if there are no more. Raises KafkaError."""
        if self._fetched is None:
            return []
        with _decoding():
            records = self._fetched.take(records_max)
        self.position = self._fetched.next_fetch_offset
        if len(records) < records_max:
            self._fetched = None
        return records

    async def _fetch(self) -> tuple[Any, bytes]:
        """
        Return the aborted transactions and the record batches from the position on; bounded.

        Both are empty, and `_throttled_s` is set, while a quota of the brokers is used up.

        Raises:
            KafkaError, OSError, RetriableError: no answer, or the leader refuses.
        """
        self._throttled_s = 0.0
        if self._follower_until is not None and monotonic() > self._follower_until:
            self.close()
        if self._connection is None or not self._connection.is_usable:
            await self._connect(await self._cluster.leader_of(self._tp))
        assert self._connection is not None
        version = self._connection.version_of(FETCH, *FETCH_VERSIONS)
        response = await self._connection.send(
            self._request(version), timeout_s=self._config.request_timeout_s
        )
        if not response.topics:
            self._throttled_s = response.throttle_time_ms / 1000
            self._warn_throttled()
            return [], b""
        fields = response_for(self._tp, response.topics)
        code, aborted, raw = fields[0], fields[ABORTED[version]], fields[-1]
        if code != 0:
            raise for_code(code)(f"error {code}")
        self._stable_end = max(self._stable_end, fields[STABLE_END])
        if self._follower_until is not None:
            if not raw and self.position < self._stable_end:  # it is behind
                self._stay_with_leader()
        elif version in PREFERRED and fields[PREFERRED[version]] != NO_BROKER:
            await self._turn_to(fields[PREFERRED[version]])
        return aborted, raw or b""

    def _request(self, version: int) -> RequestStruct:
        """Return the request for the next batches, outside of any fetch session."""
        topic, partition = self._tp
        wait_ms = REMOTE_WAIT_MS if self.position < self._stable_end else self._wait_ms
        limits = (CONSUMER, wait_ms, 1, self.fetch_bytes, READ_COMMITTED)
        if version == FETCH_VERSIONS[0]:
            return FetchRequest_v4(*limits, [(topic, [(partition, self.position, self.fetch_bytes)])])
        place = (partition, NO_EPOCH, self.position, NO_OFFSET, self.fetch_bytes)
        return FetchRequest_v11(*limits, NO_SESSION, FINAL_EPOCH, [(topic, [place])], [], self._rack)

    async def _turn_to(self, node_id: int) -> None:
        """Read from a follower that the leader names; it has returned no records with it."""
        try:
            follower = (await self._cluster.describe()).brokers.get(node_id)
            if follower is None:
                raise RetriableError(f"broker {node_id} is not known")
            await self._connect(follower)
        except (KafkaError, OSError, RetriableError):
            self._stay_with_leader()
        else:
            self._follower_until = monotonic() + FOLLOWER_S

    def _stay_with_leader(self) -> None:
        """Read from no follower any more."""
        self._rack = NO_RACK
        if self._follower_until is not None:
            self.close()

    async def _connect(self, broker: Address) -> None:
        self.close()
        async with asyncio.timeout(self._config.request_timeout_s):
            self._connection = await BrokerConnection.open(
                self._config, broker, response_bytes_max=RESPONSE_BYTES_MAX
            )

    def _warn_throttled(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            structlog.get_logger(__name__).warning(
                "a quota of the brokers slows the reading of the log", partition=self._tp
            )


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise KafkaError for any error of aiokafka's decoders, which depends on the codec of the batch."""
    try:
        yield
    except KafkaError:
        raise
    except Exception as err:
        raise KafkaError(f"a record batch cannot be read: {err!r}") from err


def _batches_in(raw: bytes) -> Iterator[Any]:
    records = MemoryRecords(raw)
    while (batch := records.next_batch()) is not None:
        yield batch
