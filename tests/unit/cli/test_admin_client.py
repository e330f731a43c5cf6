"""Claim: the admin client sends a token as it should, and tells refusals from answers that did not come."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from app.cli.admin_client import AdminClient, RequestRefusedError
from dedupe.model.errors import ConfigurationError, RetriableError


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: httpx.Response) -> list[dict[str, str]]:
    """Have every request answered; return the headers of those that were made."""
    requests: list[dict[str, str]] = []

    @contextmanager
    def stream(*_: object, headers: dict[str, str], **__: object) -> Iterator[httpx.Response]:
        requests.append(headers)
        yield answer

    monkeypatch.setattr(httpx, "stream", stream)
    return requests


@pytest.mark.regression("The line end of a file became part of a token.")
def test_line_end_of_a_file_is_no_part_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = answer_with(monkeypatch, httpx.Response(200, json={}))
    assert AdminClient("http://localhost", " secret\n").ask("/") == {}
    assert requests == [{"Authorization": "Bearer secret"}]


@pytest.mark.parametrize("token", ["sec\nret", "secr\u00e9t"])
def test_token_that_no_header_can_have_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigurationError, match="characters that no HTTP header can have") as caught:
        AdminClient("http://localhost:1", token).ask("/")
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (httpx.Response(404, json={"detail": "no such path"}), ConfigurationError, "answers: no such path"),
        (httpx.Response(503, json={"message": "later"}), RetriableError, "answers: later"),
        (httpx.Response(200, text="<html>"), RetriableError, "no answer of a gateway's admin port"),
        (httpx.Response(502, text="<html>"), RetriableError, "no answer of a gateway's admin port"),
    ],
)
def test_what_is_no_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answer: httpx.Response, error: type[Exception], says: str
) -> None:
    answer_with(monkeypatch, answer)
    with pytest.raises(error, match=says):
        AdminClient("http://localhost").ask("/")


@pytest.mark.parametrize(("status", "is_of_all"), [(401, True), (403, True), (400, False), (404, False)])
def test_refusal_of_one_request_is_told_from_one_of_all(
    monkeypatch: pytest.MonkeyPatch, status: int, is_of_all: bool
) -> None:
    answer_with(monkeypatch, httpx.Response(status, json={"detail": "no"}))
    with pytest.raises(ConfigurationError) as caught:
        AdminClient("http://localhost").ask("/")
    assert isinstance(caught.value, RequestRefusedError) is not is_of_all
