"""
The address of a request's client, also behind load balancers.

X-Forwarded-For is read only on connections from trusted proxies, since any client can send it. It is read
from its end, where the nearest proxy writes: the first address that is no trusted proxy is the client's.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from app.settings.networks import Network

Address = IPv4Address | IPv6Address

HEADERS_CACHED = 4096
ADDRESSES_CACHED = 4096

FORWARDED_BYTES_MAX = 512
"""The part of X-Forwarded-For that is read, from its end: a dozen proxies with IPv6 addresses."""

IPV6_PREFIX = 64
"""A client can use all addresses of a network of this size."""


class TrustedProxies:
    """Determines the client's address."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self._client = lru_cache(HEADERS_CACHED)(self._last_untrusted)

    def are_trusted(self, peer: str) -> bool:
        """Whether X-Forwarded-For of a connection from this address is read."""
        address = _parse(peer)
        return address is not None and self._is_trusted(address)

    def client_of(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """
        Return the address of the client of one request on a trusted connection.

        Where a proxy wrote something else than an address, or nothing, the client is unknown (None): what
        stands before that is what clients claim, and the proxy's own address would make one client of all.

        Args:
            headers: of the request, names in lower case.
        """
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        if len(forwarded) > FORWARDED_BYTES_MAX:
            forwarded = forwarded[-FORWARDED_BYTES_MAX:].partition(b",")[2]
        return self._client(forwarded)

    def _last_untrusted(self, forwarded: bytes) -> str | None:
        address = None
        for part in reversed(forwarded.split(b",")):
            address = _parse(part.decode("ascii", "replace"))
            if address is None or not self._is_trusted(address):
                break
        return None if address is None else str(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


@lru_cache(ADDRESSES_CACHED)
def address_group(address: str) -> str:
    """Return the unit of limits per address: an IPv4 address, or the network of an IPv6 one."""
    parsed = _parse(address)
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((parsed, IPV6_PREFIX), strict=False))
    return address


def _parse(text: str) -> Address | None:
    """
    Return an address, with or without brackets, port and zone; IPv4 in IPv6 is IPv4.

    None: it is no address, or the unspecified one, which nobody has.
    """
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = mapped or address
    return None if address.is_unspecified else address
