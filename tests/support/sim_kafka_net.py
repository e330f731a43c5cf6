"""
The simulated cluster's network: Kafka's frames over a transport in memory, with faults.

`SimKafkaNet.listen` makes a virtual time loop connect to it; nothing leaves the process.
"""

import asyncio
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from random import Random
from typing import Any, NamedTuple

from aiokafka.protocol.api import RequestHeader_v1, RequestStruct
from aiokafka.protocol.types import TaggedFields

from dedupe.storage.kafka.wire import MetadataRequest, TopicIdsRequest
from tests.support.sim_kafka import OFFSET_OUT_OF_RANGE, SimKafka
from tests.support.virtual_time import VirtualTimeLoop

KINDS: list[Any] = [*RequestStruct.__subclasses__(), MetadataRequest, TopicIdsRequest]
STRUCTS = {(kind.API_KEY, kind.API_VERSION): kind for kind in KINDS}

SPOKEN = {
    key: (min(version for other, version in STRUCTS if other == key), highest)
    for key, highest in sorted(STRUCTS)
}
"""Lowest and highest version by request."""

HOST = "simulated"
PORTS = (9001, 9002)
BOOTSTRAP_SERVERS = f"{HOST}:{PORTS[0]}"
LATEST, EARLIEST = -1, -2
NO_OFFSET = -1
NOT_COORDINATOR = 16

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 1, 2, 3, 10, 18
DESCRIBE_CONFIGS = 32
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 22, 24, 26
OF_COORDINATOR = (INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN)

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
NOT_LEADER = 6
OF_LEADER = (PRODUCE, FETCH, LIST_OFFSETS)

FAULTS = ("lose_request", "lose_answer", "hold_request", "hold_answer", "refuse", "move", "elect", "throttle")
"""The last ones: coordination and leadership move before the answer; a quota is used up."""
THROTTLE_S = 20.0
"""Longer than a request may take."""
HOLDS_S = (0.05, 1.0, 12.0, 40.0)
"""How long something is late: within a request's timeout (8 s), beyond it, beyond a transaction's (30 s)."""
REFUSALS = {
    PRODUCE: (6, 19),  # NOT_LEADER, NOT_ENOUGH_REPLICAS
    INIT_PRODUCER_ID: (14, 15),  # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE
    ADD_PARTITIONS_TO_TXN: (14, 15),
    END_TXN: (14, 15),
}


class SimTransport(asyncio.Transport):
    """The client's end of a connection; requests are answered one after the other, as brokers do."""

    def __init__(self, protocol: asyncio.Protocol, handle: Callable[["SimTransport", bytes], Any]) -> None:
        super().__init__()
        self._protocol = protocol
        self._received = bytearray()
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_closing = False
        self._handle = handle
        self.muted_until = 0.0
        """When the node reads from the connection again."""
        self.session_ends = math.inf
        self.work = asyncio.ensure_future(self._serve())

    def write(self, data: Any) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < size:
                break
            self._frames.put_nowait(bytes(self._received[4:size]))
            del self._received[:size]

    def reply(self, frame: bytes) -> None:
        """Send a frame to the client, if it is still there."""
        if not self._is_closing:
            self._protocol.data_received(struct.pack(">i", len(frame)) + frame)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    async def _serve(self) -> None:
        while True:
            frame = await self._frames.get()
            await asyncio.sleep(self.muted_until - asyncio.get_running_loop().time())
            await self._handle(self, frame)


class Follower(NamedTuple):
    """A replica to which the leader sends the readers of a zone."""

    node: int
    rack: str
    end: int
    """How far it has come."""
    code: int = 0
    """What it answers."""


