"""
The checks of `gateway check`, mostly independent of each other.

Unlike a start, they create, lock, note and fence nothing.
"""

import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from app.auth.key_entries import check_key_file
from app.process.clock_check import judge_clock
from app.settings.data_dir import check_format, holders_of, refuse_lost_log
from app.settings.environment import refuse_unknown_variables
from app.settings.model import Settings
from app.settings.remaining import UnusableSettingError, remaining_settings
from app.settings.section import sections_in
from app.settings.units import format_size
from app.stores import inspect_kafka, layout_of, open_for_reading
from dedupe.decide.recovery import RecordCheck
from dedupe.model.clock import SystemClock
from dedupe.model.errors import GatewayError, RetriableError
from dedupe.model.identity import Identity
from dedupe.model.types import LogRecord
from dedupe.storage.log import LogStore, PartitionLog
from dedupe.storage.pinning import check_pins
from dedupe.storage.setting_problems import Level

TAIL_OFFSETS = 1_000
"""The newest record of a partition is one of the last offsets; only a few markers follow it."""
CLOCK_BEHIND_S = 300
"""Clocks of a fleet differ by less. A clock that is behind does little harm: timestamps never decrease."""


class Result(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """One line."""

    result: Result
    about: str
    says: str


Look: TypeAlias = Callable[[], Coroutine[Any, Any, list[Finding]]]


async def all_checks() -> AsyncIterator[Finding]:
    """Yield the findings, in the order of a start."""
    for finding in _refused("variables", refuse_unknown_variables):
        yield finding
    settings, problems, warnings = remaining_settings()
    for sentence in problems:
        yield Finding(Result.WRONG, "settings", sentence)
    if not problems:
        yield Finding(Result.OK, "settings", f"they are consistent, for {settings.gateway.mode}")
    for warning in warnings:
        yield Finding(Result.WARNING, "settings", warning)
    for about, look in LOOKS_HERE.items():
        try:
            for finding in look(settings):
                yield finding
        except UnusableSettingError as err:
            yield _failure(about, err)
    async for finding in _check_log(settings):
        yield finding


def _refused(about: str, look: Callable[[], object]) -> Iterator[Finding]:
    try:
        look()
    except GatewayError as err:
        for sentence in str(err).splitlines():
            yield Finding(Result.WRONG, about, sentence)


def _check_files(settings: Settings) -> Iterator[Finding]:
    for section in sections_in(settings):
        for name in type(section).model_fields:
            path = getattr(section, name) if name.endswith("_file") else None
            if path is not None and not _is_readable(path):
                variable = section.variable(name)
                says = f"{variable} is {path}, which is not a readable file: mount it, or set another path"
                yield Finding(Result.WRONG, "files", says)


def _check_write_keys(settings: Settings) -> Iterator[Finding]:
    path = settings.gateway.write_keys_file
    if path is not None and _is_readable(path):
        refused = list(_refused("write keys", partial(check_key_file, path)))
        yield from refused or [Finding(Result.OK, "write keys", f"{path} can be used")]


def _is_readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)


