"""
Which names the admin port answers under.

A page in an operator's browser can send requests to any address that its own name resolves to (DNS
rebinding), so only names that no page can have are answered: addresses, loopback names, and those
that the operator set. A page of another origin can have a browser send what changes something, without
seeing the answer: browsers name the page's origin in it, which must be the port's own. Nor may it have a
browser request what costs something, such as a live tail or a verification: browsers mark such a request
as cross-site. A link to the port may be on any page. What a request may do besides, app.admin.scopes says.
"""

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from app.admin.answers import HostNotAllowedError, OriginNotAllowedError
from app.http.problems import Problems
from app.settings.networks import is_address, is_loopback_name

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def check_hosts(app: ASGIApp, *, hosts: Collection[str], problems: Problems) -> ASGIApp:
    """Return an application that answers under `hosts`, addresses and loopback names only."""
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
    """Whether a Host header, with or without port, is an own name; a client without one is no browser."""
    name = host
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    return not host or is_loopback_name(name) or is_address(name) or name in own_names


def _is_own(origin: str, host: str, own_names: frozenset[str]) -> bool:
    """Whether a page may change something: it came from this port, or from a name that the operator set."""
    if not origin:
        return True  # no browser
    try:
        of_page = urlsplit(origin)
        return of_page.netloc == host or of_page.hostname in own_names
    except ValueError:
        return False


def _is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site made the request, and not its operator by following a link."""
    is_link = headers.get(b"sec-fetch-dest") == b"document"
    return headers.get(b"sec-fetch-site") == b"cross-site" and not is_link
