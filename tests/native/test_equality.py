"""Claim: the native module gives the same events and rejections as the Python code, byte by byte."""

import os
from pathlib import Path

import pytest

from app.http.at_once import at_once, yield_to_nobody
from app.ingest.identified import Arrival
from app.ingest.large_json import JSONLimits
from app.ingest.parse import parse_batch, parse_events
from app.ingest.payload import Expected
from tests.native import equality
from tests.native.both_paths import (
    ITEMS_MAX,
    LIMITS,
    RECEIVED_MS,
    Paths,
    all_paths,
    compare_generated,
)

SEED = int(os.environ.get("NATIVE_SEED", "1"))
EVENTS = int(os.environ.get("NATIVE_EVENTS", "200000"))


@pytest.mark.parametrize("paths", [pytest.param(paths, id=name) for name, paths in all_paths().items()])
def test_both_paths_give_the_same_events_and_rejections(paths: Paths) -> None:
    compared = compare_generated(paths, SEED, EVENTS // 3)
    assert compared.records > EVENTS / 10
    assert paths.native.use.events > EVENTS / 40
    assert paths.native.use.odd_events > EVENTS / 200
    assert paths.native.use.other_events > 0
    assert paths.native.use.other_bodies["unreadable"] > 0
    assert paths.native.use.other_bodies["form"] > 0
    assert paths.panics == 0


def test_a_run_of_many_seeds_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "equality.tsv"
    for seeds in ("1-1", "1-2"):
        monkeypatch.setattr("sys.argv", ["equality", "--seeds", seeds, "--events", "90", "--into", str(into)])
        assert equality.main() == 0
    rows = [line.split("\t") for line in into.read_text(encoding="utf-8").splitlines()]
    assert [row[0] for row in rows] == ["1", "2"]
    told = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in told if line.startswith("seed")] == ["seed 1", "seed 2"]
    assert f"{sum(int(row[2]) for row in rows):,} events" in told[-1]


@pytest.mark.parametrize(
    "body", [b'{"messageId":"1","type":"track","p":[%b]}', b'{"p":[%b],"batch":[{"a":1}]}']
)
@pytest.mark.regression("What stood beside events that the native module read held up all other requests.")
def test_much_beside_the_events_is_read_in_pieces_by_the_python_code(body: bytes) -> None:
    limits = JSONLimits(ITEMS_MAX, LIMITS.event_bytes_max)
    for count, is_native in ((40_000, True), (50_000, False)):
        large = body % b",".join([b"[]"] * count)
        reading = Paths().native.read(large, limits, yield_to_nobody, Expected.EVENTS)
        assert (at_once(reading) is not None) is is_native


@pytest.mark.regression("The native module took an event that Python sets aside as too expensive to parse.")
@pytest.mark.parametrize("value", [b"[" + b"[1]," * 170_000 + b"1]", b'"%b"' % (b"x" * 200_000)])
def test_event_that_may_be_too_expensive_for_python_is_left_to_it(value: bytes) -> None:
    paths = Paths()
    event = b'{"messageId":"m","type":"track","event":"Seen","value":%b}' % value
    small = b'{"messageId":"n","type":"track","event":"Seen"}'
    for body in (event, b"[%b,%b]" % (small, event), b'{"batch":[%b,%b]}' % (event, small)):
        paths.compare(body, parse_events, Arrival("web", RECEIVED_MS))
    paths.compare(
        b'{"batch":[%b],"context":{"v":%b}}' % (small, value), parse_batch, Arrival("web", RECEIVED_MS)
    )
    assert paths.native.use.events == 0
