"""
Fuzzes both paths, guided by the coverage of the native module and of the Python code: `make fuzz MINUTES=60`.

    python -m tests.native.fuzz FOLDER --minutes 60
    python -m tests.native.fuzz FOLDER --try FOLDER/crash-...

FOLDER keeps what reached new code, from where a later run goes on, and an input on which the paths differ,
which ends the run. An input's first three bytes choose the deployment, the path and the request; what follows
is a body, or the response of a broker. `figures.json` counts what became of the inputs.

Needs atheris, and a module built with counters of coverage and checks of overflow; `make fuzz` builds both.
"""

import argparse
import ctypes
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import atheris
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

# One libFuzzer for all, which the module's counters ask for; before it, what it finds our mutator by.
for library in (
    next(Path(atheris.__file__).parent.glob("custom_mutator.*.so")),
    f"{atheris.path()}/ubsan_with_fuzzer.so",
):
    ctypes.CDLL(str(library), os.RTLD_LAZY | os.RTLD_GLOBAL)

REFERENCE = ["app.ingest", "dedupe.model", "dedupe.decide.recovery", "dedupe.storage.kafka.fetched"]
with atheris.instrument_imports(include=REFERENCE):
    from app.ingest.identified import Arrival
    from dedupe.model.record import EventRecords
    from dedupe.storage.kafka.record_batch import encode_batch
    from tests.native.both_paths import (
        BATCH_BYTES_MAX,
        IDENTITY,
        PARSES,
        PRODUCER,
        RECEIVED_MS,
        all_paths,
        arrival_of,
        compare_reading,
        compare_records,
    )
    from tests.support.odd_bodies import ESCAPES, FIELDS, NUMBERS, ODD_NUMBERS, Bodies

CHOICE_BYTES = 3
RECORDS = 7
"""The first byte of an input that is a response, modulo 8; any other begins a body."""
INPUT_BYTES_MAX = 8 * 1024
SEEDS = 2_000
FIGURES_EVERY = 5_000
TOKENS = (*"{}[]:,", "null", "true", "false", '\\"', *ESCAPES, *NUMBERS, *ODD_NUMBERS[:20])
VALUES = ("null", "true", "{}", "[]", *NUMBERS, *ODD_NUMBERS[:20], *(f'"{escape}"' for escape in ESCAPES))
NAMES = (*FIELDS, "messageId", "type", "batch", "ip", "library", "name", "firstSequence")

PATHS = list(all_paths().values())


class Inputs:
    """Compares the paths on inputs, and counts."""

    def __init__(self, figures: Path | None) -> None:
        """`figures`: the file for the counts."""
        self._figures = figures
        self._counts: Counter[str] = Counter()

    def compare(self, data: bytes) -> None:
        """Fail if the paths differ on an input, or the module panics."""
        if len(data) <= CHOICE_BYTES:
            return
        if data[0] % 8 == RECORDS:
            raw = data[CHOICE_BYTES:]
            is_plain = compare_reading(mended(raw) if data[1] % 4 else raw, data[2] % 4)
            self._counts["responses"] += 1
            self._counts["plain_responses"] += is_plain
        else:
            self._compare_bodies(data)
        self._counts["inputs"] += 1
        if self._figures is not None and self._counts["inputs"] % FIGURES_EVERY == 0:
            self._figures.write_text(json.dumps(self._told(), indent=1), encoding="utf-8")

    def _compare_bodies(self, data: bytes) -> None:
        paths, parse = PATHS[data[0] % 8 % len(PATHS)], list(PARSES)[data[1] % len(PARSES)]
        events = paths.compare(data[CHOICE_BYTES:], parse, _arrival(data[2]), needs_key=data[1] >= 224)
        assert paths.panics == 0
        self._counts["bodies"] += 1
        self._counts["events"] += len(events)
        self._counts["records"] += compare_records(events)

    def _told(self) -> dict[str, int]:
        uses = [paths.native.use for paths in PATHS]
        names = ("events", "odd_events", "other_events")
        native = {name: sum(getattr(use, name) for use in uses) for name in names}
        return dict(self._counts) | {f"native_{name}": count for name, count in native.items()}


@cache
def _arrival(seed: int) -> Arrival:
    return arrival_of(random.Random(seed))


