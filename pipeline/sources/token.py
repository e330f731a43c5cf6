"""
Tokens for OAUTHBEARER, fetched anew for each login of the jobs' own Kafka clients.

Spark's connector fetches its tokens itself.
"""

import asyncio
import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider

from pipeline.errors import PipelineError

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class TokenEndpoint(AbstractTokenProvider):
    """Fetches tokens by OAuth's client credentials over HTTP, or from a file that another program renews."""

    url: str
    client_id: str
    client_secret: str
    scope: str | None = None

    async def token(self) -> str:
        """Return a token. Raises PipelineError."""
        return await asyncio.to_thread(self._fetch)

    def _fetch(self) -> str:
        try:
            place = urllib.parse.urlsplit(self.url)
            if place.scheme == "file":
                return Path(urllib.request.url2pathname(place.path)).read_text().strip()
            with urllib.request.urlopen(self._request(), timeout=TIMEOUT_S) as answer:
                return str(json.loads(answer.read(ANSWER_BYTES_MAX))["access_token"])
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise PipelineError(f"{self.url} gave no token for Kafka: {err!r}") from err

    def _request(self) -> urllib.request.Request:
        """Return the request that Kafka's Java client sends, too (RFC 6749, sections 4.4 and 2.3.1)."""
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        form_text = urllib.parse.urlencode(form).encode()
        return urllib.request.Request(self.url, form_text, headers)