def _check_folder(settings: Settings) -> Iterator[Finding]:
    folder = settings.log.data_dir
    there = _existing(folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        says = f"user {os.geteuid()} cannot write to {there}: change its owner, or set another folder"
        yield Finding(Result.WRONG, "data folder", f"{says} with GATEWAY_DATA_DIR")
        return
    refused = list(_refused("data folder", partial(check_format, folder)))
    if settings.log.kind == "sqlite":
        refused += _refused("data folder", partial(refuse_lost_log, folder))
    yield from refused
    if processes := holders_of(folder):
        says = f"{folder} is in use by process {processes[0]}: a second gateway needs a folder of its own"
        yield Finding(Result.WARNING, "data folder", says)
    elif not refused:
        yield Finding(
            Result.OK, "data folder", f"{folder} can be used" + ("" if folder.exists() else ", and made")
        )


def _check_disk(settings: Settings) -> Iterator[Finding]:
    there = _existing(settings.log.data_dir)
    disk = shutil.disk_usage(there)
    if disk.free < settings.limits.disk_free_min:
        says = (
            f"{_gib(disk.free)} are free under {there}, less than GATEWAY_DISK_FREE_MIN "
            f"({format_size(settings.limits.disk_free_min)}): every request would be answered with 503"
        )
        yield Finding(Result.WRONG, "disk", says)
        return
    yield Finding(Result.OK, "disk", f"{_gib(disk.free)} of {_gib(disk.total)} are free under {there}")


LOOKS_HERE: dict[str, Callable[[Settings], Iterator[Finding]]] = {
    "files": _check_files,
    "write keys": _check_write_keys,
    "data folder": _check_folder,
    "disk": _check_disk,
}
"""The checks of this machine."""


async def _check_log(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings about the log; a check that fails does not prevent the others."""
    try:
        async with open_for_reading(settings.log, _identity_in(settings)) as store:
            if store is None:
                yield Finding(
                    Result.OK, "log", f"there is none yet in {settings.log.data_dir}: a start begins one"
                )
                return
            yield Finding(Result.OK, "log", f"{settings.log.kind} answers as {store.log_id}")
            looks: dict[str, Look] = {
                "topics": partial(_topics, store, settings),
                "identity secret": partial(_identity, store, settings),
                "clock": partial(_clock, store, settings),
            }
            for about, look in looks.items():
                try:
                    findings = await look()
                except (GatewayError, UnusableSettingError) as err:
                    findings = [_failure(about, err)]
                for finding in findings:
                    yield finding
    except (GatewayError, UnusableSettingError) as err:
        yield _failure("log", err)


def _identity_in(settings: Settings) -> Identity | None:
    """Return the identity of the log's gateways; None with a wrong secret, which is told beside this."""
    try:
        return Identity(settings.gateway.identity_key)
    except UnusableSettingError:
        return None


async def _topics(store: LogStore, settings: Settings) -> list[Finding]:
    if settings.log.kind == "sqlite":
        return await _embedded_topics(store, settings)
    unsafe = Result.WARNING if settings.gateway.is_development else Result.WRONG
    results = {Level.WRONG: Result.WRONG, Level.UNSAFE: unsafe, Level.INFO: Result.OK}
    findings = [
        Finding(results.get(problem.level, Result.WARNING), "topics", problem.text)
        for problem in await inspect_kafka(store, settings)
    ]
    return findings or [Finding(Result.OK, "topics", "topics, brokers and rights have no problem")]


async def _embedded_topics(store: LogStore, settings: Settings) -> list[Finding]:
    findings = []
    variables = ("GATEWAY_PARTITIONS", "GATEWAY_QUARANTINE_PARTITIONS")
    for topic, variable in zip(settings.log.topics, variables, strict=True):
        partitions = await store.partitions_of(topic.name)
        if partitions not in (0, topic.partitions):
            says = f"{topic.name} has {partitions} partitions, which never changes: set {variable}"
            findings.append(Finding(Result.WRONG, "topics", f"{says}={partitions}"))
    return findings or [Finding(Result.OK, "topics", "they have the partitions of the settings")]


async def _identity(store: LogStore, settings: Settings) -> list[Finding]:
    identity = Identity(settings.gateway.identity_key)
    is_pinned = await check_pins(store, settings.log.topics, identity)
    checked = 0
    for topic in settings.log.topics:
        for partition in range(await store.partitions_of(topic.name)):
            record = await _newest(store.partition_log(topic.name, partition))
            if record is not None:
                layout = await layout_of(store, settings) if topic.name == settings.log.topic else None
                RecordCheck(identity, partition, topic.partitions, layout).checked(record)
                checked += 1
                break
    if checked and not is_pinned:
        says = "it is that of the newest records, and the log does not say so yet: gateway reshard adopt"
        return [Finding(Result.WRONG, "identity secret", says)]
    if is_pinned:
        return [Finding(Result.OK, "identity secret", "the log was begun with it")]
    says = "the log is empty, so any secret is accepted now; it must not change as long as the log exists"
    return [Finding(Result.OK, "identity secret", says)]


async def _clock(store: LogStore, settings: Settings) -> list[Finding]:
    now_ms = SystemClock().now_ms()
    newest_ms = 0
    for partition in range(await store.partitions_of(settings.log.topic)):
        record = await _newest(store.partition_log(settings.log.topic, partition))
        newest_ms = max(newest_ms, record.timestamp_ms if record else 0)
    if newest_ms and settings.log.kind == "sqlite":
        await judge_clock(store, settings, now_ms=now_ms, newest_ms=newest_ms)
    behind_s = (newest_ms - now_ms) / 1000
    if behind_s > CLOCK_BEHIND_S:
        says = f"it is {behind_s:,.0f} s behind the log's newest event: synchronise the machine's clock"
        return [Finding(Result.WARNING, "clock", says)]
    return [
        Finding(
            Result.OK, "clock", "it fits the log" if newest_ms else "the log has no event to compare with"
        )
    ]


async def _newest(log: PartitionLog) -> LogRecord | None:
    start, end = await log.bounds()
    newest: LogRecord | None = None
    async with aclosing(log.read(max(start, end - TAIL_OFFSETS), end)) as batches:
        async for records in batches:
            newest = records[-1]
    return newest


def _failure(about: str, err: GatewayError | UnusableSettingError) -> Finding:
    is_unknown = isinstance(err, RetriableError | UnusableSettingError)
    result = Result.UNKNOWN if is_unknown else Result.WRONG
    return Finding(result, about, " ".join(str(err).split()))


def _existing(path: Path) -> Path:
    """Return a path, or the innermost folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
