"""
Protects the admin port from web pages in an operator's browser.

- DNS rebinding: the Host header must be an address, a loopback name, or a name that the operator has set.
- Cross-site requests that change something: their Origin header must be the port's own.
- Cross-site requests that only cost something, such as a live tail: `Sec-Fetch-Site` refuses them. Links from
  other pages are allowed.

app.admin.scopes checks tokens.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from app.admin.answers import HostNotAllowedError, OriginNotAllowedError
from app.http.problems import Problems
from app.settings.networks import is_address, is_loopback_name

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def check_hosts(app: ASGIApp, *, hosts: Collection[str], problems: Problems) -> ASGIApp:
    """Return an application that answers only for `hosts`, addresses and loopback names."""
    own_names = frozenset(host.lower() for host in hosts)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
            is_reading = scope["method"] in READING
            if not _is_known(host, own_names):
                answer = problems.answer(HostNotAllowedError(), scope)
            elif _is_cross_site(headers) or not (is_reading or _is_own(origin, host, own_names)):
                answer = problems.answer(OriginNotAllowedError(), scope)
        await answer(scope, receive, send)

    return guarded


def _is_known(host: str, own_names: frozenset[str]) -> bool:
    """Whether a Host header, with or without port, is allowed; browsers always send one."""
    name = host
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    return not host or is_loopback_name(name) or is_address(name) or name in own_names


def _is_own(origin: str, host: str, own_names: frozenset[str]) -> bool:
    """Whether an Origin header is the port's own, or of a name that the operator has set."""
    if not origin:
        return True  # no browser
    try:
        of_page = urlsplit(origin)
        return of_page.netloc == host or of_page.hostname in own_names
    except ValueError:
        return False


def _is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site sent the request, other than by a link."""
    is_link = headers.get(b"sec-fetch-dest") == b"document"
    return headers.get(b"sec-fetch-site") == b"cross-site" and not is_link