def mended(raw: bytes) -> bytes:
    """Return a response with the sums, and the keys, that its records need: chance would not find them."""
    found, at = bytearray(raw), 0
    try:
        batches = MemoryRecords(raw)
        while (batch := batches.next_batch()) is not None:
            for record in batch:
                headers = dict(record.headers)
                source, gateway = headers["source"] or b"", headers["gw"] or b""
                message_id, value = record.key or b"", record.value or b""
                key = IDENTITY.message_key(source.decode(), message_id.decode())
                new = gateway[:2] + key + gateway[18:34]
                new += crc32(b"".join((source, message_id, new, value))).to_bytes(4, "big")
                place = raw.find(gateway)
                found[place : place + len(gateway)] = new
    except Exception:  # what is no record needs no sum
        pass
    while len(found) - at >= 61:
        end = at + 12 + int.from_bytes(found[at + 8 : at + 12], "big", signed=True)
        if not at + 61 <= end <= len(found):
            break
        found[at + 17 : at + 21] = calc_crc32c(bytes(found[at + 21 : end])).to_bytes(4, "big")
        at = end
    return bytes(found)


def seeds() -> Iterator[bytes]:
    """Yield inputs to begin with: bodies, and record batches of their events."""
    rng = random.Random(0)
    bodies = iter(Bodies(0, oddness=0.03))
    for _ in range(SEEDS):
        content = next(bodies).content[: INPUT_BYTES_MAX - CHOICE_BYTES]
        yield bytes([rng.randrange(RECORDS), *rng.randbytes(2)]) + content
    for content in (next(bodies).content for _ in range(SEEDS // 10)):
        arrival = Arrival("web", RECEIVED_MS)
        for parse in PARSES:
            events = PATHS[0].compare(content, parse, arrival)
            if events:
                records = EventRecords(events[:4], (), lane_seq=9, timestamp_ms=RECEIVED_MS)
                raw = encode_batch(records, PRODUCER, 0, bytes_max=BATCH_BYTES_MAX)
                yield bytes([RECORDS, rng.randrange(256), 0]) + raw


def mutated(data: bytes, size_max: int, seed: int) -> bytes:
    """Return an input like `data`: by libFuzzer, or with another body, event or value, mostly valid JSON."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.35 or (data and data[0] % 8 == RECORDS):
        return bytes(atheris.Mutate(data, len(data) if rng.random() < 0.3 else size_max))
    bodies = Bodies(seed, oddness=rng.choice((0.0, 0.03, 0.2)))
    choice, content = data[:CHOICE_BYTES].ljust(CHOICE_BYTES, b"\0"), data[CHOICE_BYTES:]
    if kind < 0.5:
        return (choice + bodies.body().content)[:size_max]
    places = [place for place, byte in enumerate(content) if byte in b"{}[],:"] or [0]
    start = rng.randrange(len(places))
    if kind < 0.75:
        new, width = bodies.event().encode("utf-8", "surrogatepass"), rng.choice((0, 1, 9))
    else:
        new, width = rng.choice(VALUES).encode(), 1
    end = places[min(start + width, len(places) - 1)]
    return (choice + content[: places[start] + 1] + new + content[max(end, places[start] + 1) :])[:size_max]


def main() -> None:
    """Fuzz, or try one input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--try", type=Path, dest="file", help="an input, to be compared once")
    options = parser.parse_args()
    if options.file is not None:
        Inputs(None).compare(options.file.read_bytes())
        return
    corpus: Path = options.folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for place, data in enumerate(seeds()):
            (corpus / f"seed-{place}").write_bytes(data)
    words = [*TOKENS, *(f'"{name}":' for name in NAMES)]
    dictionary = options.folder / "words.txt"
    dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words), encoding="ascii")
    arguments = {
        "max_total_time": round(options.minutes * 60),
        "max_len": INPUT_BYTES_MAX,
        "dict": dictionary,
        "artifact_prefix": f"{options.folder}/",
        "print_final_stats": 1,
        "timeout": 60,
    }
    words = [sys.argv[0], *(f"-{name}={value}" for name, value in arguments.items()), str(corpus)]
    compare: Callable[[bytes], None] = Inputs(options.folder / "figures.json").compare
    atheris.Setup(words, compare, custom_mutator=mutated)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    main()
