"""
The front of one lane's index: a Bloom filter in memory that answers absent keys for all files at once.

RocksDB asks one filter a file, so an absent key costs more with every file. The front is a function
of what RocksDB holds: it is never stored, begins anew with every opening, and is asked only once it
is complete. Until then, and for every key that it may hold, RocksDB is asked.

RocksIndex.lookup -> **BloomFilterCache.possible** -> RocksDB's multi-get
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice
from typing import NamedTuple, cast

import structlog

from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import EventKey
from dedupe.storage.rocksdb.database import Database, translate

SCANNED_PER_KEY = 16
"""Read for each key added: a filter of N keys is complete about N / 16 keys after it was begun."""
SCANS_MAX = 4
"""At once, however many keys are added: a replay's batches are large, and others need the event loop."""
BITS_PER_KEY = 20
"""Of a new filter, which is due for another one when it holds twice its keys: 0.6 % of absent keys
pass it at first, 2.8 % then. Each that passes asks every file."""

_WORD_BYTES = 4
_MASK_BITS = 30  # Python's integers have digits of 30 bits: a word is one of them
_MASKS = 4_096  # more would not stay in the processor's cache
_CHUNK = 128  # keys; operations on longer integers gain nothing


def _masks() -> list[int]:
    """Return masks of 4 bits, spread evenly over all there are: what one key sets in its word."""
    masks = [sum(1 << bit for bit in bits) for bits in combinations(range(_MASK_BITS), 4)]
    return [masks[number * len(masks) // _MASKS] for number in range(_MASKS)]


_MASK_OF = _masks()


class _Layout(NamedTuple):
    """How so many keys stand side by side in one integer, 128 bits each, and their words, 32 bits each."""

    first_bits: int  # the last 32 bits of each 128
    mask_bits: int  # the last 12 bits of each 128
    numbers: struct.Struct  # of each key: the number of its mask, and the place of its word
    words: struct.Struct
    ones: int  # added to a word that is not 0, they carry into its top bit
    tops: int


@lru_cache(_CHUNK)
def _layout(keys: int) -> _Layout:
    lanes = sum(1 << 8 * KEY_BYTES * number for number in range(keys))
    words = sum(1 << 8 * _WORD_BYTES * number for number in range(keys))
    return _Layout(
        first_bits=lanes * 0xFFFF_FFFF,
        mask_bits=lanes * (_MASKS - 1),
        numbers=struct.Struct(">" + "4xI4xI" * keys),
        words=struct.Struct(f">{keys}I"),
        ones=words * 0x7FFF_FFFF,
        tops=words * 0x8000_0000,
    )


class KeyFilter:
    """
    A Bloom filter: whatever was added is possible; few other keys are.

    A key sets 4 bits of one word. Its first 32 bits say which word, so that keys in order go
    through memory in order; its last 12 say which bits. Event keys are hash values already.
    """

    def __init__(self, keys: int) -> None:
        """
        Take memory for so many keys, n >= 1; the system gives it page by page, as keys are added.

        Raises:
            OSError: there is no such memory.
        """
        self._count = max(1, keys * BITS_PER_KEY // (8 * _WORD_BYTES))
        self._words = memoryview(mmap.mmap(-1, self._count * _WORD_BYTES)).cast("I")
        self._keys_left = 2 * keys

    @property
    def is_full(self) -> bool:
        """Whether another one, made for what is there now, would let fewer absent keys pass."""
        return self._keys_left <= 0

    def add(self, keys: Sequence[EventKey]) -> None:
        """Add keys, any number."""
        self._keys_left -= len(keys)
        words, mask_of = self._words, _MASK_OF
        for first in range(0, len(keys), _CHUNK):
            chunk = keys[first : first + _CHUNK]
            numbers = self._numbers(chunk, _layout(len(chunk)))
            for mask, place in zip(numbers[::2], numbers[1::2], strict=True):
                words[place] |= mask_of[mask]

    def possible(self, keys: Sequence[EventKey]) -> list[int]:
        """Return the places in `keys` of those that may have been added."""
        found: list[int] = []
        for first in range(0, len(keys), _CHUNK):
            flags = self._absent(keys[first : first + _CHUNK])
            if 0 in flags:
                found += [first + place for place, flag in enumerate(flags) if not flag]
        return found

    def _absent(self, keys: Sequence[EventKey]) -> bytes:
        """Return a byte a key, n >= 1: 0 if all bits of its mask are set in its word."""
        layout = _layout(len(keys))
        numbers = self._numbers(keys, layout)
        pack = layout.words.pack
        masks = int.from_bytes(pack(*map(_MASK_OF.__getitem__, numbers[::2])), "big")
        words = int.from_bytes(pack(*map(self._words.__getitem__, numbers[1::2])), "big")
        missing = masks & words ^ masks
        tops = missing + layout.ones & layout.tops
        return tops.to_bytes(_WORD_BYTES * len(keys), "big")[::_WORD_BYTES]

    def _numbers(self, keys: Sequence[EventKey], layout: _Layout) -> tuple[int, ...]:
        """Return of each key, n >= 1, the number of its mask and the place of its word, alternating."""
        joined = int.from_bytes(b"".join(keys), "big")
        places = (joined >> 96 & layout.first_bits) * self._count >> 32 & layout.first_bits
        masks = (joined & layout.mask_bits) << 64
        return layout.numbers.unpack((masks | places).to_bytes(KEY_BYTES * len(keys), "big"))


class BloomFilterCache:
    """
    The filter of what one database holds, and the next one while that is being built.

    A filter is begun when there are many files or the last one is full. Every key that is added
    from then on goes into it; whatever was written before, a scan of the database adds, a little
    with each call of `add`. When the scan has reached the end, the filter lacks nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tuning = database.tuning
        self._filter: KeyFilter | None = None
        self._next: KeyFilter | None = None
        self._scanned_to = b""
        self._scan_due = 0
        self._unchecked = self._tuning.front_keys_checked  # the first call looks

    def possible(self, keys: Sequence[EventKey]) -> Sequence[int]:
        """Return the places in `keys` of those that the database may hold; without a filter, of all."""
        if self._filter is None:
            return range(len(keys))
        return self._filter.possible(keys)

    def add(self, keys: Sequence[EventKey]) -> None:
        """
        Add keys that are about to be written, and go on with the scan.

        Raises:
            IndexCorruptError, IndexUnavailableError: the database cannot be read.
        """
        self._unchecked += len(keys)
        if self._next is None and self._unchecked >= self._tuning.front_keys_checked:
            self._unchecked = 0
            self._begin_if_due()
        # Only now: what is written after a filter was begun may lie where its scan has been.
        for keys_filter in (self._filter, self._next):
            if keys_filter is not None:
                keys_filter.add(keys)
        if self._next is not None:
            self._scan_due += SCANNED_PER_KEY * len(keys)
            least = self._tuning.front_keys_scanned
            if self._scan_due >= least:
                self._scan(self._next, min(self._scan_due, SCANS_MAX * least))
                self._scan_due = 0

    def _begin_if_due(self) -> None:
        entries = self._database.entries
        try:
            files = int(entries.property_value("rocksdb.num-files-at-level0") or 0)
            stored = entries.property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as err:
            translate(err, f"cannot measure {self._database.path}")
        if not (files >= self._tuning.front_files_min if self._filter is None else self._filter.is_full):
            return
        try:
            self._next = KeyFilter(max(1, stored))
        except OSError as err:  # tried again after the next front_keys_checked
            log = structlog.get_logger(__name__)
            log.warning("no memory for the front of an index", path=str(self._database.path), error=str(err))
        self._scanned_to = bytes(KEY_BYTES)

    def _scan(self, keys_filter: KeyFilter, count: int) -> None:
        """Add the next `count` keys in order, and put the filter to use if they were the last."""
        try:
            following = cast(Iterator[EventKey], self._database.entries.keys(from_key=self._scanned_to))
            keys = list(islice(following, count))
            del following  # or an error's traceback would keep the database open
            is_scanned = len(keys) < count and self._ends_after(keys)
        except Exception as err:
            translate(err, f"cannot read {self._database.path}")
        keys_filter.add(keys)
        if is_scanned:
            self._filter, self._next = keys_filter, None
        elif keys:
            self._scanned_to = keys[-1]  # is read once more

    def _ends_after(self, keys: Sequence[EventKey]) -> bool:
        """Whether nothing follows; an iteration over keys ends silently at damage, so its status is asked."""
        last = keys[-1] if keys else self._scanned_to
        iterator = self._database.entries.iter()
        try:
            iterator.seek(last)
            while iterator.valid() and iterator.key() <= last:
                iterator.next()
            ends = not iterator.valid()
            iterator.status()
        finally:
            del iterator
        return ends