class SimKafkaNet:
    """Two nodes of a simulated cluster; `chance` of a fault at each request of a transaction."""

    def __init__(self, kafka: SimKafka, rng: Random) -> None:
        self.kafka = kafka
        self.chance: dict[str, float] = {}
        self.holds_s: Sequence[float] = HOLDS_S
        self.session_s: float | None = None
        """How long a login lasts."""
        self.throttle_s = THROTTLE_S
        self.tiered_s = 0.0
        """How long a read of records takes; who waits less gets none, as of tiered segments of 3.6."""
        self.follower: Follower | None = None
        self.seen: Counter[tuple[str, int]] = Counter()
        self.due: dict[int, list[str | int]] = {}
        """Faults, or codes of refusals, of the next requests of a kind."""
        self.requests: list[Any] = []
        self.versions: dict[int, tuple[int, int]] = {}
        """Lowest and highest version of requests, where nodes do not speak all of aiokafka's."""
        self._rng = rng
        self.transports: list[SimTransport] = []
        self.slowness_s = 0.0
        """How long each answer takes."""
        self._frozen: dict[int, asyncio.Event] = {}

    def listen(self, loop: VirtualTimeLoop) -> None:
        """Have the loop connect to the nodes."""
        for node, port in enumerate(PORTS):
            loop.listeners[HOST, port] = partial(self._accept, node)

    def freeze(self, node: int) -> None:
        """Let a node answer nothing until `thaw`; its connections stay, and new ones are taken."""
        self._frozen[node] = asyncio.Event()

    def thaw(self, node: int) -> None:
        """Let a node read what it was sent."""
        self._frozen.pop(node).set()

    async def close(self) -> None:
        """End every connection, and what is still late on it."""
        for transport in self.transports:
            transport.work.cancel()
        await asyncio.gather(*(transport.work for transport in self.transports), return_exceptions=True)

    def _accept(self, node: int, protocol: asyncio.Protocol) -> SimTransport:
        async def handle(transport: SimTransport, frame: bytes) -> None:
            await self._handle(transport, node, frame)

        transport = SimTransport(protocol, handle)
        self.transports.append(transport)
        return transport

    async def _handle(self, transport: SimTransport, node: int, frame: bytes) -> None:
        await self._stand_still(node)
        buffer = BytesIO(frame)
        header: Any = RequestHeader_v1.SCHEMA.decode(buffer)
        api, version, correlation_id, _ = header
        kind = STRUCTS[api, version]
        if kind.FLEXIBLE_VERSION:
            TaggedFields.decode(buffer)
        request: Any = kind.decode(buffer)
        self.requests.append(request)
        await asyncio.sleep(0)
        fault = self._fault_of(api)
        if self._is_session_over(transport, api) or fault == "lose_request":
            return transport.close()
        await self._befall(fault)
        self.kafka.settle()
        if isinstance(fault, int):
            answer = self._coded(api, request, fault)
        elif fault == "refuse":
            answer = self._coded(api, request, self._rng.choice(REFUSALS[api]))
        else:
            answer = await self._answer(api, node, request)
        if fault == "lose_answer":
            return transport.close()
        if fault == "hold_answer":
            await asyncio.sleep(self._rng.choice(self.holds_s))
        if fault == "throttle":
            answer = throttled(api, answer, self.throttle_s)
            transport.muted_until = asyncio.get_running_loop().time() + self.throttle_s
        await self._stand_still(node)
        transport.reply(struct.pack(">i", correlation_id) + answer)
        return None

    async def _stand_still(self, node: int) -> None:
        await asyncio.sleep(self.slowness_s / 2)
        if node in self._frozen:
            await self._frozen[node].wait()

    def _is_session_over(self, transport: SimTransport, api: int) -> bool:
        """Whether the login of a connection has ended; another one makes it last again."""
        now = asyncio.get_running_loop().time()
        if now <= transport.session_ends and api == SASL_AUTHENTICATE and self.session_s is not None:
            transport.session_ends = now + self.session_s
        return now > transport.session_ends

    async def _befall(self, fault: str | int | None) -> None:
        """Do what befalls the cluster before a request is read."""
        if fault == "move":
            self.kafka.coordinator = 1 - self.kafka.coordinator
        if fault == "elect":
            self.kafka.leader = 1 - self.kafka.leader
        if fault == "hold_request":
            await asyncio.sleep(self._rng.choice(self.holds_s))

    def _fault_of(self, api: int) -> str | int | None:
        """Return what is due to a request, or drawn; those outside of transactions are left alone."""
        if self.due.get(api):
            return self.due[api].pop(0)
        if api not in REFUSALS:
            return None
        for fault in FAULTS:
            if self._rng.random() < self.chance.get(fault, 0.0):
                self.seen[fault, api] += 1
                return fault
        return None

    def _coded(self, api: int, request: Any, code: int) -> bytes:
        """Return the answer of an API that says nothing but an error code."""
        if api == PRODUCE:
            # Brokers say -1 here; it is the code that must be believed.
            return encoded(_produced(request, code, self.kafka.partitions[batch_of(request)[1]].end))
        if api == END_TXN:
            return encoded(request.RESPONSE_TYPE(0, code))
        if api == INIT_PRODUCER_ID:
            return encoded(request.RESPONSE_TYPE(0, code, -1, -1))
        codes = [(topic, [(n, code) for n in partitions]) for topic, partitions in request.topics]
        return encoded(request.RESPONSE_TYPE(0, codes))

    async def _answer(self, api: int, node: int, request: Any) -> bytes:
        if api in OF_COORDINATOR and node != self.kafka.coordinator:
            return self._coded(api, request, NOT_COORDINATOR)
        if api in OF_LEADER and node != self.kafka.leader and not self._is_follower(api, node):
            return self._not_leader(api, request)
        if api in REFUSALS:
            return self._answer_producer(api, request)
        if api == FETCH:
            fields = await self._fetch(node, request)
        else:
            fields = {
                METADATA: self._metadata,
                API_VERSIONS: self._api_versions,
                DESCRIBE_CONFIGS: self._configs,
                SASL_HANDSHAKE: self._sasl_handshake,
                SASL_AUTHENTICATE: self._sasl_authenticate,
                FIND_COORDINATOR: self._coordinator,
                LIST_OFFSETS: self._offsets,
            }[api](request)
        return encoded(request.RESPONSE_TYPE(*fields))

    def _not_leader(self, api: int, request: Any) -> bytes:
        if api == PRODUCE:
            return self._coded(api, request, NOT_LEADER)
        ((topic, ((number, *_),)),) = request.topics
        if api == LIST_OFFSETS:
            return encoded(request.RESPONSE_TYPE(0, [(topic, [(number, NOT_LEADER, -1, -1)])]))
        fields = (number, NOT_LEADER, -1, -1)
        if request.API_VERSION == 4:
            return encoded(request.RESPONSE_TYPE(0, [(topic, [(*fields, [], b"")])]))
        return encoded(request.RESPONSE_TYPE(0, 0, 0, [(topic, [(*fields, -1, [], -1, b"")])]))

    def _sasl_handshake(self, _request: Any) -> tuple[Any, ...]:
        return 0, ["PLAIN"]

    def _sasl_authenticate(self, request: Any) -> tuple[Any, ...]:
        lifetime = [round((self.session_s or 0) * 1000)] if request.API_VERSION else []
        return 0, None, b"", *lifetime

    def _answer_producer(self, api: int, request: Any) -> bytes:
        kafka = self.kafka
        if api == PRODUCE:
            _, partition, raw = batch_of(request)
            log = kafka.partitions[partition]
            log_time_ms = kafka.log_time_ms if kafka.has_log_append_time else -1
            return encoded(_produced(request, *log.append(raw), log_time_ms=log_time_ms))
        name = request.transactional_id
        if api == INIT_PRODUCER_ID:
            fields = kafka.init_producer_id(name, request.transaction_timeout_ms)
            return encoded(request.RESPONSE_TYPE(0, *fields))
        owner = request.producer_id, request.producer_epoch
        if api == END_TXN:
            code = kafka.end_transaction(name, *owner, is_commit=request.transaction_result)
            return encoded(request.RESPONSE_TYPE(0, code))
        ((_, partitions),) = request.topics
        return self._coded(api, request, kafka.add_partitions(name, *owner, partitions))

    def _coordinator(self, _request: Any) -> tuple[Any, ...]:
        coordinator = self.kafka.coordinator
        return 0, 0, "", coordinator, HOST, PORTS[coordinator]

    def _api_versions(self, _request: Any) -> tuple[Any, ...]:
        return 0, [(key, *versions) for key, versions in (SPOKEN | self.versions).items()]

    def _configs(self, request: Any) -> tuple[Any, ...]:
        ((kind, name, _),) = request.resources
        value = "LogAppendTime" if self.kafka.has_log_append_time else "CreateTime"
        return 0, [(0, "", kind, name, [("message.timestamp.type", value, False, 1, False, [])])]

    def _metadata(self, request: Any) -> tuple[Any, ...]:
        if isinstance(request, TopicIdsRequest):
            return {}, 0, [], "sim", 0, [(0, self.kafka.topic, self.kafka.topic_id, False, [], 0, {})], 0, {}
        brokers = [(node, HOST, port, None) for node, port in enumerate(PORTS)]
        partitions: list[Any] = [
            (0, n, self.kafka.leader, 0, [0, 1], [0, 1], []) for n in range(len(self.kafka.partitions))
        ]
        return 0, brokers, "sim", 0, [(0, self.kafka.topic, False, partitions, 0)], 0

    def _offsets(self, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, timestamp),)),) = request.topics
        partition = self.kafka.partitions[number]
        latest = partition.last_stable_offset if request.isolation_level else partition.shown
        found = {LATEST: latest, EARLIEST: 0}.get(timestamp, NO_OFFSET)
        return 0, [(topic, [(number, 0, -1, found)])]

    def _is_follower(self, api: int, node: int) -> bool:
        return api == FETCH and self.follower is not None and self.follower.node == node

    async def _fetch(self, node: int, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, *fields),)),) = request.topics
        start = fields[0] if request.API_VERSION == 4 else fields[1]
        partition = self.kafka.partitions[number]
        raw = b"".join(partition.read(start))
        if raw and self.tiered_s > request.max_wait_time / 1000:
            raw = b""
        if not raw:
            await asyncio.sleep(request.max_wait_time / 1000)
        code = OFFSET_OUT_OF_RANGE if start > partition.end else 0
        ends, preferred = (number, code, partition.end, partition.last_stable_offset), -1
        if request.API_VERSION == 4:
            return 0, [(topic, [(*ends, [], raw)])]
        if (follower := self.follower) is not None:
            if node == follower.node:
                ends = number, follower.code, follower.end, follower.end
                raw = raw if start < follower.end else b""
            elif request.rack_id == follower.rack:
                preferred, raw = follower.node, b""
        return 0, 0, 0, [(topic, [(*ends, 0, [], preferred, raw)])]


def throttled(api: int, answer: bytes, seconds: float) -> bytes:
    """Return an answer with a throttle time: the last field of Produce's, the first one of others."""
    field = struct.pack(">i", round(seconds * 1000))
    return answer[:-4] + field if api == PRODUCE else field + answer[4:]


def encoded(answer: Any) -> bytes:
    """Return an answer's bytes."""
    return bytes(answer.encode())


def batch_of(request: Any) -> tuple[str, int, bytes]:
    """Return topic, partition and records of a Produce of one batch."""
    ((topic, ((partition, raw),)),) = request.topics
    return topic, partition, raw


def _produced(request: Any, code: int, offset: int, throttle_ms: int = 0, *, log_time_ms: int = -1) -> Any:
    """Return the answer to a Produce of one batch."""
    topic, partition, _ = batch_of(request)
    fields: list[Any] = [partition, code, offset, -1 if code else log_time_ms]
    if request.API_VERSION >= 5:
        fields.append(0)
    if request.API_VERSION >= 8:
        fields += [[], None]
    return request.RESPONSE_TYPE([(topic, [tuple(fields)])], throttle_ms)
