"""Bodies of events, plain and odd in every way that JSON and events can be, from a seed."""

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

NAMES = (
    "a",
    "name",
    "ip",
    "b",
    "c",
    "Order Completed",
    "café",
    "日本",
    "\U0001f600",
    "",
    " ",
    "x" * 40,
    "/",
    "{[",
)
WORDS = (*NAMES, '"', "\\", '"context":{')
ESCAPES = (
    "\\n",
    "\\t",
    "\\u0000",
    "\\u001f",
    "\\u00e9",
    "\\ud83d\\ude00",
    "\\/",
    "\\\\",
    '\\"',
    "\\b",
    "\\f",
    "\\r",
    "\\u0041",
)
BROKEN_ESCAPES = ("\\ud83d", "\\ude00", "\\x", "\\u12", "\x01")
NUMBERS = (
    "0",
    "1",
    "-1",
    "17",
    "12.5",
    "0.1",
    "-0.001",
    "99.99",
    "123456789012345678",
    "48.858370421",
    "1700000000000",
)
ODD_NUMBERS = (
    *("-0", "-0.0", "10.0", "1.50", "1e3", "1E-2", "0.0001", "0.00001", "1e999", "1234567890123456789012"),
    *("48.85837042112345", "-122.41941550000001", "0.30000000000000004", "9007199254740993", "5e-324"),
    *("9007199254740992.5", "123456789012345.678", "18446744073709551615", "-9223372036854775808"),
    *("01", "1.", ".5", "+1", "NaN", "2.2250738585072014e-308", "0.00012345678901234567", "1" * 5000),
)
BLANKS = ("", "", "", " ", "\n ", "\t", "\r\n")
TYPES = ("track", "identify", "page", "alias", "screen", "group")
FIELDS = (
    *("context", "integrations", "properties", "traits", "userId", "anonymousId", "timestamp"),
    *("originalTimestamp", "event", "channel", "sentAt", "_metadata", "writeKey", "receivedAt", "sequence"),
    *("extra", "zz", "A", "client", "firstSequence"),
)


class Body(NamedTuple):
    """A body, and what it was made of."""

    content: bytes
    shape: str
    """"batch", "array" or "event"."""
    events: int


