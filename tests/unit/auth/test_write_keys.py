"""Claim: the first place that holds a write key decides."""

import base64
import time

import pytest

from app.auth import write_keys as auth
from app.auth.quotas import Quota, QuotaPolicy
from app.auth.write_keys import OpenKeys, Source, find_write_key, key_in_head
from app.http.errors import InvalidWriteKeyError, WriteKeyMissingError


def basic(user: str, password: str = "") -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


HEADERS = {b"authorization": basic("from-basic"), b"x-write-key": b"from-header:secret"}


@pytest.mark.parametrize(
    ("without", "found"),
    [
        ((), "from-basic"),
        (("authorization",), "from-header"),
        (("authorization", "x-write-key"), "from-query"),
        (("authorization", "x-write-key", "query"), "from-body"),
    ],
)
def test_first_place_in_order_decides(without: tuple[str, ...], found: str) -> None:
    headers = {name: value for name, value in HEADERS.items() if name.decode() not in without}
    query = b"" if "query" in without else b"a=b&writeKey=from%2Dquery"
    body = {} if "body" in without else {"writeKey": "from-body"}
    assert find_write_key(headers, query, body) == found


@pytest.mark.parametrize(
    "authorization",
    [
        b"Bearer abc",
        b"Basic",
        b"Basic ",
        b"Basic !!!",
        b"Basic YQ",  # cut short
        basic(""),
        b"Token from-basic",
    ],
)
def test_authorization_without_a_basic_user_is_passed_over(authorization: bytes) -> None:
    assert find_write_key({b"authorization": authorization}, b"", {"writeKey": "k"}) == "k"


def test_basic_scheme_is_case_insensitive_and_password_ignored() -> None:
    authorization = b"bASIC " + base64.b64encode(b"key:pass:word")
    assert find_write_key({b"authorization": authorization}, b"", None) == "key"


@pytest.mark.parametrize(
    "thing", [None, {}, {"writeKey": ""}, {"writeKey": 5}, {"writeKey": None}, [], "x", 7]
)
def test_no_write_key_anywhere_is_missing(thing: object) -> None:
    body = thing if isinstance(thing, dict) else None
    with pytest.raises(WriteKeyMissingError):
        find_write_key({}, b"writeKey=&x=writeKey", body)


def test_open_keys_are_their_own_sources() -> None:
    keys = OpenKeys(QuotaPolicy(Quota(), index_keys_max=1, window_s=1, clock=time.monotonic))
    assert keys.source_of("abc") == Source("abc", "abc")
    with pytest.raises(InvalidWriteKeyError):
        keys.source_of("ü" * 128)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"writeKey=a+b%2Bc&writeKey=other", "a b+c"),
        (b"writeKey=&writeKey=second", "second"),
        (b"xwriteKey=no&a=writeKey=no", ""),
        (b"writeKey=%ff", "\ufffd"),
        (b"write%4Bey=no", ""),
    ],
)
def test_key_of_a_query_is_decoded(query: bytes, found: str) -> None:
    assert key_in_head({}, query) == found


def test_nothing_else_of_a_query_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr(auth, "unquote_plus", decoded.append)
    key_in_head({}, b"a=%41&" * 9_000 + b"writeKey=" + b"%41" * 9_000)
    assert sum(map(len, decoded)) <= 1_024
