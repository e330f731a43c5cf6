"""
The partition of an event. Frozen: golden vectors in tests/unit/dedupe/model/test_golden_vectors.py.

The partition count of a topic never changes: recovery refuses a log with records of another count (see
dedupe.decide.recovery).
"""

import struct

_number_of = struct.Struct(">Q").unpack_from


def partition_of(routing_key: bytes, partitions: int) -> int:
    """
    Return the partition in [0, partitions).

    Args:
        routing_key: the event key; the client hash for an event of a client session, so that one lane has the
            whole session. Only the first 8 bytes count, big-endian.
        partitions: those of the topic, >= 1.
    """
    number: int = _number_of(routing_key)[0]
    return number % partitions
