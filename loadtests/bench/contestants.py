"""Everything that one run compares, started side by side: gateways, peers, and the stores behind them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.bench.peers.processes import redis_server, service
from loadtests.bench.usage import cpu_seconds, disk_bytes, rss_mib
from loadtests.bench.workload import Workload
from tests.support.gateway import Gateway
from tests.support.kafka import KafkaBroker, create_topic

PARTITIONS = 8  # the gateway's default; the peers' topics get as many

PLAIN, REDIS, GATEWAY, NATIVE, SQLITE = NAMES = (
    *("plain", "Redis"),
    *("gateway", "gateway, native", "gateway, SQLite"),
)
"""
`plain` is FastAPI and aiokafka without dedupe; `Redis` the same with SET NX in front. The first gateway and
the one on SQLite have Python alone.
"""

NATIVE_TOPIC = {"GATEWAY_NATIVE": "required", "GATEWAY_TOPIC": "native-events"}

DEFAULTS = {"GATEWAY_LOGGING_LEVEL": "warning", "GATEWAY_NATIVE": "off"}

SERVICE, KAFKA = "service", "Kafka"


@dataclass
class Contestant:
    """One service under load, the stores behind it, and what was sent to it."""

    name: str
    port: int
    pids: Mapping[str, int]  # by role: the service, Kafka, Redis
    index: Path | None = None  # what is remembered on disk
    gateway: Gateway | None = None
    history: Workload = field(default_factory=lambda: Workload(seed=1))

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each role so far."""
        return {role: cpu_seconds(pid) for role, pid in self.pids.items()}

    def rss_mib(self) -> float:
        """Return the memory of all that is its own: Kafka is everybody's."""
        return sum(rss_mib(pid) for role, pid in self.pids.items() if role != KAFKA)

    def index_bytes(self) -> int:
        """Return what it remembers on disk."""
        return disk_bytes(self.index) if self.index is not None else 0


@contextmanager
def contestants(folder: Path) -> Iterator[list[Contestant]]:
    """Start all of them on one private Kafka; what they write stays under the folder."""
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        on_kafka = {"GATEWAY_LOG": "kafka", "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        redis_port, redis_pid = stack.enter_context(redis_server(folder))
        yield [
            _gateway(stack, GATEWAY, folder / "gateway", on_kafka, {KAFKA: broker.pid}),
            _gateway(stack, NATIVE, folder / "native", on_kafka | NATIVE_TOPIC, {KAFKA: broker.pid}),
            _peer(stack, PLAIN, folder, broker),
            _peer(stack, REDIS, folder, broker, redis_port=redis_port, redis_pid=redis_pid),
            _gateway(stack, SQLITE, folder / "sqlite", {"GATEWAY_LOG": "sqlite"}, {}),
        ]


def _gateway(
    stack: ExitStack, name: str, folder: Path, env: Mapping[str, str], stores: Mapping[str, int]
) -> Contestant:
    """Start a gateway with its defaults."""
    gateway = stack.enter_context(Gateway(folder, {**DEFAULTS, **env}))
    pids = {SERVICE: gateway.process.pid, **stores}
    return Contestant(name, gateway.port, pids, gateway.data / "index", gateway)


def _peer(
    stack: ExitStack,
    name: str,
    folder: Path,
    broker: KafkaBroker,
    *,
    redis_port: int | None = None,
    redis_pid: int | None = None,
) -> Contestant:
    topic = name.lower()
    asyncio.run(create_topic(broker.bootstrap_servers, topic, partitions=PARTITIONS))
    running = service(folder, bootstrap_servers=broker.bootstrap_servers, topic=topic, redis_port=redis_port)
    port, pid = stack.enter_context(running)
    pids = {SERVICE: pid, KAFKA: broker.pid}
    return Contestant(name, port, pids if redis_pid is None else pids | {REDIS: redis_pid})
