"""Which clients a profile has, how many of them at which time, and what may not be exceeded."""

from collections.abc import Sequence
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of a run."""

    share: float  # of its time
    factor: float  # clients, as a multiple of the basic number


class Profile(NamedTuple):
    """One kind of traffic."""

    text: str
    clients: Sequence[str]  # names of classes in loadtests.load.clients, as many of each
    stages: Sequence[Stage]
    p99_ms: float = 1000.0  # of answers to well-behaved clients
    refused_max: float = 0.0  # share of their requests answered 429 or 503
    divides: bool = False  # whether the topic, on Kafka, gets twice as many partitions in the middle


CALM = (Stage(1.0, 1.0),)

PROFILES = {
    "steady": Profile("servers that send at an even pace", ["Server"], CALM),
    "spike": Profile(
        "for a third of the time five times as many servers",
        ["Server"],
        [Stage(0.3, 1.0), Stage(0.35, 5.0), Stage(0.35, 1.0)],
        p99_ms=5000.0,
        refused_max=0.5,
    ),
    "retry_storm": Profile(
        "for a third of the time no answer arrives: each batch is sent four times at once, and later again",
        ["ImpatientServer"],
        CALM,
        p99_ms=3000.0,
        refused_max=0.2,
    ),
    "reconnect_wave": Profile(
        "twice ten times as many phones come back at once, on new connections, each with a backlog",
        ["Phone"],
        [Stage(0.2, 1.0), Stage(0.3, 10.0), Stage(0.2, 1.0), Stage(0.3, 10.0)],
        p99_ms=5000.0,
        refused_max=0.5,
    ),
    "offline_phones": Profile(
        "phones that number their events in client sessions, lose answers, and go offline",
        ["SessionPhone"],
        [Stage(1.0, 4.0)],
    ),
    "hostile_neighbour": Profile(
        "beside the servers as many senders of floods, hostile bodies and wrong keys, which heed nothing",
        ["Server", "Vandal"],
        [Stage(1.0, 2.0)],
        p99_ms=3000.0,
        refused_max=0.05,
    ),
    "reshard": Profile(
        "servers that send at an even pace while the topic, on Kafka, gets twice as many partitions",
        ["Server"],
        CALM,
        p99_ms=10_000.0,
        refused_max=0.5,
        divides=True,
    ),
}


def clients_at(profile: Profile, second: float, *, seconds: float, basic: int) -> int | None:
    """Return the number of clients at a second after the start, or None at the end."""
    end = 0.0
    for stage in profile.stages:
        end += stage.share * seconds
        if second < end:
            return max(len(profile.clients), round(stage.factor * basic))
    return None
