"""
The numbers of items that are spelled otherwise than orjson writes them.

A single event may have 200,000 of them. So they are read in steps, between which other requests run, before
an item with many is identified.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from dedupe.model.json_number import STORED, WORK_AT_ONCE, NumberReading
from dedupe.model.types import Fingerprint

WRITING_WORK = 2 * WORK_AT_ONCE
"""The work of writing an item with many numbers once, in bytes of parsing: 12 ms at most."""


class ManyItemNumbersError(Exception):
    """An item has more numbers than are read at once. It can be identified after the steps of `numbers`."""

    def __init__(self, numbers: "ItemNumbers") -> None:
        """`numbers`: those of the item, some of which are read."""
        self.numbers = numbers


class ItemNumbers:
    """The numbers of one item, and its fingerprints."""

    def __init__(
        self, item: dict[str, Any], fingerprints_of: Callable[[dict[str, Any]], Iterable[Fingerprint]]
    ) -> None:
        """
        Begin an item.

        Args:
            item: the item, which gets a Number in the place of each integer beyond 64 bits.
            fingerprints_of: returns the fingerprints of an item whose numbers are read.
        """
        self.item = item
        self._reading = NumberReading(item)
        self._fingerprints_of = fingerprints_of
        self._fingerprints: list[Fingerprint] = []

    @property
    def is_lossy(self) -> bool:
        """Whether a number is stored as null."""
        return self._reading.is_lossy

    @property
    def fingerprints(self) -> Sequence[Fingerprint]:
        """The fingerprint of the item, and those by the earlier rules."""
        if not self._fingerprints:
            self._fingerprints += self._fingerprints_of(self.item)
        return self._fingerprints

    def read(self) -> int:
        """
        Read the numbers, unless they are read; return the work, in bytes of parsing.

        Raises:
            ManyItemNumbersError: they are too many.
            TypeError: the item nests too deep to be written.
        """
        before = self._reading.work
        if self._reading.step():
            raise ManyItemNumbersError(self)
        if self._reading.is_too_deep:
            raise TypeError
        return self._reading.work - before

    def steps(self) -> Iterator[int]:
        """Read the rest and find the fingerprints; yield the work of each step, that of `read` first."""
        yield WORK_AT_ONCE
        while self._reading.step():
            yield WORK_AT_ONCE
        if not self._reading.is_too_deep:
            for fingerprint in self._fingerprints_of(self.item):
                self._fingerprints.append(fingerprint)
                yield WRITING_WORK


def store_in_steps(item: object) -> Generator[int, None, NumberReading]:
    """
    Put what is stored in the place of each Number of an item, if possible.

    Yields the work of each step, and returns what is known of the numbers.
    """
    document = item if type(item) is dict or type(item) is list else [item]
    reading = NumberReading(document)
    while reading.step():
        yield WORK_AT_ONCE
    if reading.has_numbers and not reading.is_too_deep:
        storing = NumberReading(document, STORED)
        while storing.step():
            yield WORK_AT_ONCE
    return reading
