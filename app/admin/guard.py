"""
Which names the admin port answers under.

A page in an operator's browser can send requests to any address that its own name resolves to (DNS
rebinding), so only names that no page can have are answered: addresses, loopback names, and those
that the operator set. And a page of another origin can have a browser send what changes something,
without seeing the answer: browsers name the page's origin in it, which must be the port's own. Nor may
it have a browser ask what costs something, such as a live tail or a verification: of what it asks unseen
browsers say that it is of another site. A link to the port may be on any page.
What a request may do besides, app.admin.scopes says.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from app.admin.answers import HostNotAllowedError, OriginNotAllowedError
from app.config import is_address, is_loopback_name
from app.http import Problems

READING = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminGuard:
    """Wraps an application of the admin port."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], problems: Problems) -> None:
        """Take the names that are answered besides addresses and loopback."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._problems = problems

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        answer = self._app
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
            if not self._is_known(host):
                answer = self._problems.answer(HostNotAllowedError(), scope)
            elif _is_of_another_site(headers) or (
                scope["method"] not in READING and not self._is_own(origin, host)
            ):
                answer = self._problems.answer(OriginNotAllowedError(), scope)
        await answer(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        """Whether a Host, with or without port, is one of ours; a client without one is no browser."""
        name = host
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        return not host or is_loopback_name(name) or is_address(name) or name in self._hosts

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page may change something: it came from here, or from a name that the operator set."""
        if not origin:
            return True  # no browser
        try:
            of_page = urlsplit(origin)
            return of_page.netloc == host or of_page.hostname in self._hosts
        except ValueError:
            return False


def _is_of_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site has its browser ask, and not its operator, by a link."""
    is_link = headers.get(b"sec-fetch-dest") == b"document"
    return headers.get(b"sec-fetch-site") == b"cross-site" and not is_link
