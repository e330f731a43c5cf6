"""
The Bloom filter cache of a lane's index: one filter in memory over the keys of all files.

RocksDB checks a filter in each file, so the cost of an absent key grows with the number of files. The cache
is not stored: it is built after each opening, by the lane that serves. RocksDB looks up all keys until the
filter is complete, and from then on only the keys that pass it.

RocksIndex.lookup -> **BloomFilterCache.possible** -> RocksDB's multi-get
"""

import hashlib
import mmap
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice
from typing import NamedTuple, TypeAlias, cast

import structlog
from rocksdict import ReadOptions

from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import EventKey
from dedupe.storage.rocksdb.database import FILE_BYTES_PER_KEY, Database, translate

BITS_PER_KEY = 20
"""The size of a new filter: its false-positive rate is 0.6 %. It is replaced when it has twice its keys, at
2.8 %; RocksDB checks every file for each false positive."""

_UNCACHED = ReadOptions()
_UNCACHED.fill_cache(False)  # type: ignore[call-arg] # each block is read once; the stub lacks the value

_WORD_BYTES = 4
_MASK_BITS = 30  # a digit of Python's integers
_MASKS = 4_096  # fit into the processor's cache
_CHUNK = 128  # keys; longer integers are not faster


def _masks() -> list[int]:
    """Return the masks of 4 bits that keys set in a word, an even selection of all combinations."""
    masks = [sum(1 << bit for bit in bits) for bits in combinations(range(_MASK_BITS), 4)]
    return [masks[number * len(masks) // _MASKS] for number in range(_MASKS)]


_MASK_OF = _masks()
_MASK_WORDS = array("I", _MASK_OF)

AddKeys: TypeAlias = Callable[[memoryview, "array[int]", list[EventKey]], bool | None]
"""The native module's KeyFilter.add: words, masks and keys; None if Python has to do it."""


class _Layout(NamedTuple):
    """The layout of several keys in one integer, 128 bits each, and of their words, 32 bits each."""

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
    A blocked Bloom filter.

    A key sets 4 bits of one word. Its first 32 bits select the word, so that a scan in key order walks
    through memory in order; its last 12 bits select the mask. Event keys are hash values already.
    """

    def __init__(self, keys: int, native: AddKeys | None = None) -> None:
        """
        Reserve memory for `keys` >= 1; the system assigns pages as keys are added.

        Raises:
            OSError: there is not enough memory.
        """
        self._count = max(1, keys * BITS_PER_KEY // (8 * _WORD_BYTES))
        self._words = memoryview(mmap.mmap(-1, self._count * _WORD_BYTES)).cast("I")
        self._keys_left = 2 * keys
        self._native = native

    @property
    def words(self) -> bytes:
        """A copy of its bits."""
        return self._words.tobytes()

    @property
    def is_full(self) -> bool:
        """Whether a larger filter should replace it."""
        return self._keys_left <= 0

    def add(self, keys: Sequence[EventKey]) -> None:
        """Add keys."""
        self._keys_left -= len(keys)
        if self._native is not None and self._native(self._words, _MASK_WORDS, [*keys]):
            return
        words, mask_of = self._words, _MASK_OF
        for first in range(0, len(keys), _CHUNK):
            chunk = keys[first : first + _CHUNK]
            numbers = self._numbers(chunk, _layout(len(chunk)))
            for mask, place in zip(numbers[::2], numbers[1::2], strict=True):
                words[place] |= mask_of[mask]

    def possible(self, keys: Sequence[EventKey]) -> list[int]:
        """Return the places in `keys` of those that may have been added."""
        places: list[int] = []
        for first in range(0, len(keys), _CHUNK):
            flags = self._absent(keys[first : first + _CHUNK])
            if 0 in flags:
                places += [first + place for place, flag in enumerate(flags) if not flag]
        return places

    def _absent(self, keys: Sequence[EventKey]) -> bytes:
        """Return one byte for each of n >= 1 keys: 0 if all bits of its mask are set in its word."""
        layout = _layout(len(keys))
        numbers = self._numbers(keys, layout)
        pack = layout.words.pack
        masks = int.from_bytes(pack(*map(_MASK_OF.__getitem__, numbers[::2])), "big")
        words = int.from_bytes(pack(*map(self._words.__getitem__, numbers[1::2])), "big")
        missing = masks & words ^ masks
        tops = missing + layout.ones & layout.tops
        return tops.to_bytes(_WORD_BYTES * len(keys), "big")[::_WORD_BYTES]

    def _numbers(self, keys: Sequence[EventKey], layout: _Layout) -> tuple[int, ...]:
        """Return for each of n >= 1 keys the number of its mask and the place of its word, alternating."""
        joined = int.from_bytes(b"".join(keys), "big")
        places = (joined >> 96 & layout.first_bits) * self._count >> 32 & layout.first_bits
        masks = (joined & layout.mask_bits) << 64
        return layout.numbers.unpack((masks | places).to_bytes(KEY_BYTES * len(keys), "big"))


class BloomFilterCache:
    """
    The filter of a database's keys, and the next one while it is built.

    A filter is built when there are many files, or the last filter is full. New keys are added to it at once;
    a scan of the database adds the older ones, some with each call of `warm`. At the end of the scan the
    filter is complete.
    """

    def __init__(self, database: Database, native: AddKeys | None = None) -> None:
        self._database = database
        self._native = native
        self._tuning = database.tuning
        self._filter: KeyFilter | None = None
        self._next: KeyFilter | None = None
        self._scanned_to = b""

    def possible(self, keys: Sequence[EventKey]) -> Sequence[int]:
        """Return the places in `keys` of those that the database may hold; all without a filter."""
        if self._filter is None:
            return range(len(keys))
        return self._filter.possible(keys)

    def expect(self, keys: int) -> None:
        """Begin with a filter for so many keys, as far as the database will hold them; it must be empty."""
        if keys >= self._tuning.front_keys_min:
            self._filter = self._new_filter(min(keys, self._tuning.files_bytes_max // FILE_BYTES_PER_KEY))

    def add(self, keys: Sequence[EventKey]) -> None:
        """Add keys before they are written."""
        for keys_filter in (self._filter, self._next):
            if keys_filter is not None:
                keys_filter.add(keys)

    def warm(self) -> bool:
        """
        Continue the scan by one step, or begin one if that is due; False if it is not.

        Raises:
            IndexCorruptError, IndexUnavailableError: the database cannot be read.
        """
        if self._next is None:
            self._begin_if_due()
        if self._next is not None:
            self._scan(self._next, self._tuning.front_keys_scanned)
        return self._next is not None

    def _begin_if_due(self) -> None:
        entries = self._database.entries
        try:
            files = int(entries.property_value("rocksdb.num-files-at-level0") or 0)
            stored = entries.property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as err:
            translate(err, f"cannot measure {self._database.path}")
        if not (files >= self._tuning.front_files_min if self._filter is None else self._filter.is_full):
            return
        self._next = self._new_filter(max(1, stored))
        self._scanned_to = bytes(KEY_BYTES)

    def _new_filter(self, keys: int) -> KeyFilter | None:
        """Return an empty filter; None if there is no memory for it."""
        try:
            return KeyFilter(keys, self._native)
        except OSError as err:
            structlog.get_logger(__name__).warning(
                "no memory for the Bloom filter cache of an index",
                path=str(self._database.path),
                error=str(err),
            )
            return None

    def _scan(self, keys_filter: KeyFilter, count: int) -> None:
        """Add the next `count` keys in order; use the filter if they were the last."""
        try:
            entries = self._database.entries
            following = cast(Iterator[EventKey], entries.keys(from_key=self._scanned_to, read_opt=_UNCACHED))
            keys = list(islice(following, count))
            del following  # else an error's traceback would keep the database open
            is_scanned = len(keys) < count and self._ends_after(keys)
        except Exception as err:
            translate(err, f"cannot read {self._database.path}")
        keys_filter.add(keys)
        if is_scanned:
            self._filter, self._next = keys_filter, None
        elif keys:
            self._scanned_to = keys[-1]  # read again by the next scan

    def _ends_after(self, keys: Sequence[EventKey]) -> bool:
        """Whether no key follows; iterators end silently at corruption, so their status is checked."""
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


def is_adding_proved(native: AddKeys) -> bool:
    """Whether the native module sets the same bits as the Python code."""
    keys = [hashlib.blake2b(bytes([n % 256, n // 256]), digest_size=KEY_BYTES).digest() for n in range(1_000)]
    filters = KeyFilter(200), KeyFilter(200, native)
    for each in filters:
        each.add(keys)
    return filters[0].words == filters[1].words
