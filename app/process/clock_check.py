"""
Whether this machine's clock can be right, judged by the embedded log; with Kafka the brokers judge it.

Log time decides which ids are remembered and which events are deleted, so a clock that is far ahead
must not be believed. The log keeps a note of the time: a running gateway renews it by the time that
passes, and the next one's clock may be later by what a downtime can explain. A clock that is behind
needs no refusal: timestamps never run back, and less is deleted.
"""

import asyncio
from datetime import UTC, date, datetime, timedelta

import structlog

from app.config import Settings, format_duration
from dedupe.clock import Clock
from dedupe.errors import ConfigurationError, GatewayError
from dedupe.log import LogStore

NOTE = "clock"
RENEW_S = 60.0
ACCEPTED_FOR = timedelta(days=1)
"""So that GATEWAY_CLOCK_ACCEPT, once said and forgotten, cannot vouch for another clock."""

log = structlog.get_logger(__name__)


async def check_clock(store: LogStore, settings: Settings, clock: Clock, *, newest_ms: int | None) -> None:
    """
    Refuse a clock that is implausibly far ahead of the log, and note the time otherwise.

    Args:
        store: the log.
        settings: what is implausible, and what the operator vouches for.
        clock: the one to judge.
        newest_ms: log time of the log's newest record, None if it is empty: then any clock will do.

    Raises:
        ConfigurationError: it is, and the operator does not say that it is right.
        RetriableError: the log cannot be read or written now.
    """
    now_ms = clock.now_ms()
    if _is_accepted(now_ms, settings.clock_accept):
        log.warning("the clock is believed because of GATEWAY_CLOCK_ACCEPT", clock=_text(now_ms))
        newest_ms = None
    if newest_ms is None:
        await _note(store, settings.topic, now_ms)
        return
    noted_ms = await judge_clock(store, settings, now_ms=now_ms, newest_ms=newest_ms)
    known_ms = newest_ms if noted_ms is None else noted_ms
    log.info("the log was last in use", at=_text(known_ms))
    if noted_ms is None or now_ms > noted_ms:
        await _note(store, settings.topic, max(now_ms, known_ms))


async def judge_clock(store: LogStore, settings: Settings, *, now_ms: int, newest_ms: int) -> int | None:
    """
    Refuse a clock that is implausibly far ahead of the log, unless it is vouched for; note nothing.

    Returns:
        The time that is noted in the log, in ms, if one is.

    Raises:
        ConfigurationError, RetriableError: see check_clock.
    """
    noted_ms = await _noted_ms(store, settings.topic)
    known_ms = newest_ms if noted_ms is None else noted_ms
    if _is_accepted(now_ms, settings.clock_accept):
        return noted_ms
    if now_ms - known_ms > settings.clock_jump_max * 1000:
        raise ConfigurationError(_refusal(now_ms, known_ms, settings.clock_jump_max))
    return noted_ms


async def keep_time(store: LogStore, topic: str, clock: Clock, *, renew_s: float = RENEW_S) -> None:
    """Renew the note for as long as the gateway runs, so that a log may rest for weeks."""
    while True:
        await asyncio.sleep(renew_s)
        try:
            noted_ms, now_ms = await _noted_ms(store, topic), clock.now_ms()
            if noted_ms is None or now_ms > noted_ms:
                await _note(store, topic, now_ms)
        except GatewayError as err:
            log.warning("the time cannot be noted in the log, trying again later", error=str(err))


async def _noted_ms(store: LogStore, topic: str) -> int | None:
    text = (await store.notes(NOTE, topic)).get(0)
    return None if text is None else int(text)


async def _note(store: LogStore, topic: str, now_ms: int) -> None:
    await store.note(NOTE, topic, 0, str(now_ms))


def _is_accepted(now_ms: int, accepted: date | None) -> bool:
    return accepted is not None and abs(_utc(now_ms).date() - accepted) <= ACCEPTED_FOR


def _refusal(now_ms: int, known_ms: int, jump_max_s: float) -> str:
    return (
        f"this machine's clock says {_text(now_ms)}, but the log was last in use at {_text(known_ms)}, "
        f"which is more than GATEWAY_CLOCK_JUMP_MAX ({format_duration(jump_max_s)}) before: correct the "
        "clock, for with a wrong one ids are forgotten and events deleted too early; or, if it is right "
        f"and no gateway ran meanwhile, say so with GATEWAY_CLOCK_ACCEPT={_utc(now_ms).date()}"
    )


def _text(at_ms: int) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M} UTC"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
