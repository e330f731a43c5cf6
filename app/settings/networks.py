"""Addresses, networks and names as settings have them. Pure."""

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

Network = IPv4Network | IPv6Network

PORT_MAX = 65_535


class Endpoint(NamedTuple):
    """Where a port listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Return host and port from `host:port`; an IPv6 address may have brackets. Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise ValueError(f"must be host:port, with a port up to {PORT_MAX}")
    return Endpoint(host, int(port))


def parse_names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return networks from CIDRs or addresses that are separated by commas. Raises ValueError."""
    return tuple(ip_network(name, strict=False) for name in parse_names(text))


def _of_text(parse: Callable[[str], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


ListenAddress = Annotated[Endpoint, _of_text(parse_endpoint)]
Names = Annotated[tuple[str, ...], _of_text(parse_names)]
Networks = Annotated[tuple[Network, ...], _of_text(parse_networks)]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    return is_loopback_name(host) or (is_address(host) and ip_address(host).is_loopback)


def is_loopback_name(name: str) -> bool:
    """Whether a name means this machine everywhere (RFC 6761)."""
    return name == "localhost" or name.endswith(".localhost")


def is_address(name: str) -> bool:
    """Whether a host is an address, not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
