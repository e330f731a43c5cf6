"""Asks the admin port of a running gateway."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any

import httpx

from dedupe.errors import ConfigurationError, GatewayError, RetriableError


async def ask(
    url: str,
    path: str,
    query: Mapping[str, str],
    *,
    token: str | None,
    timeout_s: float,
    method: str = "GET",
) -> dict[str, Any]:
    """
    Return the document at a path.

    Raises:
        ConfigurationError: the gateway refuses the question.
        RetriableError: it does not answer, or cannot now.
    """
    answer = await _asked(url, path, query, token=token, timeout_s=timeout_s, method=method)
    try:
        document: dict[str, Any] = answer.json()
    except ValueError as err:
        raise _no_answer(url, err) from err
    if answer.status_code == HTTPStatus.OK:
        return document
    raise _refusal(url, answer.status_code, document)


async def ask_metrics(url: str, *, timeout_s: float) -> dict[str, float]:
    """Return the metrics that have no labels. Raises RetriableError without an answer of an admin port."""
    answer = await _asked(url, "/metrics", {}, token=None, timeout_s=timeout_s)
    metrics = {name: float(value) for name, value in re.findall(r"(?m)^(\w+) (\S+)$", answer.text)}
    if "gateway_ready" not in metrics:
        raise _no_answer(url, ValueError(f"status {answer.status_code}, without metrics of a gateway"))
    return metrics


async def follow(
    url: str, path: str, query: Mapping[str, str], *, token: str | None, silence_s: float
) -> AsyncIterator[dict[str, Any]]:
    """
    Yield the documents of an answer that is lines of JSON, as they come. Raises as `ask` does.

    Args:
        url: of the admin port.
        path: of the resource.
        query: its parameters.
        token: of the admin port, if it has one.
        silence_s: how long no line may come.
    """
    try:
        async with (
            httpx.AsyncClient(timeout=silence_s) as http,
            http.stream("GET", _at(url, path), params=dict(query), headers=_headers(token)) as answer,
        ):
            if answer.status_code != HTTPStatus.OK:
                await answer.aread()
                raise _refusal(url, answer.status_code, answer.json())
            rest = b""
            async for piece in answer.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")  # texts of events have other ends of lines in them
                for line in lines:
                    yield json.loads(line)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
        raise _no_answer(url, err) from err


async def _asked(
    url: str, path: str, query: Mapping[str, str], *, token: str | None, timeout_s: float, method: str = "GET"
) -> httpx.Response:
    try:
        async with httpx.AsyncClient(timeout=timeout_s) as http:
            answer = await http.request(method, _at(url, path), params=dict(query), headers=_headers(token))
    except (httpx.HTTPError, httpx.InvalidURL) as err:
        raise _no_answer(url, err) from err
    return answer


def _at(url: str, path: str) -> str:
    return url.rstrip("/") + path


def _headers(token: str | None) -> dict[str, str]:
    """Return what proves who asks. Raises ConfigurationError, without the token: a message may be kept."""
    token = (token or "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError("the admin token has characters that no HTTP header can have")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _no_answer(url: str, err: Exception) -> GatewayError:
    why = str(err) or type(err).__name__
    return RetriableError(
        f"no answer of a gateway's admin port at {url}: {why} (GATEWAY_ADMIN_URL names another address)"
    )


def _refusal(url: str, status: int, document: Mapping[str, Any]) -> GatewayError:
    refused = RetriableError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ConfigurationError
    said = document.get("detail") or document.get("message") or f"status {status}"
    return refused(f"the gateway at {url} says: {said}")
