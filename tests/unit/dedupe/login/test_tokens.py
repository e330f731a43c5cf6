"""Claim: one token serves all logins for 80 % of its life; a failure is one sentence without secrets."""

import asyncio
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupe.login import tokens as tokens_module
from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.login.settings import LoginSettings
from dedupe.login.tls import TlsContext
from dedupe.login.tokens import (
    PAUSE_S,
    UNKNOWN_LIFE_S,
    AwsSigner,
    Issued,
    TokenEndpoint,
    TokenFile,
    Tokens,
    expiry_of,
    region_of,
)
from dedupe.model.errors import ConfigurationError
from tests.support.certificates import write_certificate
from tests.support.tokens import LIFETIME_S, Signer, TokenServer
from tests.support.waiting import until_async

CLIENT, SECRET = "gateway", "a-secret-of-tests"
SIGNER = Signer()


class Source:
    """Gives numbered tokens at a time that the test tells."""

    def __init__(self, life_s: float = 100.0) -> None:
        self.now, self.life_s, self.asked = 1000.0, life_s, 0
        self.problem: LoginError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.tokens = Tokens(self.fetch, monotonic=lambda: self.now)

    async def fetch(self) -> Issued:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.problem:
            raise self.problem
        return Issued(f"token-{number}", self.life_s)


async def test_all_logins_share_a_token_for_80_percent_of_its_life() -> None:
    source = Source(life_s=100)
    assert set(await asyncio.gather(*(source.tokens.token() for _ in range(5)))) == {"token-1"}
    source.now += 79.9
    assert await source.tokens.token() == "token-1"
    source.now += 0.2
    assert await source.tokens.token() == "token-2"
    assert source.asked == 2


async def test_token_that_cannot_be_renewed_stays_in_use_to_its_end() -> None:
    source = Source(life_s=100)
    await source.tokens.token()
    source.problem = LoginError("down")
    source.now += 94.9
    assert await source.tokens.token() == "token-1"
    source.now += 0.2 + PAUSE_S
    with pytest.raises(LoginError, match="down"):
        await source.tokens.token()


async def test_slow_renewal_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "RENEWAL_WAIT_S", 0.01)
    source = Source(life_s=100)
    await source.tokens.token()
    source.now += 90
    source.may_answer.clear()
    assert await source.tokens.token() == "token-1"
    source.may_answer.set()

    async def is_renewed() -> bool:
        return await source.tokens.token() == "token-2"

    await until_async(is_renewed)
    assert source.asked == 2


async def test_failure_stands_for_a_pause_so_that_all_connections_ask_once() -> None:
    source = Source()
    source.problem = LoginError("wrong secret")
    told = await asyncio.gather(*(source.tokens.token() for _ in range(64)), return_exceptions=True)
    assert {str(each) for each in told} == {"wrong secret"}
    with pytest.raises(LoginError, match="wrong secret"):
        await source.tokens.token()
    assert source.asked == 1
    source.problem = None
    source.now += PAUSE_S
    assert await source.tokens.token() == "token-2"


async def test_caller_that_leaves_does_not_end_the_fetch_of_the_others() -> None:
    source = Source()
    source.may_answer.clear()
    leaving, staying = (asyncio.ensure_future(source.tokens.token()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    source.may_answer.set()
    assert await staying == "token-1"
    assert source.asked == 1


async def test_source_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "FETCH_TIMEOUT_S", 0.01)
    source = Source()
    source.may_answer.clear()
    with pytest.raises(LoginError, match=r"no token within 0\.01 s"):
        await source.tokens.token()


async def test_token_that_a_broker_refused_is_not_shown_again() -> None:
    source = Source()
    text = await source.tokens.token()
    source.tokens.refused("another one", "why")
    assert await source.tokens.token() == text
    source.tokens.refused(text, "the broker refuses it")
    with pytest.raises(LoginError, match="the broker refuses it"):
        await source.tokens.token()
    source.now += PAUSE_S
    assert await source.tokens.token() == "token-2"


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer(SIGNER, CLIENT, SECRET) as server:
        yield server


def endpoint_of(server: TokenServer, *, secret: str = SECRET, tls: TlsContext | None = None) -> TokenEndpoint:
    async def client_secret() -> str:
        return secret

    return TokenEndpoint(
        url=server.url, client_id=CLIENT, client_secret=client_secret, scope="kafka", tls=tls
    )


async def test_endpoint_is_asked_by_client_credentials(server: TokenServer) -> None:
    issued = await endpoint_of(server)()
    assert server.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert issued.life_s == LIFETIME_S
    assert issued.text not in repr(issued)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {"error": "invalid_client"}), r"answered 401 \(invalid_client\); are client id, secret"),
        ((400, {"error": "<a page of HTML>"}), r"answered 400; are client id, secret and scope right\?"),
        ((302, b""), "answered 302; redirects are not followed"),
        ((503, b"<html>"), "answered 503$"),
        ((200, b"<html>"), "its answer has no access_token"),
        ((200, b"[" * 100_000), "its answer has no access_token"),
        ((200, {"access_token": 5}), "its answer has no access_token"),
        ((200, {"access_token": "a\x01auth=b"}), "characters that no token has"),
        ((200, b" " * 2**21), "its answer is too long"),
    ],
)
async def test_endpoint_that_gives_no_token_is_one_sentence(
    answer: tuple[int, Any], sentence: str, server: TokenServer
) -> None:
    server.answer = answer
    try:
        with pytest.raises(LoginError, match=sentence) as refused:
            await endpoint_of(server)()
    finally:
        server.answer = None
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)


