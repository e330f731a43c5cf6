"""Claim: an answer is read only if it is about what was asked."""

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from dedupe.adapters.kafka_wire import Producer, ProducerWire

TP = TopicPartition("events", 7)
OTHERS = [TopicPartition("events", 8), TopicPartition("others", 7)]
WIRE = ProducerWire("gateway-events-7", TP, timeout_ms=8000)


def landed_at(tp: TopicPartition, code: int, offset: int) -> bytes:
    """Return the answer to a Produce, made by hand from Kafka's description of the protocol."""
    topic = tp.topic.encode()
    place = struct.pack(f">ih{len(topic)}sii", 1, len(topic), topic, 1, tp.partition)
    return place + struct.pack(">hqqi", code, offset, -1, 0)


def test_code_and_offset_are_found() -> None:
    assert WIRE.landed(landed_at(TP, 6, 2**40)) == (6, 2**40)


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_answer_about_another_partition_is_an_error(other: TopicPartition) -> None:
    answer = landed_at(other, 0, 5)
    with pytest.raises(KafkaError, match="something else"):
        WIRE.landed(answer)
    with pytest.raises(KafkaError, match="something else"):
        WIRE.begun(struct.pack(">i", 0) + answer)


def test_answer_that_is_cut_off_is_an_error() -> None:
    whole = landed_at(TP, 0, 5)
    for size in range(len(whole) - 32):
        with pytest.raises((KafkaError, struct.error)):
            WIRE.landed(whole[:size])
    with pytest.raises(struct.error):
        WIRE.ended(bytes(5))


def test_sequence_numbers_begin_anew_after_the_last_one() -> None:
    assert Producer(5, 1, 2**31 - 2).after(3) == Producer(5, 1, 1)
