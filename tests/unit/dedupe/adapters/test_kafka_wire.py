"""Claim: an answer is read only if it is about what was asked."""

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.adapters.kafka_wire import Producer, TransactionWire

TP = TopicPartition("events", 7)
OTHERS = [TopicPartition("events", 8), TopicPartition("others", 7)]
OF_VERSION = pytest.mark.parametrize("version", [1, 2])


def wire_of(version: int, tp: TopicPartition = TP) -> TransactionWire:
    return TransactionWire("gateway-events-7", tp, timeout_ms=8000, version=version)


def landed_at(version: int, tp: TopicPartition, code: int, offset: int) -> bytes:
    """Return the answer to a Produce, made by hand from Kafka's description of the protocol."""
    topic = tp.topic.encode()
    if version == 2:
        place = struct.pack(f">BBB{len(topic)}sBi", 0, 2, len(topic) + 1, topic, 2, tp.partition)
        return place + struct.pack(">hqqqBBBBiB", code, offset, -1, 0, 1, 0, 0, 0, 0, 0)
    place = struct.pack(f">ih{len(topic)}sii", 1, len(topic), topic, 1, tp.partition)
    return place + struct.pack(">hqqi", code, offset, -1, 0)


@OF_VERSION
def test_code_and_offset_are_found(version: int) -> None:
    assert wire_of(version).landed(landed_at(version, TP, 6, 2**40)) == (6, 2**40)


@OF_VERSION
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_answer_about_another_partition_is_an_error(version: int, other: TopicPartition) -> None:
    with pytest.raises(KafkaError, match="something else"):
        wire_of(version).landed(landed_at(version, other, 0, 5))
    if version == 1:
        begun = struct.pack(">i", 0) + landed_at(1, other, 0, 5)
        with pytest.raises(KafkaError, match="something else"):
            wire_of(version).begun(begun)


@OF_VERSION
def test_answer_that_is_cut_off_is_an_error(version: int) -> None:
    wire, producer = wire_of(version), Producer(5, 1)
    whole = landed_at(version, TP, 0, 5)
    for size in range(len(whole) - 32):
        with pytest.raises((KafkaError, struct.error)):
            wire.landed(whole[:size])
    with pytest.raises(struct.error):
        wire.ended(bytes(5), producer, 1)


def test_sequence_numbers_begin_anew_after_the_last_one() -> None:
    _, following = wire_of(1).ended(bytes(6), Producer(5, 1, 2**31 - 2), 3)
    assert following == Producer(5, 1, 1)
