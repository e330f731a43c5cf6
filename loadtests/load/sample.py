"""
A sample of the receipts that clients got, and whether the log agrees with it.

The log is read by `gateway events`, which needs the gateway's own GATEWAY_LOG... settings.
"""

import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson

from loadtests.load.answers import Place

SAMPLE_MAX = 200_000
"""The limit of receipts, about 200 bytes each: later ones are not sampled."""


class Compared(NamedTuple):
    """The comparison of a sample with the log."""

    sampled: int
    lost: Sequence[str]
    doubled: Sequence[str]
    moved: Sequence[str]

    @property
    def is_whole(self) -> bool:
        """Whether each sampled event is in the log once, at the place of its receipt."""
        return self.sampled > 0 and not (self.lost or self.doubled or self.moved)

    def __str__(self) -> str:
        if not self.sampled:
            return "no receipt was sampled"
        kinds = (("lost", self.lost), ("twice or more", self.doubled), ("elsewhere", self.moved))
        wrong = [f"{len(ids)} {name}, e.g. {ids[0]}" for name, ids in kinds if ids]
        return f"{self.sampled:,} receipts: " + (
            "; ".join(wrong) or "each event is in the log once, where its receipt says"
        )


class Sample:
    """Receipts of this process, and on a master those of its workers."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._unreported: list[Place] = []
        self._chance = random.Random(1)
        self._is_closed = False

    def take(self, places: Sequence[Place]) -> None:
        """Remember one receipt of an answer."""
        self.add([self._chance.choice(places)])

    def add(self, places: Iterable[Place]) -> None:
        """Remember receipts."""
        for place in places:
            if self._is_closed:
                return
            if len(self._places) < SAMPLE_MAX and place.message_id not in self._places:
                self._places[place.message_id] = place[1:]
                self._unreported.append(place)

    def close(self) -> None:
        """Accept no more: events that are stored while the log is read may be missed."""
        self._is_closed = True

    def take_unreported(self) -> list[Place]:
        """Return what was added since the last call, for the master."""
        unreported, self._unreported = self._unreported, []
        return unreported

    def compare(self, lines: Iterable[bytes]) -> Compared:
        """Search the lines of `gateway events` for each event of the sample."""
        copies: dict[str, int] = {}
        moved = []
        for line in lines:
            event = orjson.loads(line)
            message_id = event["messageId"]
            if (place := self._places.get(message_id)) is not None:
                copies[message_id] = copies.get(message_id, 0) + 1
                if place != (event["partition"], event["offset"]) and copies[message_id] == 1:
                    moved.append(message_id)
        return Compared(
            len(self._places),
            [message_id for message_id in self._places if message_id not in copies],
            [message_id for message_id, count in copies.items() if count > 1],
            moved,
        )


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_log_known(url: str, environment: Mapping[str, str]) -> bool:
    """Whether `gateway events` would read this gateway's log: it is on this machine, or settings name it."""
    return urlsplit(url).hostname in LOOPBACK or "GATEWAY_LOG" in environment


class LogUnreadableError(Exception):
    """`gateway events` failed."""


def stored_events() -> Iterator[bytes]:
    """
    Yield the lines of `gateway events`, under the settings of the environment.

    Raises:
        LogUnreadableError: it failed; the reason is on stderr.
    """
    command = [str(Path(sys.executable).with_name("gateway")), "events", "--from-start", "--until-end"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise LogUnreadableError(f"gateway events ended with {process.returncode}")
