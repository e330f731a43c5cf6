"""The options of a run besides locust's own."""

from argparse import ArgumentTypeError
from typing import NamedTuple, Protocol, Self

from loadtests.load.profiles import PROFILES

REQUESTS_PER_S = 5.0
"""Of one client: many clients with few requests each, as in the field, and 200 ms between two of them."""


class Parsed(Protocol):
    """Parsed options: attributes, of locust and of ours."""

    def __getattr__(self, name: str) -> object: ...


class Parser(Protocol):
    """What locust gives to add options to."""

    def add_argument_group(self, title: str) -> "Parser": ...

    def add_argument(self, *names: str, **settings: object) -> object: ...


class Options(NamedTuple):
    """The options of a run."""

    load_profile: str
    seconds: float
    events_per_s: float
    batch_events: int
    duplicates: float
    skew: float
    write_keys: str
    hostile_key: str
    p99_ms: float
    refused_max: float
    failures_max: float
    late_max: float
    no_log: bool
    summary: str

    @classmethod
    def of(cls, parsed: Parsed | None) -> Self:
        """Pick ours."""
        return cls(*(getattr(parsed, name) for name in cls._fields))

    @property
    def clients(self) -> int:
        """Return the basic number of clients."""
        return max(1, round(self.events_per_s / self.batch_events / REQUESTS_PER_S))


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ArgumentTypeError("a share is between 0 and 1")
    return share


def add_options(parser: Parser) -> None:
    """Add ours to locust's."""
    group = parser.add_argument_group("Traffic")
    texts = "; ".join(f"{name}: {profile.text}" for name, profile in PROFILES.items())
    group.add_argument("--load-profile", choices=list(PROFILES), default="steady", help=texts)
    group.add_argument("--seconds", type=float, default=60.0, help="how long it takes; then it stops")
    group.add_argument(
        "--events-per-s", type=float, default=1000.0, help="basic pace, which a profile multiplies"
    )
    group.add_argument("--batch-events", type=int, default=20, help="events a request")
    group.add_argument("--duplicates", type=_share, default=0.1, help="share of requests that are sent again")
    group.add_argument(
        "--skew",
        type=float,
        default=1.0,
        help="exponent of Zipf's law: how much more the first write keys send than the others, and how much "
        "rather the newest requests are sent again than older ones; 0: all alike",
    )
    group.add_argument("--write-keys", default="load-0,load-1,load-2,load-3", help="of well-behaved clients")
    group.add_argument("--hostile-key", default="hostile", help="write key of hostile neighbours")
    limits = parser.add_argument_group("Limits, of which each makes the exit code 1")
    limits.add_argument("--p99-ms", type=float, default=0.0, help="of answers, from when they were due")
    limits.add_argument("--refused-max", type=float, default=-1.0, help="share of answers 429 and 503")
    limits.add_argument("--failures-max", type=_share, default=0.0, help="share of wrong or missing answers")
    limits.add_argument(
        "--late-max", type=_share, default=0.05, help="share of requests that locust itself sent too late"
    )
    limits.add_argument(
        "--no-log", action="store_true", help="do not compare receipts with the log by gateway events"
    )
    group.add_argument("--summary", default="", help="file for a summary as JSON")
