"""Addresses and networks as settings name them. Pure."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return networks from CIDRs or addresses, separated by commas. Raises ValueError."""
    return tuple(ip_network(name, strict=False) for part in text.split(",") if (name := part.strip()))


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
