"""
Tokens for OAUTHBEARER: of an endpoint, by OAuth's client credentials; of a file; or signed for AWS MSK IAM.

A token is used for 80 % of its life. Its text is never part of an error or a log line.
"""

import asyncio
import base64
import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httpx
import structlog

from dedupe.login.errors import LoginError
from dedupe.login.secret_file import read_secret
from dedupe.login.tls import TlsContext, explain_tls

FETCH_TIMEOUT_S = 5.0  # less than a request's default, so that the reason is told
USED_SHARE = 0.8
GOOD_SHARE = 0.95  # a token must not end on its way to a broker, whose clock is another
RENEWAL_WAIT_S = 1.0  # for a new token while the old one is still good
UNKNOWN_LIFE_S = 60.0
PAUSE_S = 1.0
"""After a failure, so that all connections together ask once a second."""
RESPONSE_BYTES_MAX = 1024 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, b64token
_ERROR_CODE = re.compile(r"[\w.-]{1,64}")
_AWS_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\b")

logger = structlog.get_logger(__name__)


class Issued(NamedTuple):
    """A token, and how long it is good."""

    text: str
    life_s: float

    def __repr__(self) -> str:
        return f"Issued(<token>, {self.life_s:g})"


Fetch: TypeAlias = Callable[[], Awaitable[Issued]]
"""Gets a token, or raises LoginError."""


class _Held(NamedTuple):
    text: str
    renew_at: float
    ends_at: float


class Tokens:
    """Holds the current token, and gets the next one once for all connections that ask for it."""

    def __init__(self, fetch: Fetch, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._held: _Held | None = None
        self._fetching: asyncio.Task[_Held] | None = None
        self._failure: tuple[float, str] | None = None  # until when it stands

    async def token(self) -> str:
        """
        Return a token that is good.

        A renewal that takes long or fails leaves the old token in use until it ends. A cancelled caller
        leaves the renewal to the others.

        Raises:
            LoginError: there is none, and why; retriable.
        """
        held, now = self._held, self._monotonic()
        if held is not None and now < held.renew_at:
            return held.text
        if held is not None and now < held.ends_at:
            return await self._renewed(held)
        return (await asyncio.shield(self._task())).text

    def refused(self, text: str, why: str) -> None:
        """Forget a token that a broker refused, and get the next one after a pause."""
        if self._held is not None and self._held.text == text:
            self._held = None
            self._failure = (self._monotonic() + PAUSE_S, why)

    async def _renewed(self, held: _Held) -> str:
        try:
            return (await asyncio.wait_for(asyncio.shield(self._task()), RENEWAL_WAIT_S)).text
        except TimeoutError:
            return held.text
        except LoginError as err:
            logger.warning("the token is not renewed yet, the previous one stays in use", error=str(err))
            return held.text

    def _task(self) -> "asyncio.Task[_Held]":
        """Return the fetch that is under way, or begin one. Raises LoginError: the last has just failed."""
        if self._failure is not None and self._monotonic() < self._failure[0]:
            raise LoginError(self._failure[1])
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._bounded())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    async def _bounded(self) -> _Held:
        began = self._monotonic()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                issued = await self._fetch()
        except TimeoutError as err:
            raise LoginError(f"no token within {FETCH_TIMEOUT_S:g} s") from err
        return _Held(issued.text, began + USED_SHARE * issued.life_s, began + GOOD_SHARE * issued.life_s)

    def _fetched(self, task: "asyncio.Task[_Held]") -> None:
        self._fetching = None
        if task.cancelled():
            return
        if (err := task.exception()) is None:
            self._held, self._failure = task.result(), None
        elif isinstance(err, LoginError):
            self._failure = (self._monotonic() + PAUSE_S, str(err))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """Gets tokens over HTTP by OAuth's client credentials (RFC 6749, section 4.4), as Java clients do."""

    url: str
    client_id: str
    client_secret: Callable[[], Awaitable[str]]
    scope: str | None
    tls: TlsContext | None

    async def __call__(self) -> Issued:
        """Ask for a token. Raises LoginError."""
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = (self.client_id.encode(), (await self.client_secret()).encode())
        verify = await self.tls.current() if self.tls else False  # without TLS there is nothing to verify
        began_at = time.time()
        try:
            async with (
                httpx.AsyncClient(verify=verify, timeout=FETCH_TIMEOUT_S) as client,
                client.stream("POST", self.url, data=form, auth=login, headers=_ACCEPT) as response,
            ):
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > RESPONSE_BYTES_MAX:
                        raise LoginError(f"{self._place} gave no token: its answer is too long")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as err:
            raise LoginError(f"{self._place} gave no token: {self._reason(err)}") from err
        return self._read(response.status_code, body, began_at)

    def _read(self, status: int, body: bytes, now: float) -> Issued:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        fields: dict[str, Any] = answer if isinstance(answer, dict) else {}
        if status != httpx.codes.OK:
            code = fields.get("error")
            named = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
            raise LoginError(f"{self._place} gave no token: it answered {status}{named}{_hint(status)}")
        text = fields.get("access_token")
        if not isinstance(text, str):
            raise LoginError(f"{self._place} gave no token: its answer has no access_token")
        return Issued(_checked(text, self._place), _life_s(fields.get("expires_in"), text, now))

    @property
    def _place(self) -> str:
        """The URL without what may be secret in it."""
        place = urlsplit(self.url)
        return f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"

    def _reason(self, err: Exception) -> str:
        cause: BaseException | None = err
        while cause is not None:
            if isinstance(cause, Exception) and (said := explain_tls(cause, "the endpoint", _variable_of_ca)):
                return str(said)
            cause = cause.__cause__ or cause.__context__
        return str(err) or type(err).__name__


