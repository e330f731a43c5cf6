"""Makes a screenshot small: a page has few colours, and a palette of 256 shows nearly all of them."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256

Colour = tuple[int, int, int]


def shrunk(png: bytes) -> bytes:
    """Return an 8-bit RGB picture, as browsers take them, with a palette of its commonest colours."""
    width, height, rows = _pixels(png)
    counts = Counter(colour for row in rows for colour in row)
    palette = [colour for colour, _ in counts.most_common(COLOURS)]
    places: dict[Colour, int] = {colour: place for place, colour in enumerate(palette)}
    for colour in counts:
        if colour not in places:
            places[colour] = min(range(len(palette)), key=lambda place: _distance(palette[place], colour))
    lines = b"".join(b"\0" + bytes([places[colour] for colour in row]) for row in rows)
    return SIGNATURE + b"".join(
        _chunk(kind, content)
        for kind, content in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes(part for colour in palette for part in colour)),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        )
    )


def _distance(one: Colour, other: Colour) -> int:
    return sum((mine - its) ** 2 for mine, its in zip(one, other, strict=True))


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(SIGNATURE)
    while place < len(png):
        (size,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + size]
        place += size + 12


def _pixels(png: bytes) -> tuple[int, int, list[list[Colour]]]:
    """Return width, height and the rows of a picture's colours."""
    chunks = list(_chunks(png))
    width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
    assert form == [8, 2, 0, 0, 0], "8 bits of red, green and blue, not interlaced"
    data = zlib.decompress(b"".join(content for kind, content in chunks if kind == b"IDAT"))
    stride, above, rows = 3 * width, bytearray(3 * width), []
    for number in range(height):
        start = number * (stride + 1)
        line = bytearray(data[start + 1 : start + 1 + stride])
        _unfilter(data[start], line, above)
        rows.append(list(zip(line[0::3], line[1::3], line[2::3], strict=True)))
        above = line
    return width, height, rows


def _unfilter(kind: int, line: bytearray, above: bytearray) -> None:
    """Undo what a row's bytes were predicted by (PNG, section 9)."""
    for place in range(len(line)):
        left = line[place - 3] if place >= 3 else 0
        up = above[place]
        corner = above[place - 3] if place >= 3 else 0
        guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[kind]
        line[place] = (line[place] + guess) & 0xFF


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))
