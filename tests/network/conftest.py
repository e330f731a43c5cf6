"""Three brokers and three workers in network namespaces, and what their clients saw of a fault."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from dedupe.storage.kafka.cluster import group_of
from tests.support.kafka import KafkaBroker, create_topic
from tests.support.switch import Node, Switch
from tests.support.verdict import assert_exactly_once, read_kafka
from tests.support.waiting import PATIENCE_S, until_in_thread
from tests.support.workers import LOST, Load, Roamer, Said, Worker, Workers

PARTITIONS = 6
SAFE = {"min.insync.replicas": "2", "retention.ms": "-1"}
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
BROKERS = [f"10.77.0.{number}" for number in (11, 12, 13)]
CONTROLLER = 1
"""The node without which no leader moves: there is one controller, so it is never the one that is frozen."""
HERE = "10.77.0.254"
CALM_S = 5.0  # of load before a fault
OUT_FROM_S = 12.0
"""After it a worker counts as out if most of what its own clients ask is refused."""


class NodeWorker(Worker):
    """A worker in a namespace."""

    def __init__(self, folder: Path, name: str, env: Mapping[str, str], node: Node) -> None:
        at = {
            "GATEWAY_HOST": node.address,
            "GATEWAY_ADMIN_HOST": node.address,
            "GATEWAY_PEER_LISTEN": f"{node.address}:0",
        }
        super().__init__(folder, name, {**env, **at})
        self.node = node
        self.forks = False  # a forked one would be where its parent is
        self.url = f"http://{node.address}:{self.port}"
        self.admin_url = f"http://{node.address}:{self.admin_port}"

    def start(self, **options: object) -> None:
        """See Gateway; within its namespace."""
        self.node.run(lambda: super(NodeWorker, self).start(**options))  # type: ignore[arg-type]


class Wanderer(Roamer):
    """A client that tries another worker after each one that has not accepted."""

    request_timeout_s = 10.0
    _avoided: Worker | None = None

    async def _post(self, body: bytes) -> bytes | None:
        if self._only is not None:
            return await super()._post(body)
        self._only = self._rng.choice([worker for worker in self._workers if worker is not self._avoided])
        try:
            return await super()._post(body)
        finally:
            self._avoided = self._only if self.said[-1].status != 200 else None
            self._only = None


class NodeWorkers(Workers):
    """A group whose workers are in namespaces."""

    def __init__(self, folder: Path, env: Mapping[str, str], nodes: list[Node]) -> None:
        self._nodes = dict(zip(("A", "B", "C"), nodes, strict=True))
        super().__init__(folder, env, 0)
        self.all = [self.new(name) for name in self._nodes]

    def new(self, name: str, **env: str) -> Worker:
        """See Workers."""
        return NodeWorker(self._folder, name, {**self._env, **env}, self._nodes[name])

    def client(self, *, lost: float = LOST) -> Roamer:
        """See Workers."""
        client = Wanderer(self.all, seed=len(self.clients), lost=lost)
        self.clients.append(client)
        return client


@dataclass
class Seen:
    """What clients saw from a fault's begin to its end."""

    began: float = 0.0
    ended: float = 0.0
    said: list[Said] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    unready: set[str] = field(default_factory=set)
    calm_s: float = 0.0  # the longest that a request took before: what the machine itself costs
    whole_s: float = 0.0

    @property
    def gap_s(self) -> float:
        """The longest time of a roaming client without a 200."""
        return max(self.gaps_s)

    def out(self) -> set[str]:
        """Return the workers that refuse most of what their own clients ask."""
        late = [said for said in self.said if self.began + OUT_FROM_S <= said.at <= self.ended]
        names = {said.worker for said in late}
        return {name for name in names if _refused(late, name) > 0.5}


def _refused(said: list[Said], worker: str) -> float:
    answers = [each.status for each in said if each.worker == worker]
    return sum(status != 200 for status in answers) / len(answers)


