"""Tokens of OAUTHBEARER for the jobs' own Kafka clients; Spark's connector gets its tokens itself."""

from aiokafka.abc import AbstractTokenProvider

from dedupe.login.errors import LoginError
from dedupe.login.settings import Pairs
from dedupe.login.tokens import Tokens
from pipeline.errors import PipelineError


class TokenProvider(AbstractTokenProvider):
    """Gives aiokafka the tokens of the settings."""

    def __init__(self, tokens: Tokens, extensions: Pairs) -> None:
        self._tokens = tokens
        self._extensions = dict(extensions)

    async def token(self) -> str:
        """Return a token. Raises PipelineError, which aiokafka does not catch."""
        try:
            return await self._tokens.token()
        except LoginError as err:
            raise PipelineError(str(err)) from err

    def extensions(self) -> dict[str, str]:
        """Return what the brokers want to know besides the token."""
        return self._extensions
