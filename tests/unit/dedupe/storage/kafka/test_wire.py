"""Claim: a response is read only if it is about the request's partition; no request creates a topic."""

import struct
from typing import Any

import pytest
from aiokafka import TopicPartition

from dedupe.model.errors import RetriableError
from dedupe.storage.kafka.wire import PRODUCE_VERSIONS, ProduceCodec, metadata_request, response_for

TP = TopicPartition("events", 7)
OTHERS = [TopicPartition("events", 8), TopicPartition("others", 7)]
CODEC = ProduceCodec(TP, timeout_ms=8000)


def landed_at(tp: TopicPartition, code: int, offset: int, version: int = 3, throttle_ms: int = 0) -> bytes:
    """Return the answer to a Produce, made by hand from Kafka's description of the protocol."""
    topic = tp.topic.encode()
    place = struct.pack(f">ih{len(topic)}sii", 1, len(topic), topic, 1, tp.partition)
    log_start = struct.pack(">q", 0) if version >= 5 else b""
    no_errors = struct.pack(">ih", 0, -1) if version >= 8 else b""
    result = struct.pack(">hqq", code, offset, -1)
    return place + result + log_start + no_errors + struct.pack(">i", throttle_ms)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_code_offset_and_throttle_time_are_found_in_each_version(version: int) -> None:
    assert CODEC.decode(landed_at(TP, 6, 2**40, version, 1500)) == (6, 2**40, -1, 1.5)


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_response_about_another_partition_is_an_error(other: TopicPartition) -> None:
    with pytest.raises(RetriableError, match="not about its partition"):
        CODEC.decode(landed_at(other, 0, 5))
    with pytest.raises(RetriableError, match="instead of"):
        response_for(TP, [(other.topic, [(other.partition, 0)])])


def test_response_that_is_cut_off_is_an_error() -> None:
    whole = landed_at(TP, 0, 5)
    for size in range(len(whole) - 12):
        with pytest.raises(RetriableError):
            CODEC.decode(whole[:size])


@pytest.mark.parametrize(
    "topics", [None, [], [("events", [])], [("events", [(7, 0), (8, 0)])], [("events",)]]
)
def test_response_about_none_or_several_partitions_is_an_error(topics: Any) -> None:
    assert response_for(TP, [("events", [(7, 0, 5)])]) == (0, 5)
    with pytest.raises(RetriableError, match="cannot be read"):
        response_for(TP, topics)


def test_no_request_for_metadata_creates_a_topic() -> None:
    request: Any = metadata_request(["events"])
    assert request.topics == ["events"]
    assert not request.allow_auto_topic_creation
