"""Replays quarantined events: sends them once more to a running gateway, as their client would."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import httpx
import orjson

from app.config import LogSettings
from app.ingest import READY, Result, body_of, judge, key_of, result_of
from dedupe.errors import ConfigurationError
from dedupe.log import LogStore
from dedupe.quarantine_reader import Kept, Place, Wanted, read_quarantine
from dedupe.record import parse_identity

TRIES_MAX = 10
"""Of one event while the gateway refuses or does not answer; with its Retry-After a few minutes."""
RETRY_AFTER_S = 1.0  # where no answer says how long
RETRY_AFTER_MAX_S = 60.0  # whatever a proxy says
REQUEST_TIMEOUT_S = 15.0  # well above GATEWAY_ANSWER_TIMEOUT


async def replay(
    store: LogStore,
    settings: LogSettings,
    wanted: Wanted,
    *,
    replayer: "Replayer | None",
    may_renew_id: bool,
    write: Callable[[bytes], None],
) -> Counter[str]:
    """
    Send the wanted records once more, one after another.

    Args:
        store: the log, read only.
        settings: name its topics.
        wanted: all of one source.
        replayer: sends; None to send nothing and say what would be sent.
        may_renew_id: whether events whose own id cannot be used get a new one.
        write: takes a JSON line for each record.

    Returns:
        How many records had each result.

    Raises:
        ConfigurationError: several sources, no such place, or a write key that is refused or belongs
            to another source, which shows in the log after the first event.
        RetriableError: the log cannot be read; what was sent is stored.
    """
    await _check_selection(store, settings.quarantine_topic, wanted)
    results: Counter[str] = Counter()
    is_checked = False
    async with aclosing(read_quarantine(store, settings.quarantine_topic, wanted)) as records:
        async for kept in records:
            result = judge(kept, may_renew_id=may_renew_id)
            if result == READY and replayer is not None:
                result = await replayer.send(kept)
                if result.receipt is not None and not is_checked:
                    await _check_source(store, settings.topic, kept, result.receipt)
                    is_checked = True
            results[result.name] += 1
            write(orjson.dumps(result.document(kept), option=orjson.OPT_APPEND_NEWLINE))
    return results


async def _check_source(store: LogStore, topic: str, kept: Kept, receipt: Mapping[str, Any]) -> None:
    """Look up where the event went: the write key alone decides under whose name it is stored."""
    offset = receipt["offset"]
    log = store.partition_log(topic, receipt["partition"])
    async with aclosing(log.read(offset, offset + 1)) as batches:
        async for records in batches:
            source = parse_identity(records[0]).source
            if source != kept.source:
                raise ConfigurationError(
                    f"the write key belongs to source {source}, the events to {kept.source}: stopped after "
                    f"the first one, which is stored at {receipt['partition']}:{offset} of {topic}"
                )


async def _check_selection(store: LogStore, topic: str, wanted: Wanted) -> None:
    sources: set[str] = set()
    missing: set[Place] = set(wanted.places)
    async with aclosing(read_quarantine(store, topic, wanted)) as records:
        async for kept in records:
            sources.add(kept.source)
            missing.discard(kept.place)
    if missing:
        place = min(missing)
        raise ConfigurationError(f"there is no such record at {place.partition}:{place.offset}")
    if len(sources) > 1:
        raise ConfigurationError(
            f"the selected records are of {len(sources)} sources ({', '.join(sorted(sources)[:5])}): "
            "choose one with --source, and give its write key"
        )


class Replayer:
    """Sends records to one gateway, one after another."""

    def __init__(self, url: str, write_key: str) -> None:
        """Take the gateway's ingest URL and the write key of the events' source."""
        self._http = httpx.AsyncClient(base_url=url, auth=(write_key, ""), timeout=REQUEST_TIMEOUT_S)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def send(self, kept: Kept) -> Result:
        """
        Send one record that is ready, again while the gateway says that it may pass.

        Raises:
            ConfigurationError: the gateway does not let the write key send events, or is none.
        """
        body = body_of(kept)
        why = "no answer"
        for _ in range(TRIES_MAX):
            try:
                answer = await self._post(body, kept)
            except httpx.TransportError as err:
                why = f"no answer: {type(err).__name__}"
                await asyncio.sleep(RETRY_AFTER_S)
                continue
            if not (answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS):
                return _result(answer)
            why = f"{answer.status_code} {_document(answer).get('code', '')}".rstrip()
            await asyncio.sleep(_pause_s(answer))
        return Result("failed", why)

    async def _post(self, body: bytes, kept: Kept) -> httpx.Response:
        headers = {"Idempotency-Key": key_of(kept)}
        return await self._http.post("/v1/events", content=body, headers=headers)


def _result(answer: httpx.Response) -> Result:
    document = _document(answer)
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise ConfigurationError("the gateway does not accept this write key")
    if answer.status_code == HTTPStatus.BAD_REQUEST and "code" in document:
        return Result("rejected", document["code"])
    if answer.status_code != HTTPStatus.OK or document.get("success") is not True:
        raise ConfigurationError(f"{answer.url.host}:{answer.url.port} does not answer like a gateway")
    return result_of(document, is_new=answer.headers.get("Gateway-Accepted") == "1")


def _pause_s(answer: httpx.Response) -> float:
    seconds = answer.headers.get("Retry-After", "")
    return min(float(seconds), RETRY_AFTER_MAX_S) if seconds.isdecimal() else RETRY_AFTER_S


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
