"""
Measures the salvage of damaged bodies: `python -m loadtests.salvage [FOLDER]`.

For each kind of body: the time against that of the ordinary parser with a batch of the same size, and the
longest piece of work between two turns of the event loop. The results are in loadtests/results.
"""

import asyncio
import gc
import sys
import time
from pathlib import Path

import orjson

from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_batch
from app.ingest.salvaged import salvaged
from app.process.interpreter import GC_THRESHOLDS

BODY_BYTES = 8 * 1024 * 1024
LIMITS = JSONLimits(events_max=20_000, event_bytes_max=800 * 1024)


def bodies() -> dict[str, bytes]:
    """Return bodies of BODY_BYTES by what is odd about them; the first one is a usual batch."""
    event = {
        "type": "track",
        "messageId": "0123456789abcdef",
        "event": "Product Viewed",
        "properties": {"name": "x" * 400, "price": 12.5, "tags": ["a", "b", {"c": 1}]},
        "context": {"app": {"name": "shop", "version": "1.2"}, "library": {"name": "js", "version": "4"}},
    }
    one = orjson.dumps(event)
    count = min(BODY_BYTES // (len(one) + 1), 12_000)
    usual = b'{"batch":[' + b",".join([one] * count) + b"]}"
    torn = one[:200]

    def filled(part: bytes) -> bytes:
        return part * (BODY_BYTES // len(part))

    return {
        "usual batch": usual,
        "no commas": usual.replace(b"}},{", b"}}{"),
        "tail cut": usual[:-300],
        "one byte no UTF-8": usual.replace(b"x" * 400, b"\xff" + b"x" * 399, 1),
        "every event torn": b'{"batch":[' + filled(torn + b",") + b"]}",
        "[": filled(b"["),
        '{"a":': filled(b'{"a":'),
        "quotes": filled(b'"'),
        "quotes and backslashes": filled(b'"\\'),
        "backslashes": filled(b"\\"),
        "{}": filled(b"{}"),
        "}{": filled(b"}{"),
        '{"type":1': filled(b'{"type":1,'),
        '{"type":1}': filled(b'{"type":1}'),
        "names": filled(b'"batch",'),
        "blanks": filled(b" "),
        "commas": filled(b","),
        "no text": filled(b"\xff\x00{\x80"),
        "lost quotes": filled(b'{"type":"a},'),
        "envelopes": filled(b'{"batch":[{"type":1}]}'),
        "lists": filled(b'[{"type":1}]'),
    }


async def measure(body: bytes, *, is_usual: bool) -> tuple[float, float, int]:
    """Return seconds, the longest piece in seconds, and the number of items."""
    longest, last = 0.0, time.thread_time()

    async def turn(_size_bytes: int) -> None:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    begun = time.thread_time()
    payload = await (parse_batch if is_usual else salvaged)(body, LIMITS, turn)
    await turn(0)
    return time.thread_time() - begun, longest, len(payload.items)


def main() -> None:
    """Print a table, and write it to the folder if one is named."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    lines = [
        "| body | bytes | seconds | times the parser | longest piece, ms | items |",
        "|---|---|---|---|---|---|",
    ]
    rate = 0.0
    for name, body in bodies().items():
        is_usual = not rate
        seconds, longest, items = min(asyncio.run(measure(body, is_usual=is_usual)) for _ in range(3))
        rate = rate or seconds / len(body)
        times = seconds / len(body) / rate
        lines.append(
            f"| {name} | {len(body):,} | {seconds:.2f} | {times:.1f} | {longest * 1000:.1f} | {items:,} |"
        )
        print(lines[-1], flush=True)
    if sys.argv[1:]:
        Path(sys.argv[1], "salvage.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
