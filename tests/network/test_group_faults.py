"""
Claim: a network fault costs a group of real workers seconds and one worker at most, and never an event.

The faults are those of a network that still lets something pass: one direction, small packets, or little.
`make prove` runs these, since they need root and a TUN device (or `unshare -rn`).
"""

import asyncio
import statistics
from collections.abc import Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.network.conftest import BROKERS, PARTITIONS, Scene, Seen, coordinator_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL_BYTES = 1_000
OF_PEERS_S, OF_KAFKA_S = 10.0, 6.0
"""The longest time that a roaming client may be without a 200."""

Fault = Callable[[Scene], None]


def _cut_from_peers(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), scene.address("B") + scene.address("C"), is_cut=True)


def _cut_from_kafka(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), BROKERS, is_cut=True)


def _cut_one_way(scene: Scene) -> None:
    scene.switch.change(scene.address("A"), scene.address("B"), is_cut=True)


def _cut_pair(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), scene.address("B"), is_cut=True)


def _end_at_full_packet(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), scene.address("B"), ends_at_full=True)


def _lose_large(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), scene.address("B"), packet_bytes_max=SMALL_BYTES)


def _trickle(scene: Scene) -> None:
    scene.switch.between(scene.address("A"), scene.address("B"), bytes_per_s=4_000)


def _lose_large_to_kafka(scene: Scene) -> None:
    scene.switch.change(scene.address("A"), BROKERS, packet_bytes_max=SMALL_BYTES)


def _slow_to_kafka(scene: Scene) -> None:
    scene.switch.change(scene.address("A"), BROKERS, bytes_per_s=8_000)


def _cut_from_all(scene: Scene) -> None:
    others = scene.address("B") + scene.address("C") + BROKERS
    scene.switch.between(scene.address("A"), others, is_cut=True)


PEERS: dict[str, tuple[Fault, float]] = {
    "1 cut from peers": (_cut_from_peers, 20),
    "3 one way": (_cut_one_way, 20),
    "4 pair cut": (_cut_pair, 20),
    "6 ends at a full packet": (_end_at_full_packet, 20),
    "18a large packets vanish": (_lose_large, 40),
    "22 trickles": (_trickle, 40),
    "20 cut from all but clients": (_cut_from_all, 20),
}

KAFKA: dict[str, tuple[Fault, float, float]] = {
    "2 cut from Kafka": (_cut_from_kafka, 20, OF_KAFKA_S),
    "19a large packets to Kafka vanish": (_lose_large_to_kafka, 60, OF_PEERS_S),
    "19c 8 kB a second to Kafka": (_slow_to_kafka, 60, OF_PEERS_S),
}


@pytest.mark.parametrize("case", PEERS)
async def test_fault_between_workers_costs_one_of_them(scene: Scene, case: str) -> None:
    fault, seconds = PEERS[case]
    async with scene.fault(seconds) as seen:
        fault(scene)
    _judge(case, seen, OF_PEERS_S)
    assert seen.out() <= seen.unready, "it is said to be ready"


async def test_large_packets_that_are_few_and_vanish_cost_one_worker(scene: Scene) -> None:
    for client in (*scene.stay.clients, *scene.roam.clients):
        client.pause_s = 4.0
    async with scene.fault(40) as seen:
        _lose_large(scene)
    _judge("18b now and then", seen, OF_PEERS_S + 4.0)


@pytest.mark.parametrize("case", KAFKA)
async def test_fault_between_a_worker_and_kafka_costs_one_worker(scene: Scene, case: str) -> None:
    fault, seconds, gap_s = KAFKA[case]
    async with scene.fault(seconds) as seen:
        fault(scene)
    _judge(case, seen, gap_s)


async def test_worker_far_from_kafka_hands_its_lanes_over(scene: Scene) -> None:
    async with scene.fault(60) as seen:
        scene.switch.between(scene.address("A"), BROKERS, delay_s=1.0)
    _judge("7 Kafka is 2 s away", seen, OF_PEERS_S)
    late = [said.seconds for said in scene.stay.said(seen.began + 45) if said.worker in "BC"]
    assert statistics.median(late) < 2, "everybody waits for it"


async def test_frozen_coordinator_costs_seconds(scene: Scene) -> None:
    servers = ",".join(f"{at}:{broker.port}" for at, broker in zip(BROKERS, scene.brokers, strict=True))
    node = await coordinator_of(servers, scene.topic)
    async with scene.fault(20) as seen:
        await asyncio.to_thread(scene.brokers[node - 1].freeze)
    _judge("14b coordinator frozen", seen, OF_KAFKA_S)


async def test_worker_that_does_not_reach_one_broker_hands_its_lanes_over(scene: Scene) -> None:
    lanes = [lane["state"] for lane in scene.workers.all[0].lanes()]
    leader = await _leader(scene, lanes[:PARTITIONS].index("active"))
    async with scene.fault(60) as seen:
        scene.switch.between(scene.address("A"), [BROKERS[leader - 1]], is_cut=True)
    _judge("21 one broker of three", seen, OF_PEERS_S)


async def _leader(scene: Scene, partition: int) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=f"{BROKERS[0]}:{scene.brokers[0].port}")
    await admin.start()
    try:
        (described,) = await admin.describe_topics([scene.topic])
    finally:
        await admin.close()
    return next(int(each["leader"]) for each in described["partitions"] if each["partition"] == partition)


def _judge(case: str, seen: Seen, gap_s: float) -> None:
    print(
        f"\ncase {case}: gap {seen.gap_s:.1f} s of {gap_s:.0f}, {seen.calm_s:.1f} s without a fault,"
        f" out: {sorted(seen.out())}, unready: {sorted(seen.unready)}, whole after {seen.whole_s:.1f} s"
    )
    assert len(seen.out()) <= 1
    assert seen.gap_s <= gap_s + seen.calm_s
