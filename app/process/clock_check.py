"""
The check of this machine's clock against the embedded log; with Kafka the brokers check it.

Log time decides which ids are forgotten and which events are deleted, so a clock that is far ahead is
refused. A running gateway renews a note of the time in the log, which the next start compares with its clock.
A clock that is behind is not refused: timestamps never decrease, and less is deleted.
"""

import asyncio
from datetime import UTC, date, datetime, timedelta

import structlog

from app.settings.model import Settings
from app.settings.units import format_duration
from dedupe.model.clock import Clock, SystemClock
from dedupe.model.errors import ConfigurationError, GatewayError
from dedupe.storage.log import LogStore

NOTE = "clock"
RENEW_S = 60.0
ACCEPTED_FOR = timedelta(days=1)
"""Before and after the day of `--accept-clock`, so that an option that was not removed accepts no other
clock."""

JUMP_MAX = 1 / 2
"""
The part of the window by which the clock may be ahead of the log. A wrong clock within it shortens the
window; a downtime within it is accepted.
"""

logger = structlog.get_logger(__name__)


async def check_clock(
    store: LogStore,
    settings: Settings,
    clock: Clock,
    *,
    newest_ms: int | None,
    accepted_day: date | None = None,
) -> None:
    """
    Refuse a clock that is implausibly far ahead of the log, and note the time otherwise.

    Args:
        store: the log.
        settings: the window, and the topic.
        clock: the clock to check.
        newest_ms: timestamp of the log's newest record, None if it is empty: then any clock is accepted.
        accepted_day: the date in UTC for which the operator accepts the clock.

    Raises:
        ConfigurationError: the clock is refused.
        RetriableError: the log cannot be read or written now.
    """
    now_ms = clock.now_ms()
    if accepted_day is not None and abs(_utc(now_ms).date() - accepted_day) <= ACCEPTED_FOR:
        logger.warning("the clock is accepted because of --accept-clock", clock=_text(now_ms))
        newest_ms = None
    if newest_ms is None:
        await _note(store, settings.log.topic, now_ms)
        return
    noted_ms = await judge_clock(store, settings, now_ms=now_ms, newest_ms=newest_ms)
    known_ms = newest_ms if noted_ms is None else noted_ms
    logger.info("the log was last in use", at=_text(known_ms))
    if noted_ms is None or now_ms > noted_ms:
        await _note(store, settings.log.topic, max(now_ms, known_ms))


async def judge_clock(store: LogStore, settings: Settings, *, now_ms: int, newest_ms: int) -> int | None:
    """
    Refuse a clock that is implausibly far ahead of the log; write no note.

    Returns:
        The time in the log's note, in ms, None without one.

    Raises:
        ConfigurationError, RetriableError: see check_clock.
    """
    noted_ms = await _noted_ms(store, settings.log.topic)
    known_ms = newest_ms if noted_ms is None else noted_ms
    jump_max_s = settings.index.window * JUMP_MAX
    if now_ms - known_ms > jump_max_s * 1000:
        raise ConfigurationError(_refusal(now_ms, known_ms, jump_max_s))
    return noted_ms


async def keep_time(store: LogStore, topic: str, clock: Clock, *, renew_s: float = RENEW_S) -> None:
    """Renew the note while the gateway runs, so that a log without events keeps its time."""
    while True:
        await asyncio.sleep(renew_s)
        try:
            noted_ms, now_ms = await _noted_ms(store, topic), clock.now_ms()
            if noted_ms is None or now_ms > noted_ms:
                await _note(store, topic, now_ms)
        except GatewayError as err:
            logger.warning("the time cannot be noted in the log, trying again later", error=str(err))


def follow_wall_clock(clock: SystemClock) -> None:
    """Have log time follow the wall clock after brokers have refused it, and say so."""
    if ahead_s := clock.follow_wall_clock():
        direction = "ahead of" if ahead_s > 0 else "behind"
        logger.warning(
            f"log time was {direction} this machine's clock, and follows it again",
            seconds=round(abs(ahead_s)),
        )


async def _noted_ms(store: LogStore, topic: str) -> int | None:
    text = (await store.notes(NOTE, topic)).get(0)
    return None if text is None else int(text)


async def _note(store: LogStore, topic: str, now_ms: int) -> None:
    await store.note(NOTE, topic, 0, str(now_ms))


def _refusal(now_ms: int, known_ms: int, jump_max_s: float) -> str:
    return (
        f"this machine's clock shows {_text(now_ms)}, but the log was last in use at {_text(known_ms)}, "
        f"which is more than half of GATEWAY_WINDOW ({format_duration(jump_max_s)}) before: correct the "
        "clock, since with a wrong one ids are forgotten and events deleted too early; or, if it is right "
        f"and no gateway ran meanwhile, start with --accept-clock {_utc(now_ms).date()}"
    )


def _text(at_ms: int) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M} UTC"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
