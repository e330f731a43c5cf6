"""
How long one request blocks the event loop: the most CPU between two turns of other tasks.

    GATEWAY_NATIVE=off .venv/bin/python -m loadtests.bench.one_request [--rounds 5]

It runs the ingest application in this process, without sockets and lanes, and posts expensive bodies. A task
that always waits for its turn measures the loop's CPU time between two turns, which does not include other
processes. The result is the smallest of several rounds' longest pauses.
"""

import argparse
import asyncio
import gc
import gzip
import os
import random
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import orjson
import uvloop

from app.build import build_ingest, build_ingress_limits
from app.http.problems import Problems
from app.http.request_metrics import RequestMetrics
from app.ingest.application import create_edge
from app.process.interpreter import GC_THRESHOLDS
from dedupe.decide.admission import Admission
from dedupe.model.clock import Deadline, SystemClock
from dedupe.model.identity import Identity
from dedupe.model.quarantine import Quarantine
from dedupe.model.types import Event, Topic
from dedupe.router import Router
from dedupe.submission import Outcomes
from loadtests.bench.workload import make_bodies
from tests.support.settings import make_settings

HELD_MS_MAX = 25.0
MIB = 1024 * 1024


class Case(NamedTuple):
    """One body."""

    name: str
    body: bytes
    key: str | None = "bench"  # in the head


class AcceptingRouter(Router):
    """Accepts everything at once."""

    async def submit(
        self,
        events: Sequence[Event],
        rejected: Sequence[Event],
        *,
        received_ms: int,
        deadline: Deadline,
        has_several_sources: bool = False,
    ) -> Outcomes:
        """See Router, which waits for a commit, too."""
        await asyncio.sleep(0)
        return Outcomes([Admission.NEW] * len(events), list(range(len(events))))


def names(count: int, first: int = 0) -> bytes:
    """Return an object with different names."""
    return b"{" + b",".join(b'"%x":1' % number for number in range(first, first + count)) + b"}"


def cases() -> Iterator[Case]:
    """Yield what is expensive by its bytes, its names, its containers, its merges or its text."""
    usual = make_bodies(1, 2_500)[0]
    wide = orjson.loads(usual)["batch"][0]
    wide["properties"] |= {f"name {number}": f"some text, value {number}" for number in range(60)}
    yield Case("2,500 usual events", usual)
    yield Case("8 MiB of events with 60 properties", orjson.dumps({"batch": [wide] * 2_400}))
    yield Case("one event of 700,000 names", names(700_000))
    yield Case("one event of 59,000 names", names(59_000))
    yield Case("the same, key in the body", names(59_000)[:-1] + b',"writeKey":"bench"}', None)
    yield Case(
        "10 events of 59,000 names", b"[" + b",".join(names(59_000, 59_000 * n) for n in range(10)) + b"]"
    )
    yield Case("59,000 arrays in arrays", b'{"a":[' + b",".join([b"[[[[[[[[[[]]]]]]]]]]"] * 5_900) + b"]}")
    yield Case("590,000 arrays", b"[" + b",".join([b"[[[[[[[[[[[]]]]]]]]]]]"] * 53_000) + b"]")
    yield Case("500,000 short strings", b'{"a":[' + b",".join([b'"a"'] * 499_999) + b"]}")
    yield Case("2 MiB of line breaks", b'{"a":"' + b"\\n" * (MIB - 100) + b'"}')
    yield Case("8 MiB of line breaks", b'{"a":"' + b"\\n" * (4 * MIB - 100) + b'"}')
    yield Case("8 MiB of line breaks in a batch", b'[{},{"a":"' + b"\\n" * (4 * MIB - 100) + b'"},{}]')
    yield Case(
        "2,480 empty events beside 2 kB",
        b'{"context":{"a":"%b"},"batch":[%b]}' % (b"x" * 1_950, b",".join([b"{}"] * 2_480)),
    )
    yield Case(
        "2,480 empty events beside 6 kB",
        b'{"context":{"a":"%b"},"batch":[%b]}' % (b"x" * 6_000, b",".join([b"{}"] * 2_480)),
    )
    yield Case("2,500 numbers", b"[" + b",".join([b"5"] * 2_500) + b"]")
    yield Case("9,999 halves of emojis", b'{"a":"' + b"\\ud83d" * 9_999 + b'"}')
    yield Case("20,000 usual events, cut off", make_bodies(1, 20_000)[0][: 8 * MIB])
    yield from limits_cases()
    yield Case("8 MiB of blanks", b"[" + b" " * (8 * MIB - 3) + b"]")
    yield Case("a gzip bomb", b"\0" * 100 * MIB)


