"""The steps of SASL with a broker."""

import asyncio
import json
import time

from aiokafka.conn import BaseSaslAuthenticator, SaslPlainAuthenticator, ScramAuthenticator

from dedupe.login.errors import LoginRefusedError
from dedupe.login.login import Login
from dedupe.login.settings import AWS, OAUTH, Pairs
from dedupe.login.tokens import Tokens, expiry_of

UNSUPPORTED_MECHANISM = 33


class TokenAuthenticator(BaseSaslAuthenticator):
    """Shows a token, and hears a refusal (RFC 7628), which aiokafka's own authenticator takes for consent."""

    def __init__(self, tokens: Tokens, extensions: Pairs) -> None:
        self._tokens = tokens
        self._extensions = extensions
        self._token: str | None = None

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """
        Return what to send next, None at the end.

        Raises:
            LoginError: there is no token, or the broker refuses it.
        """
        if self._token is None:
            self._token = await self._tokens.token()
            more = "".join(f"\x01{name}={value}" for name, value in self._extensions)
            return f"n,,\x01auth=Bearer {self._token}{more}\x01\x01".encode(), True
        if payload:
            raise self.refusal(_status_of(payload))
        return None

    def refusal(self, why: str) -> LoginRefusedError:
        """Return the error of a broker that refuses the token; the next login gets another one."""
        token = self._token or ""
        ends_at = expiry_of(token)
        is_over = ends_at is not None and ends_at <= time.time()
        hint = ", which has expired" if is_over else ""
        text = f"the broker refuses the token{hint} ({why}): does it know the issuer, audience and scope?"
        self._tokens.refused(token, text)
        return LoginRefusedError(text)


def mechanism_of(login: Login) -> str:
    """Return the mechanism by its name in the protocol."""
    mechanism = login.settings.sasl_mechanism
    return OAUTH if mechanism == AWS else mechanism


async def authenticator_of(login: Login) -> BaseSaslAuthenticator:
    """Return the steps of a new login. Raises LoginError."""
    settings = login.settings
    if login.tokens is not None:
        return TokenAuthenticator(login.tokens, settings.extensions)
    credentials = {
        "loop": asyncio.get_running_loop(),
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": await login.password(),
    }
    if settings.sasl_mechanism == "PLAIN":
        return SaslPlainAuthenticator(**credentials)
    return ScramAuthenticator(**credentials, sasl_mechanism=settings.sasl_mechanism)


def refusal_of(
    login: Login, code: int, response: object, authenticator: BaseSaslAuthenticator | None
) -> LoginRefusedError:
    """
    Return the error of a step that the broker refused.

    Args:
        login: whose.
        code: the response's error code, not 0.
        response: to SaslHandshake or SaslAuthenticate.
        authenticator: None for SaslHandshake.
    """
    settings = login.settings
    if code == UNSUPPORTED_MECHANISM:
        known = ", ".join(map(str, getattr(response, "enabled_mechanisms", ()))) or "none"
        return LoginRefusedError(
            f"the broker knows the logins {known}, not {mechanism_of(login)}: "
            f"see {settings.variable('sasl_mechanism')}"
        )
    why = str(getattr(response, "error_message", None) or f"error {code}")
    if isinstance(authenticator, TokenAuthenticator):
        return authenticator.refusal(why)
    whom = f"{settings.sasl_mechanism} as {settings.sasl_username}"
    return LoginRefusedError(f"the broker refuses the login {whom}: {why}")


def _status_of(payload: bytes) -> str:
    """Return the status that a broker tells of a token."""
    try:
        status = json.loads(payload)["status"]
    except (ValueError, KeyError, TypeError, RecursionError):
        status = None
    return status if isinstance(status, str) and status.isprintable() else "it says no reason"
