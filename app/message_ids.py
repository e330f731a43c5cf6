"""
Message ids that the gateway assigns: KSUIDs, for events whose client gave them none. Pure, frozen.

With an Idempotency-Key the id follows from the request alone, so a retry of the request gets the
same ids; golden vectors stand in tests/unit/test_identify.py. Without one the id is fresh, and the
receipt says that a retry would be stored again.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta, timezone

from ksuid import Ksuid

KSUID_EPOCH_S = 1_400_000_000
KSUID_SECONDS_MAX = 2**32 - 1
PAYLOAD_BYTES = 16

_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|([+-])(\d\d):?(\d\d))?", re.ASCII
)


def fresh_id(received_ms: int, payload: bytes) -> str:
    """Return a KSUID of arrival time and 16 random bytes."""
    return _ksuid(received_ms // 1000, payload)


def derived_id(source: str, idempotency_key: bytes, index: int, timestamp: object) -> str:
    """
    Return the KSUID of an event that only its request identifies.

    Args:
        source: who sends.
        idempotency_key: the header's bytes, 1 to 255.
        index: the event's place in the request, from 0.
        timestamp: the event's own, any JSON value; the id's time part is 0 unless it parses.
    """
    parts = source.encode(), idempotency_key, index.to_bytes(4, "big")
    content = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    payload = hashlib.blake2b(content, digest_size=PAYLOAD_BYTES).digest()
    return _ksuid(_seconds_of(timestamp), payload)


def _seconds_of(timestamp: object) -> int:
    """Read an ISO 8601 time by a pattern of our own: every version of Python must agree on it."""
    match = _TIMESTAMP.fullmatch(timestamp) if isinstance(timestamp, str) else None
    if match is None:
        return 0
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    zone = UTC
    try:
        if match[7]:
            offset = timedelta(hours=int(match[8]), minutes=int(match[9]))
            zone = timezone(offset if match[7] == "+" else -offset)
        return int(datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp())
    except (ValueError, OverflowError):
        return 0


def _ksuid(seconds: int, payload: bytes) -> str:
    """Return the KSUID; a time it cannot express is 0."""
    since_epoch = seconds - KSUID_EPOCH_S
    if not 0 <= since_epoch <= KSUID_SECONDS_MAX:
        since_epoch = 0
    return str(Ksuid.from_bytes(since_epoch.to_bytes(4, "big") + payload))
