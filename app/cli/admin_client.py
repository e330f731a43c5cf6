"""The client of a running gateway's admin port."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from dedupe.model.errors import ConfigurationError, GatewayError, RetriableError

if TYPE_CHECKING:
    import httpx

ANSWER_TIMEOUT_S = 15.0
"""Long enough for an answer that waits for a worker that is down."""


_OF_ALL = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST})
"""Statuses of a refusal that every request would get."""


class RequestRefusedError(ConfigurationError):
    """The gateway refuses this request; it may take others."""


class AdminClient(NamedTuple):
    """
    The admin port at a URL; query parameters that are None are omitted.

    Every method raises ConfigurationError if the gateway refuses the request, and RetriableError if it does
    not answer, or not now.
    """

    url: str
    token: str | None = None

    def ask(
        self, path: str, *, method: str = "GET", timeout_s: float = ANSWER_TIMEOUT_S, **query: Any
    ) -> dict[str, Any]:
        """Return the document at a path."""
        with self._answer(method, path, query, timeout_s) as answer:
            answer.read()
            document: dict[str, Any] = answer.json()
            return document

    def metrics(self) -> dict[str, float]:
        """Return the metrics without labels."""
        try:
            with self._answer("GET", "/metrics", {}, ANSWER_TIMEOUT_S) as answer:
                text = answer.read().decode()
        except ConfigurationError:
            text = ""
        metrics = {name: float(value) for name, value in re.findall(r"(?m)^(\w+) (\S+)$", text)}
        if "gateway_ready" not in metrics:
            raise self._no_answer("an answer without metrics of a gateway")
        return metrics

    def follow(self, path: str, *, silence_s: float, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the documents of an answer of JSON lines; `silence_s` is the longest pause between two."""
        with self._answer("GET", path, query, silence_s) as answer:
            rest = b""
            for piece in answer.iter_bytes():
                *lines, rest = (rest + piece).split(b"\n")  # iter_lines would also split at U+2028 in a text
                for line in lines:
                    yield json.loads(line)

    @contextmanager
    def _answer(
        self, method: str, path: str, query: Mapping[str, Any], timeout_s: float
    ) -> Iterator["httpx.Response"]:
        import httpx

        parameters = {name: value for name, value in query.items() if value is not None}
        try:
            with httpx.stream(
                method,
                self.url.rstrip("/") + path,
                params=parameters,
                headers=self._headers(),
                timeout=timeout_s,
            ) as answer:
                if answer.status_code != HTTPStatus.OK:
                    answer.read()
                    raise self._refusal(answer)
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
            raise self._no_answer(str(err) or type(err).__name__) from err

    def _headers(self) -> dict[str, str]:
        """Return the token's header. Raises ConfigurationError, whose text does not have the token."""
        token = (self.token or "").strip()
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError("the admin token has characters that no HTTP header can have")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _no_answer(self, why: str) -> GatewayError:
        return RetriableError(
            f"no answer of a gateway's admin port at {self.url}: {why} "
            "(GATEWAY_ADMIN_URL names another address)"
        )

    def _refusal(self, answer: "httpx.Response") -> GatewayError:
        document = answer.json()
        is_passing = answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind: type[GatewayError] = RetriableError if is_passing else RequestRefusedError
        if answer.status_code in _OF_ALL:
            kind = ConfigurationError
        detail = document.get("detail") or document.get("message") or f"status {answer.status_code}"
        return kind(f"the gateway at {self.url} answers: {detail}")