@dataclass
class Scene:
    """The group under load, and the network that it is on."""

    switch: Switch
    brokers: list[KafkaBroker]
    workers: NodeWorkers
    topic: str
    stay: Load
    roam: Load

    def address(self, name: str) -> list[str]:
        """Return the address of a worker."""
        return [self.workers.all["ABC".index(name)].node.address]  # type: ignore[attr-defined]

    @asynccontextmanager
    async def fault(self, seconds: float) -> AsyncIterator[Seen]:
        """Let what the body does last so long, heal it, and wait until every lane is served and followed."""
        seen = Seen(began=time.monotonic(), calm_s=self.roam.slowest_s())
        yield seen
        readiness = asyncio.ensure_future(self._watch_readiness(seen))
        await asyncio.sleep(seconds)
        readiness.cancel()
        seen.ended = time.monotonic()
        self.switch.heal()
        for broker in self.brokers:
            broker.thaw()
        await until_in_thread(self._is_whole)
        seen.whole_s = time.monotonic() - seen.ended
        seen.said = self.stay.said(seen.began)
        for client in self.roam.clients:
            good = [said.at + said.seconds for said in client.said if said.status == 200]
            times = [seen.began, *(at for at in good if seen.began < at < seen.ended), seen.ended]
            seen.gaps_s.append(max(after - before for before, after in pairwise(times)))

    def _is_whole(self) -> bool:
        """Whether each lane is served and followed: who gave one up has none for a minute."""
        columns = list(zip(*(worker.states() for worker in self.workers.all), strict=True))
        return all(column.count("active") == column.count("following") == 1 for column in columns)

    async def _watch_readiness(self, seen: Seen) -> None:
        while True:
            await asyncio.sleep(1)
            late = time.monotonic() - seen.began >= OUT_FROM_S
            ready = [await asyncio.to_thread(worker.is_ready) for worker in self.workers.all]
            if late:
                names = {
                    worker.name for worker, is_so in zip(self.workers.all, ready, strict=True) if not is_so
                }
                seen.unready |= names


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """This process, the brokers, and three workers."""
    made: list[Node] = []
    try:
        made.append(Node([HERE], device="gwprove", is_apart=False))
        made.append(Node(BROKERS))
        made += [Node([f"10.77.0.{number}"]) for number in (1, 2, 3)]
        yield made
    finally:
        for node in made:
            node.close()


@pytest.fixture(scope="module")
def switch(nodes: list[Node]) -> Iterator[Switch]:
    with Switch(nodes) as switch:
        yield switch


@pytest.fixture(scope="module")
def brokers(
    nodes: list[Node], switch: Switch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[KafkaBroker]]:
    """Three in one namespace, each at an address of its own."""
    folder, node = tmp_path_factory.mktemp("brokers"), nodes[1]
    first = KafkaBroker(folder / "1", properties=REPLICATED)
    all_of = [first, *(first.joined_by(folder / str(number), node_id=number) for number in (2, 3))]
    for broker, address in zip(all_of, BROKERS, strict=True):
        at = {"advertised.listeners": f"PLAINTEXT://{address}:{broker.port}"}
        controller = f",CONTROLLER://127.0.0.1:{first._controller_port}" if broker is first else ""
        at["listeners"] = f"PLAINTEXT://0.0.0.0:{broker.port}{controller}"
        broker._properties = {**broker._properties, **at}
    try:
        for broker in all_of:
            node.run(broker.start)
        yield all_of
    finally:
        for broker in reversed(all_of):
            broker.stop()


async def coordinator_of(servers: str, topic: str) -> int:
    """Return the node that coordinates the group of a topic's workers."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(GroupCoordinatorNotAvailableError):  # the first question creates a topic
                    return int(await admin.find_coordinator(group_of("workers", topic)))
                await asyncio.sleep(1)
    finally:
        await admin.close()


@pytest.fixture
async def scene(
    nodes: list[Node], switch: Switch, brokers: list[KafkaBroker], tmp_path: Path
) -> AsyncIterator[Scene]:
    """A group on a topic of its own; in the end everything that was acknowledged is in the log once."""
    servers = ",".join(f"{address}:{broker.port}" for address, broker in zip(BROKERS, brokers, strict=True))
    topic = f"events-{uuid.uuid4().hex[:12]}"
    while await coordinator_of(servers, topic) == CONTROLLER:
        topic = f"events-{uuid.uuid4().hex[:12]}"
    for name, partitions in ((topic, PARTITIONS), (f"{topic}.quarantine", 1)):
        await create_topic(servers, name, partitions=partitions, replication_factor=3, configs=SAFE)
    env = {
        "GATEWAY_LOG": "kafka",
        "GATEWAY_KAFKA_BOOTSTRAP_SERVERS": servers,
        "GATEWAY_TOPIC": topic,
        "GATEWAY_PARTITIONS": str(PARTITIONS),
    }
    workers = NodeWorkers(tmp_path, env, nodes[2:])
    try:
        await workers.start()
        async with workers.load(3) as stay, workers.load(3) as roam:
            for client, worker in zip(stay.clients, workers.all, strict=True):
                client.stay_with(worker)
            await asyncio.sleep(CALM_S)
            try:
                yield Scene(switch, brokers, workers, topic, stay, roam)
            finally:
                switch.heal()
                for client in stay.clients:
                    client.stay_with(None)
        await workers.repeat()
        assert_exactly_once(await read_kafka(servers, topic, PARTITIONS), workers.clients)
    finally:
        switch.heal()
        await workers.stop()
