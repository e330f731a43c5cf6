"""Posts batches of events to a running gateway, and tells what became of each."""

import time
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import orjson

from dedupe.errors import ConfigurationError

RETRY_AFTER_S, RETRY_AFTER_MAX_S = 1.0, 10.0
REQUEST_TIMEOUT_S = 15.0

Event = dict[str, Any]


class Refused(Exception):
    """No verdict on a request: an error code or what the connection died of, and when to try again."""

    def __init__(self, code: str, *, is_answer: bool, retry_after_s: float = RETRY_AFTER_S) -> None:
        """Keep them. `is_answer` if the gateway said so."""
        super().__init__(code)
        self.code, self.is_answer, self.retry_after_s = code, is_answer, retry_after_s


class Verdict(NamedTuple):
    """What the gateway says of a request's events."""

    accepted: int
    duplicates: int
    rejected: dict[int, str]
    """The reason, by the place in the request."""
    answer_ms: float

    @property
    def counts(self) -> Counter[str]:
        """How many events were accepted, duplicates, and rejected for each reason."""
        counts = Counter(self.rejected.values())
        counts.update(accepted=self.accepted, duplicates=self.duplicates)
        return counts

    def stored(self, events: Sequence[Event]) -> list[Event]:
        """Return those of the request's events that are in the log now."""
        return [event for place, event in enumerate(events) if place not in self.rejected]


class IngestClient:
    """Connections to one gateway's ingest port."""

    def __init__(self, url: str, connections: int) -> None:
        """Open none yet. Raises ConfigurationError if it is no URL."""
        self._url = url
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        try:
            self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=REQUEST_TIMEOUT_S)
        except httpx.InvalidURL as err:
            raise ConfigurationError(f"{url} is no URL of a gateway: {err}") from err

    async def __aenter__(self) -> "IngestClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, key: str, events: Sequence[Event]) -> Verdict:
        """
        Send events in one request, once.

        Raises:
            Refused: the gateway refused the request for now, or did not answer.
            ConfigurationError: the gateway does not let the write key send events, or is none.
        """
        body = orjson.dumps({"batch": events})
        began = time.monotonic()
        try:
            answer = await self._http.post(
                "/v1/events", content=body, auth=(key, ""), headers={"Content-Type": "application/json"}
            )
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as err:
            raise ConfigurationError(f"{self._url} is no URL of a gateway: {err}") from err
        except httpx.TransportError as err:
            raise Refused(type(err).__name__, is_answer=False) from err
        answer_ms = (time.monotonic() - began) * 1000
        if answer.status_code != HTTPStatus.OK:
            raise self._refusal(answer)
        if "Gateway-Accepted" not in answer.headers:
            raise ConfigurationError(f"what answers at {self._url} is no gateway")
        accepted, duplicates = (int(answer.headers[f"Gateway-{name}"]) for name in ("Accepted", "Duplicates"))
        rejected = {each["index"]: each["code"] for each in answer.json().get("rejected", ())}
        return Verdict(accepted, duplicates, rejected, answer_ms)

    def _refusal(self, answer: httpx.Response) -> Exception:
        code = _code_of(answer)
        if not (answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS):
            return ConfigurationError(f"the gateway at {self._url} says {answer.status_code}, {code}")
        told = answer.headers.get("Retry-After", "")
        pause_s = min(float(told), RETRY_AFTER_MAX_S) if told.isdecimal() else RETRY_AFTER_S
        return Refused(code, is_answer=True, retry_after_s=pause_s)


def answer_times(times_ms: Sequence[float]) -> dict[str, float | None]:
    """Return the median, the 0.99 quantile and the longest of answer times."""
    times = sorted(times_ms)
    return {
        name: round(times[min(len(times) - 1, int(len(times) * share))], 1) if times else None
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def _code_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