_ACCEPT = {"Accept": "application/json"}


def _variable_of_ca(_name: str) -> str:
    return "GATEWAY_KAFKA_OAUTH_CA_FILE"


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Reads the token from a file that another program renews, at each login."""

    path: Path
    name: str  # its variable

    async def __call__(self) -> Issued:
        """Read the file. Raises LoginError."""
        text = await asyncio.to_thread(read_secret, self.path, self.name)
        text = _checked(text.strip(), f"{self.name} ({self.path})")
        if (ends_at := expiry_of(text)) is not None and ends_at <= time.time():
            raise LoginError(
                f"{self.name} ({self.path}) holds a token that has expired: is it still renewed?"
            )
        return Issued(text, 0)


@dataclass(frozen=True, slots=True)
class AwsSigner:
    """Signs tokens for AWS MSK IAM with the credentials that AWS's SDK finds."""

    region: str

    async def __call__(self) -> Issued:
        """Sign a token. Raises LoginError."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        began_at = time.time()
        try:
            text, ends_ms = await asyncio.to_thread(MSKAuthTokenProvider.generate_auth_token, self.region)
        except Exception as err:  # its SDK's, which share no other base
            raise LoginError(f"AWS gave no credentials for MSK in {self.region}: {err}") from err
        return Issued(_checked(text, "AWS's signer"), max(ends_ms / 1000 - began_at, 0))


def region_of(bootstrap_servers: str) -> str | None:
    """Return the AWS region that the brokers' names or the environment tell, None if none does."""
    named = _AWS_HOST.search(bootstrap_servers)
    return named[1] if named else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def expiry_of(text: str) -> float | None:
    """Return the time at which a JSON Web Token says it ends, in seconds since 1970; None if it does not."""
    try:
        payload = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        ends_at = float(claims["exp"])
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return ends_at if math.isfinite(ends_at) else None


def _life_s(expires_in: object, text: str, now: float) -> float:
    """Return the life that the endpoint tells, else that the token tells, else a minute."""
    try:
        life_s = float(str(expires_in))
    except ValueError:
        life_s = math.nan
    if not (math.isfinite(life_s) and life_s > 0):
        ends_at = expiry_of(text)
        life_s = UNKNOWN_LIFE_S if ends_at is None else ends_at - now
    return max(life_s, 0.0)


def _checked(text: str, place: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise LoginError(f"{place} gave no token: what it gave has characters that no token has")
    return text


def _hint(status: int) -> str:
    if status in (400, 401, 403):
        return "; are client id, secret and scope right?"
    if 300 <= status < 400:
        return "; redirects are not followed, since the secret goes with them"
    return ""
