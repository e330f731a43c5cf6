"""What may be wrong with the settings of a log's topics and brokers, and how it is told."""

from enum import Enum
from typing import NamedTuple

import structlog

logger = structlog.get_logger(__name__)


class Level(Enum):
    """How bad a problem is."""

    WRONG = "wrong"  # refused at start in every mode
    UNSAFE = "unsafe"  # refused at start in production, warned of in development
    WARNING = "warning"
    NOT_SHOWN = "not shown"  # the cluster does not show the setting, so nobody has checked it
    INFO = "info"


class Problem(NamedTuple):
    """A setting that is not as the gateway needs it."""

    level: Level
    topic: str  # "" for a setting of brokers
    setting: str
    text: str  # one sentence

    @property
    def is_wrong(self) -> bool:
        """Whether production would refuse to start."""
        return self.level in (Level.WRONG, Level.UNSAFE)


class Inspection(NamedTuple):
    """What a look at topics and brokers has found."""

    problems: list[Problem]
    batch_bytes: dict[str, int]
    """The largest records of a batch that each topic takes, in bytes, where the cluster shows it."""


NOTHING_FOUND = Inspection([], {})


def tell(problem: Problem) -> None:
    """Log a problem of a gateway that serves in spite of it."""
    of_topic = {"topic": problem.topic} if problem.topic else {}  # repeated lines are limited for each
    if problem.level is Level.INFO:
        logger.info("a setting of the log", says=problem.text, **of_topic)
    elif problem.level is Level.UNSAFE:
        logger.warning("unsafe for production", problem=problem.text, **of_topic)
    else:
        logger.warning("a setting of the log may be wrong", problem=problem.text, **of_topic)