def filled(item: bytes, size_bytes: int = 8 * MIB - 100) -> bytes:
    """Return a batch of copies of an item."""
    return b'{"batch":[%b]}' % b",".join([item] * (size_bytes // (len(item) + 1)))


def limits_cases() -> Iterator[Case]:
    """Yield what is beyond a limit, or consists of nothing but marks."""
    yield Case("20,000 empty events", filled(b"{}", 60_000))
    yield Case(
        "20,000 small events", filled(b'{"messageId":"%d","type":"track","event":"a"}' % 10**12, 1_200_000)
    )
    yield Case("2,700,000 empty events", filled(b"{}"))
    yield Case("1,000,000 empty texts", filled(b'""', 3_000_000))
    yield Case("8 MiB of arrays, 40 deep", filled(b"[" * 40 + b"]" * 40))
    pairs = b'{"messageId":"1","path":[%b]}'
    yield Case("475 KB of pairs", pairs % b",".join([b"[1,2]"] * 79_000))
    yield Case("8 MiB of events of 475 KB of pairs", filled(pairs % b",".join([b"[1,2]"] * 79_000)))
    yield Case("8 MiB of events of 780 KB of pairs", filled(pairs % b",".join([b"[1,2]"] * 130_000)))
    yield Case("8 MiB of events of 159,000 arrays", filled(pairs % b",".join([b"[]"] * 159_000)))
    yield Case("8 MiB of events of 390,000 digits", filled(pairs % b",".join([b"1"] * 390_000)))
    yield Case("8 MiB of events of 100,000 objects", filled(pairs % b",".join([b'{"":0}'] * 99_000)))
    for name, unit in (
        ("opening brackets", b"["),
        ("opening objects", b'{"a":'),
        ("quotes", b'"'),
        ("backslashes", b"\\"),
        ("quotes and backslashes", b'"\\'),
        ("commas", b","),
        ("closing brackets", b"]"),
    ):
        yield Case(f"8 MiB of {name}", unit * (8 * MIB // len(unit)))
        yield Case(f"a batch and 8 MiB of {name}", b'{"batch":[' + unit * (8 * MIB // len(unit) - 10))
    yield from numbers_cases()
    noise = random.Random(1).randbytes(6 * MIB // 2).hex().encode()[: 6 * MIB]
    yield Case("6 MiB, no key anywhere", b'{"batch":[{"a":"%b"}]}' % noise, None)
    yield Case(
        "8 MiB, wrong key behind the events", filled(b'{"messageId":"1"}')[:-1] + b',"writeKey":""}', None
    )


def numbers_cases() -> Iterator[Case]:
    """Yield what consists of numbers, which may have to be spelled anew."""
    draw = random.Random(1)

    def digits(count: int) -> bytes:
        return b"%d" % draw.randrange(10 ** (count - 1), 10**count)

    kinds = {
        "the same 10.0": [b"10.0"] * 155_000,
        "others like 1000.0": [b"%d.0" % number for number in range(1_000, 98_000)],
        "powers of ten": [b"%de%d" % (number % 10, number % 9) for number in range(195_000)],
        "others like 1000.5": [b"%d.5" % number for number in range(1_000, 98_000)],
        "floats": [b"%a" % draw.uniform(-180, 180) for _ in range(39_000)],
        "17 digits": [digits(1) + b"." + digits(16) for _ in range(41_000)],
        "20 digits": [b"0." + digits(20) for _ in range(33_000)],
        "integers of 21 digits": [digits(21) for _ in range(35_000)],
        "integers of 30 digits": [digits(30) for _ in range(25_000)],
    }
    kinds["all of these"] = [text for texts in zip(*kinds.values(), strict=False) for text in texts][:65_000]
    for name, texts in kinds.items():
        event = b'{"messageId":"1","type":"track","p":[%b]}' % b",".join(texts)
        share = len(texts) // 7
        small = b'{"messageId":"1","type":"track","p":[%b]}' % b",".join(texts[:share])
        yield Case(f"one event of {name}", event)
        yield Case(f"8 MiB of such events ({name})", filled(event))
        yield Case(f"one small event ({name})", small)
        yield Case(f"8 MiB of small events ({name})", filled(small))
        tiny = [
            b'{"messageId":"1","type":"track","p":[%b]}' % b",".join(texts[n : n + 3])
            for n in range(0, 30_000, 3)
        ]
        yield Case(f"10,000 tiny events ({name})", b"[%b]" % b",".join(tiny))
    named = b'{"messageId":"1",%b}'
    yield Case("one event of 60,000 names of 1.0", named % b",".join(b'"%x":1.0' % n for n in range(60_000)))
    yield Case("the same, no event", b"[[%b]]" % b",".join(kinds["17 digits"]))
    yield Case(
        "the same, type is a number", b'{"messageId":"1","type":5,"p":[%b]}' % b",".join(kinds["17 digits"])
    )
    yield Case(
        "the same, nested 60 deep",
        b'{"messageId":"1","q":%b1.0%b,"p":[%b]}' % (b"[" * 60, b"]" * 60, b",".join(kinds["17 digits"])),
    )
    context = b'{"context":{"a":[%b]},"batch":[%b]}' % (b",".join(kinds["17 digits"]), b'{"messageId":"1"}')
    yield Case("one event beside 17 digits", context)
    yield from top_cases(kinds)


def top_cases(kinds: Mapping[str, Sequence[bytes]]) -> Iterator[Case]:
    """Yield what has much beside its events, or is one event."""
    many: dict[str, list[bytes]] = {
        "1,000,000 digits": [b"1"] * 1_000_000,
        "490,000 digits": [b"1"] * 490_000,
        "600,000 arrays": [b"[]"] * 600_000,
        "155,000 arrays": [b"[]"] * 155_000,
        "40,000 arrays, 4 deep": [b"[[[[]]]]"] * 38_000,
        "230,000 objects": [b'{"a":{}}'] * 230_000,
        "70,000 objects": [b'{"a":{}}'] * 50_000,
        "100,000 long numbers": [text for text in kinds["17 digits"] for _ in range(2)],
        "130,000 numbers": [text for text in kinds["the same 10.0"] for _ in range(2)],
    }
    for name, values in many.items():
        content = b'{"a":[%b]}' % b",".join(values)
        yield Case(f"one event of {name}", b'{"messageId":"1","type":"track","p":%b}' % content)
        for count in (1, 40, 2_000):
            events = b",".join(b'{"messageId":"%d","type":"track","context":{}}' % n for n in range(count))
            yield Case(f"{count} events beside {name}", b'{"context":%b,"batch":[%b]}' % (content, events))


async def longest_pauses(
    case: Case, url: str, client: httpx.AsyncClient, rounds: int
) -> tuple[float, float, int]:
    """Return the smallest longest pause and the least CPU in seconds, and the status."""
    wire = gzip.compress(case.body, 6)
    headers = {"Content-Encoding": "gzip"}
    if case.key:
        headers["Authorization"] = "Basic " + b64encode(f"{case.key}:".encode()).decode()
    longest = 0.0
    is_over = False
    status = 0

    async def watch() -> None:
        nonlocal longest
        before, is_last = time.thread_time(), False
        while not is_last:
            is_last = is_over
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    found = []
    gc.collect()
    gc.freeze()  # the bodies to come are no part of the request
    for _ in range(rounds):
        longest, is_over = 0.0, False
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        began = time.thread_time()
        answer = await client.post(url, content=wire, headers=headers)
        seconds = time.thread_time() - began
        is_over = True
        await watching
        found.append((longest, seconds))
        status = answer.status_code
    return min(pause for pause, _ in found), min(seconds for _, seconds in found), status


async def run(rounds: int, only: str) -> None:
    """Measure the cases with such names and print a table."""
    identity = Identity(b"a secret of 24 bytes....")
    with tempfile.TemporaryDirectory() as folder:
        native = os.environ.get("GATEWAY_NATIVE", "auto")
        settings = make_settings(mode="development", data_dir=Path(folder), native=native)
        ingress = build_ingress_limits(settings, SystemClock(), index_files=0)
        router = AcceptingRouter([], [], Quarantine(identity, Topic("q", 1)))
        ingest = build_ingest(
            settings, router, identity=identity, ingress=ingress, clock=SystemClock(), earlier_ignore=()
        )
    app = create_edge(
        ingest,
        memory=ingress.memory,
        problems=Problems(retry_after_max=1, rng=random.Random(0)),
        metrics=RequestMetrics(),
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    print("| body | gzip bytes | status | longest pause (ms) | CPU (ms) |\n|---|---|---|---|---|")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench") as client:
        for case in cases():
            if only not in case.name:
                continue
            pause, seconds, status = await longest_pauses(case, "/v1/events", client, rounds)
            wire = len(gzip.compress(case.body, 6))
            late = "" if pause * 1e3 <= HELD_MS_MAX else " !"
            print(
                f"| {case.name} | {wire:,} | {status} | {pause * 1e3:.1f}{late} | {seconds * 1e3:.0f} |",
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a part of the names of the bodies to measure")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args.rounds, args.only))


if __name__ == "__main__":
    main()
