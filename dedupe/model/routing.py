"""
Which partition an event belongs to. Frozen: golden vectors in tests/unit/dedupe/model/test_golden_vectors.py.

The partition count is fixed when a topic is created; recovery refuses a log whose records were
routed under another count (see dedupe.decide.recovery).
"""


def partition_of(routing_key: bytes, partitions: int) -> int:
    """
    Return the partition in [0, partitions).

    Args:
        routing_key: the event key, or for an event of a client session the client hash, so that
            one lane sees the whole session; only the first 8 bytes count, big-endian.
        partitions: of the topic, >= 1.
    """
    return int.from_bytes(routing_key[:8], "big") % partitions
