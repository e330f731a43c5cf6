"""How many live sessions each source of a lane has, the largest source first. Pure."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping


class SourceSizes(Mapping[bytes, int]):
    """
    The number of live sessions of each source that has any, by the source's hash.

    Sources of one size are together, so a change costs no more with more sources, and who wants the largest
    ones reads no others. Of n sessions there are at most sqrt(2 n) different sizes.
    """

    def __init__(self, sizes: Iterable[tuple[bytes, int]] = ()) -> None:
        self._sizes: dict[bytes, int] = {}
        self._of_size: dict[
            int, OrderedDict[bytes, None]
        ] = {}  # a dict finds its first key slower and slower
        self._ascending: list[int] = []
        for source_hash, size in sizes:
            self.put(source_hash, size)

    def put(self, source_hash: bytes, size: int) -> None:
        """Note a source's number of sessions; 0 forgets it."""
        before = self._sizes.pop(source_hash, 0)
        if before:
            same = self._of_size[before]
            del same[source_hash]
            if not same:
                del self._of_size[before]
                del self._ascending[bisect_left(self._ascending, before)]
        if size:
            self._sizes[source_hash] = size
            if size not in self._of_size:
                self._of_size[size] = OrderedDict()
                insort(self._ascending, size)
            self._of_size[size][source_hash] = None

    def largest_first(self) -> Iterator[tuple[bytes, int]]:
        """Yield sources and their sizes, as far as they are asked for; nothing may be put meanwhile."""
        for size in reversed(self._ascending):
            for source_hash in self._of_size[size]:
                yield source_hash, size

    def __getitem__(self, source_hash: bytes) -> int:
        return self._sizes[source_hash]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)