@given(
    st.integers(100, 599),
    st.one_of(
        st.binary(max_size=50),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["access_token", "expires_in", "error", "x"]), inner, max_size=4
                )
            ),
            max_leaves=8,
        ).map(lambda document: json.dumps(document).encode()),
    ),
)
def test_any_answer_is_a_token_or_one_sentence(status: int, body: bytes) -> None:
    endpoint = TokenEndpoint(url="https://x/token", client_id="", client_secret=_none, scope=None, tls=None)
    try:
        told = str(endpoint._read(status, body, 0.0).life_s >= 0)
    except LoginError as err:
        told = str(err)
    assert told != "False"
    assert "\n" not in told


async def _none() -> str:
    return ""


@pytest.mark.parametrize(
    ("expires_in", "life_s"),
    [
        ({"expires_in": "300"}, 300),
        ({"expires_in": 0}, UNKNOWN_LIFE_S),
        ({"expires_in": "soon"}, UNKNOWN_LIFE_S),
        ({"expires_in": float("inf")}, UNKNOWN_LIFE_S),
        ({"expires_in": [1]}, UNKNOWN_LIFE_S),
        ({}, UNKNOWN_LIFE_S),
    ],
)
async def test_life_is_what_the_endpoint_tells(
    expires_in: dict[str, Any], life_s: float, server: TokenServer
) -> None:
    server.answer = (200, {"access_token": "opaque"} | expires_in)
    try:
        assert (await endpoint_of(server)()).life_s == life_s
    finally:
        server.answer = None


async def test_life_is_what_the_token_tells_where_the_endpoint_tells_none(server: TokenServer) -> None:
    server.answer = (200, {"access_token": SIGNER.token(CLIENT, life_s=500)})
    try:
        assert 490 < (await endpoint_of(server)()).life_s <= 500
    finally:
        server.answer = None


async def test_endpoint_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    files = tmp_path / "crt.pem", tmp_path / "key.pem"
    write_certificate(*files, "idp.example.com")
    with TokenServer(SIGNER, CLIENT, SECRET, certificate=files) as server:
        await endpoint_of(server, tls=TlsContext(files[0]))()
        with pytest.raises(LoginError, match=r"is not trusted.*GATEWAY_KAFKA_OAUTH_CA_FILE"):
            await endpoint_of(server, tls=TlsContext(None))()


async def test_secret_is_read_from_its_file_at_each_fetch(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    login = Login(
        LoginSettings(
            security_protocol="SASL_SSL",
            sasl_mechanism="OAUTHBEARER",
            sasl_username=CLIENT,
            sasl_password_file=file,
            oauth_token_url=server.url,
        )
    )
    assert login.tokens is not None
    with pytest.raises(ConfigurationError, match=r"SASL_PASSWORD_FILE \(.*\) cannot be read: No"):
        await login.check()
    file.write_text(SECRET + "\n")
    await login.check()
    assert expiry_of(await login.tokens.token()) is not None


async def test_token_in_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = Tokens(TokenFile(file, "THE_VARIABLE"), monotonic=count(step=10).__next__)
    for content in ("first", "second\n"):
        file.write_text(content)
        assert await tokens.token() == content.strip()
    for wrong, sentence in (
        (b"", "is empty"),
        (b"\xff", "is no text"),
        (b"two words", "characters that no token has"),
        (SIGNER.token(CLIENT, life_s=-5).encode(), "has expired"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(LoginError, match=sentence) as refused:
            await tokens.token()
        assert "THE_VARIABLE" in str(refused.value)


@given(st.text())
def test_expiry_of_any_text_is_a_time_or_unknown(text: str) -> None:
    assert expiry_of(text) is None or isinstance(expiry_of(text), float)


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("b-1.events.abc123.c2.kafka.eu-central-1.amazonaws.com:9098", "eu-central-1"),
        ("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("kafka.internal:9098", "from-environment"),
    ],
)
def test_region_is_that_of_the_brokers(servers: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "from-environment")
    assert region_of(servers) == region


def sign_with(monkeypatch: pytest.MonkeyPatch, sign: Callable[[str], tuple[str, int]]) -> None:
    """Put a signer in the place of AWS's, which needs AWS."""
    module: Any = types.ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = types.SimpleNamespace(generate_auth_token=sign)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)


async def test_aws_tokens_are_signed_for_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_with(monkeypatch, lambda region: (f"signed-for-{region}", int((time.time() + 900) * 1000)))
    issued = await AwsSigner("eu-central-1")()
    assert issued.text == "signed-for-eu-central-1"
    assert 890 < issued.life_s <= 901


async def test_aws_without_credentials_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_region: str) -> tuple[str, int]:
        raise RuntimeError("Unable to locate credentials")

    sign_with(monkeypatch, fail)
    with pytest.raises(LoginError, match="AWS gave no credentials for MSK in x: Unable to locate"):
        await AwsSigner("x")()


async def test_aws_needs_its_signer_and_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    login = Login(LoginSettings(security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"install 'idempotent-ingestion-gateway\[msk\]'"):
        await login.check()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    with pytest.raises(ConfigurationError, match="needs AWS_REGION"):
        await login.check()
