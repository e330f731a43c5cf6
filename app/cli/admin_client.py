"""Asks the admin port of a running gateway."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import httpx

from dedupe.errors import ConfigurationError, RetriableError


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
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(timeout=timeout_s) as http:
            answer = await http.request(method, url.rstrip("/") + path, params=dict(query), headers=headers)
            document: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
        raise RetriableError(f"no answer of a gateway's admin port at {url}: {err}") from err
    if answer.status_code == HTTPStatus.OK:
        return document
    refused = RetriableError if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else ConfigurationError
    said = document.get("detail") or document.get("message") or f"status {answer.status_code}"
    raise refused(f"the gateway at {url} says: {said}")
