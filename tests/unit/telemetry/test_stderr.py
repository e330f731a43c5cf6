"""Claim: what is said on a protected stderr is written in order or counted as lost; nobody waits or fails."""

import os
from collections.abc import Iterator
from threading import Thread

import pytest

from app.telemetry.stderr import TEXTS_MAX, LossyStream
from tests.support.waiting import PATIENCE_S

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Yield the reading and the writing end; the test closes the reading end."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(writing)


def read_lines(descriptor: int, count: int) -> list[str]:
    with os.fdopen(descriptor, closefd=False) as file:
        return [file.readline() for _ in range(count)]


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    stream = LossyStream(pipe[1])
    for number in range(100):
        print(number, "ü", "\udc80", file=stream, flush=True)

    assert read_lines(pipe[0], 100) == [f"{number} ü \\udc80\n" for number in range(100)]
    stream.drain(PATIENCE_S)
    assert stream.lines_lost == 0
    os.close(pipe[0])


@pytest.mark.regression("A standard error that nobody read stopped the gateway.")
def test_lines_for_a_reader_that_is_gone_are_lost(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LossyStream(pipe[1])
    for _ in range(5):
        print("a line", file=stream)

    stream.drain(PATIENCE_S)

    assert stream.lines_lost == 5


def test_lines_for_a_full_disk_are_lost() -> None:
    disk = os.open("/dev/full", os.O_WRONLY)
    stream = LossyStream(disk)
    stream.write("two\nlines\n")

    stream.drain(PATIENCE_S)

    assert stream.lines_lost == 2
    os.close(disk)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_reader_that_does_not_read_makes_nobody_wait(pipe: tuple[int, int], is_blocking: bool) -> None:
    os.set_blocking(pipe[1], is_blocking)
    stream = LossyStream(pipe[1])
    said = 2 * TEXTS_MAX
    for _ in range(said):
        stream.write(LINE)
    stream.drain(0.01)
    lost = stream.lines_lost
    assert 0 < lost < said

    found: list[str] = []
    reader = Thread(target=lambda: found.extend(read_lines(pipe[0], said - lost)))
    reader.start()
    stream.drain(PATIENCE_S)
    reader.join(PATIENCE_S)

    assert found == [LINE] * (said - lost)
    assert stream.lines_lost == lost
    os.close(pipe[0])
