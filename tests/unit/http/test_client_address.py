"""Claim: only a trusted proxy can say who the client is, and a client cannot make itself another one."""

import tracemalloc

import pytest

from app.http.client_address import TrustedProxies, address_group
from app.settings.networks import parse_networks

PROXIES = TrustedProxies(parse_networks("10.0.0.0/8, 192.0.2.1, fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("192.0.2.1", True),
        ("fd00::1", True),
        ("::ffff:10.1.2.3", True),
        ("192.0.2.2", False),
        ("2001:db8::1", False),
        ("", False),
        ("unix", False),
    ],
)
def test_trust_is_by_network(peer: str, is_trusted: bool) -> None:
    assert PROXIES.are_trusted(peer) is is_trusted


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        (["203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        (["1.1.1.1, 203.0.113.7, 10.0.0.2"], "203.0.113.7"),  # what a client says of itself
        (["203.0.113.7:4711"], "203.0.113.7"),
        (["[2001:db8::7]:4711"], "2001:db8::7"),
        (["2001:db8::7"], "2001:db8::7"),
        (["::ffff:203.0.113.7"], "203.0.113.7"),
        (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (["unknown, 10.0.0.2"], "10.0.0.2"),
        (["unknown"], "10.0.0.1"),
        (["\xff, ,"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_client_is_the_last_address_that_is_no_proxy(forwarded: list[str], client: str) -> None:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    assert PROXIES.client_of("10.0.0.1", [(b"host", b"x"), *headers]) == client


def test_long_header_is_read_and_kept_from_its_end_only() -> None:
    proxies = TrustedProxies(parse_networks("10.0.0.0/8"))
    tracemalloc.start()
    for number in range(2_000):
        claimed = b"%d, " % number + b"x" * 60_000
        header = (b"x-forwarded-for", claimed + b", 203.0.113.%d, 10.0.0.2" % (number % 250))
        assert proxies.client_of("10.0.0.1", [header]) == f"203.0.113.{number % 250}"
        assert proxies.client_of("10.0.0.1", [(b"x-forwarded-for", b"1" * 60_000)]) == "10.0.0.1"
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 2_000_000


@pytest.mark.parametrize("text", ["10.0.0.0/33", "proxy.example", "10.0.0.0/8;192.0.2.1"])
def test_wrong_networks_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="network"):
        parse_networks(text)


def test_crowd_is_an_address_or_the_network_of_one() -> None:
    assert address_group("203.0.113.7") == "203.0.113.7"
    assert address_group("2001:db8:1:2:3::7") == address_group("2001:db8:1:2:4::8") == "2001:db8:1:2::/64"
    assert address_group("2001:db8:1:3::7") != address_group("2001:db8:1:2::7")
    assert address_group("somewhere") == "somewhere"