class Bodies:
    """Makes bodies; each decision is drawn from one generator, so a seed repeats them."""

    def __init__(self, seed: int, *, oddness: float = 0.05) -> None:
        """`oddness`: the probability that a detail is not plain."""
        self._rng = random.Random(seed)
        self._oddness = oddness

    def __iter__(self) -> Iterator[Body]:
        """Yield bodies without end."""
        while True:
            yield self.body()

    def body(self) -> Body:
        """Return a batch, an array or an event, sometimes damaged."""
        count = self._rng.choice((1, 2, 5, 20)) if not self._is_odd(0.2) else 60
        shape = self._rng.choice(("batch", "batch", "batch", "array", "event"))
        if shape == "event":
            text, count = self.event(), 1
        else:
            text = self._batch(count) if shape == "batch" else self._array(count)
        content = text.encode("utf-8", "surrogatepass")
        return Body(self._damaged(content) if self._is_odd(0.2) else content, shape, count)

    def _batch(self, count: int) -> str:
        fields = {"batch": lambda: self._list([self.event() for _ in range(count)])}
        others: dict[str, Callable[[], str]] = {
            "sentAt": lambda: self._string(self._rng.choice(("2026-01-01T00:00:00.000Z", "x" * 101, "é"))),
            "context": self._context,
            "integrations": lambda: self._object({"All": lambda: "true"}),
            "writeKey": lambda: '"key"',
            "firstSequence": lambda: self._rng.choice(("1", "7", '"x"')),
            "other": lambda: self._value(3),
        }
        names = self._rng.sample(sorted(others), self._rng.choice((0, 0, 1, 2)))
        if self._is_odd(0.3):
            names.append(self._rng.choice(("batch", "event")))
        items = [("batch", fields["batch"]), *((name, others.get(name, self._context)) for name in names)]
        self._rng.shuffle(items)
        return self._fields(items)

    def _array(self, count: int) -> str:
        return self._list([self.event() for _ in range(count)])

    def event(self) -> str:
        """Return the JSON of an event."""
        if self._is_odd(0.2):
            return self._value(1)
        fields: list[tuple[str, Callable[[], str]]] = []
        if not self._is_odd():
            fields.append(("messageId", self._id))
        if not self._is_odd():
            fields.append(("type", self._type))
        for name in self._rng.sample(FIELDS, self._rng.randrange(2, 9)):
            fields.append((name, self._value_of(name)))
        if self._is_odd():
            fields.append(self._rng.choice((*fields, ("batch", self._value_of("batch")))))
        self._rng.shuffle(fields)
        return self._fields(fields)

    def _id(self) -> str:
        if self._is_odd():
            return self._value(2)
        if self._is_odd():
            return self._string(self._rng.choice(("x" * 255, "x" * 256, "é1", " padded", "", "\u200b")))
        return self._string(f"m-{self._rng.randrange(10**6)}")

    def _type(self) -> str:
        if self._is_odd():
            return self._value(3)
        if self._is_odd():
            return self._string(self._rng.choice(("é" * 60, "x" * 101, "a\nb")))
        return self._string(self._rng.choice((*TYPES, "custom", "x" * 100)))

    def _value_of(self, name: str) -> Callable[[], str]:
        match name:
            case "context":
                return self._context
            case "sentAt" | "receivedAt" | "timestamp" | "originalTimestamp":
                return lambda: "null" if self._is_odd() else self._string("2026-01-01T00:00:00.000Z")
            case "sequence":
                return lambda: self._number() if self._is_odd(3) else str(self._rng.randrange(1, 500))
            case "batch":
                return lambda: self._value(1) if self._is_odd() else "[]"
            case "event":
                return lambda: self._value(3) if self._is_odd() else self._string("Order Completed")
            case _:
                return lambda: self._value(2)

    def _context(self) -> str:
        if self._is_odd():
            return self._rng.choice(("null", "{}", "[]", '"x"', "7", '{"ip":null}'))
        fields: dict[str, Callable[[], str]] = {
            "library": lambda: self._object({"name": lambda: '"js"', "ip": lambda: self._value(3)}),
            "page": lambda: self._value(2),
            "locale": lambda: '"de"',
            "ip": lambda: '"203.0.113.7"',
            "context": lambda: self._value(3),
        }
        names = self._rng.sample(sorted(fields), self._rng.randrange(1, 4))
        return self._fields([(name, fields[name]) for name in names])

    def _value(self, depth: int) -> str:
        kind = self._rng.randrange(9 if depth < 5 else 6)
        if kind < 3:
            return self._text()
        if kind == 3:
            return self._rng.choice(("true", "false", "null", "nul" if self._is_odd(0.05) else "true"))
        if kind < 6:
            return self._number()
        if kind == 6:
            return self._list([self._value(depth + 1) for _ in range(self._rng.randrange(4))])
        if kind == 7 and self._is_odd():
            levels = self._rng.choice((27, 28, 29, 30, 31, 40, 130))
            return "[" * levels + "]" * levels
        names = [self._name() for _ in range(self._rng.randrange(5))]
        return self._fields([(name, lambda: self._value(depth + 1)) for name in names])

    def _name(self) -> str:
        return self._rng.choice(FIELDS + (WORDS if self._is_odd() else NAMES))

    def _number(self) -> str:
        if self._is_odd(2):
            return str(self._rng.choice(ODD_NUMBERS))
        if self._rng.random() < 0.3:
            return repr(self._rng.uniform(-1000, 1000))
        if self._is_odd(2):
            return f"{self._rng.uniform(0, 100):.{self._rng.randrange(1, 16)}f}"
        return self._rng.choice(NUMBERS)

    def _text(self) -> str:
        text = self._rng.choice(WORDS)
        return self._string(text)

    def _string(self, text: str) -> str:
        encoded = json.dumps(text, ensure_ascii=self._rng.random() < 0.2)
        if self._is_odd(2):
            extra = self._rng.choice(BROKEN_ESCAPES if self._is_odd(0.3) else ESCAPES)
            encoded = f'"{extra}{encoded[1:]}'
        return encoded

    def _object(self, fields: dict[str, Callable[[], str]]) -> str:
        return self._fields(list(fields.items()))

    def _fields(self, fields: list[tuple[str, Callable[[], str]]]) -> str:
        return self._joined(
            "{", [f"{self._key(name)}{self._blank()}:{self._blank()}{value()}" for name, value in fields], "}"
        )

    def _key(self, name: str) -> str:
        if name and self._is_odd(0.1):
            return f'"\\u{ord(name[0]) & 0xFFFF:04x}{json.dumps(name[1:])[1:]}'
        return json.dumps(name, ensure_ascii=False)

    def _list(self, items: list[str]) -> str:
        return self._joined("[", items, "]")

    def _joined(self, begin: str, parts: list[str], end: str) -> str:
        comma = f"{self._blank()},{self._blank()}"
        return f"{begin}{self._blank()}{comma.join(parts)}{self._blank()}{end}"

    def _blank(self) -> str:
        return self._rng.choice(BLANKS)

    def _damaged(self, content: bytes) -> bytes:
        at = self._rng.randrange(len(content))
        match self._rng.randrange(4):
            case 0:
                return content[:at]
            case 1:
                return content[:at] + content[at + 1 :]
            case 2:
                return content[:at] + bytes([self._rng.randrange(256)]) + content[at:]
            case _:
                return content[:at] + bytes([self._rng.randrange(256)]) + content[at + 1 :]

    def _is_odd(self, factor: float = 1) -> bool:
        return self._rng.random() < self._oddness * factor
