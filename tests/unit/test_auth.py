"""Claim: the first place that holds a write key decides, and only an enabled key of the file is let in."""

import base64
import hashlib
from pathlib import Path

import pytest

from app.auth import OpenKeys, Source, find_write_key, read_key_file
from app.errors import InvalidWriteKeyError, WriteKeyMissingError
from dedupe.errors import ConfigurationError


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
        (("authorization", "x-write-key", "query", "body"), "from-event"),
    ],
)
def test_first_place_in_order_decides(without: tuple[str, ...], found: str) -> None:
    headers = {name: value for name, value in HEADERS.items() if name.decode() not in without}
    query = b"" if "query" in without else b"a=b&writeKey=from%2Dquery"
    body = {} if "body" in without else {"writeKey": "from-body"}
    assert find_write_key(headers, query, body, {"writeKey": "from-event"}) == found


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
    assert find_write_key({b"authorization": authorization}, b"", {"writeKey": "k"}, None) == "k"


def test_basic_scheme_is_case_insensitive_and_password_ignored() -> None:
    authorization = b"bASIC " + base64.b64encode(b"key:pass:word")
    assert find_write_key({b"authorization": authorization}, b"", None, None) == "key"


@pytest.mark.parametrize(
    "thing", [None, {}, {"writeKey": ""}, {"writeKey": 5}, {"writeKey": None}, [], "x", 7]
)
def test_no_write_key_anywhere_is_missing(thing: object) -> None:
    body = thing if isinstance(thing, dict) else None
    with pytest.raises(WriteKeyMissingError):
        find_write_key({}, b"writeKey=&x=writeKey", body, thing)


def test_open_keys_are_their_own_sources() -> None:
    assert OpenKeys().source_of("abc") == Source("abc", "abc")
    with pytest.raises(InvalidWriteKeyError):
        OpenKeys().source_of("ü" * 128)


YAML = f"""
- key: plain-key
  source: web
  name: Web shop
- key_sha256: {hashlib.sha256(b"hashed-key").hexdigest().upper()}
  source: ios
- key: old-key
  source: web
  enabled: false
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.yaml", YAML),
        ("keys.yml", "keys:" + YAML.replace("\n", "\n  ")),
        (
            "keys.json",
            '{"keys": [{"key": "plain-key", "source": "web", "name": "Web shop"}, {"key_sha256": "'
            + hashlib.sha256(b"hashed-key").hexdigest()
            + '", "source": "ios"}, {"key": "old-key", "source": "web", "enabled": false}]}',
        ),
    ],
)
def test_key_file_is_read(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    keys = read_key_file(path)
    assert len(keys) == 3
    assert keys.source_of("plain-key") == Source("web", "Web shop")
    assert keys.source_of("hashed-key") == Source("ios", "ios")
    for refused in ("old-key", "unknown", "plain-key ", "PLAIN-KEY"):
        with pytest.raises(InvalidWriteKeyError):
            keys.source_of(refused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- key: a\n  source: [", "is not valid YAML or JSON, line"),
        ("just text", "should be a valid list"),
        ("", "should be a valid list"),
        ("- key: s3cret", "entry 1, source: Field required"),
        ("- source: web", "entry 1: needs either key or key_sha256"),
        (
            f"- key: s3cret\n  key_sha256: {'a' * 64}\n  source: web",
            "entry 1: needs either key or key_sha256",
        ),
        (
            "- {key: a, source: web}\n- {key: 123, source: web}",
            "entry 2, key: Input should be a valid string",
        ),
        ("- {key: s3cret, source: web, enabled: 'no'}", "entry 1, enabled: Input should be a valid boolean"),
        ("- {key: s3cret, source: web, enable: false}", "entry 1, enable: Extra inputs are not permitted"),
        ("- {key_sha256: s3cret, source: web}", "entry 1, key_sha256: "),
        ("- {key: '', source: web}", "entry 1, key: "),
        ("- {key: s3cret, source: ''}", "entry 1, source: "),
        (
            "- {key: s3cret, source: a}\n- {key: s3cret, source: b}",
            "entry 2 repeats the key of an earlier one",
        ),
    ],
)
def test_wrong_key_file_is_refused_in_one_sentence_without_keys(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_key_file(path)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "keys.yaml")
