"""Claim: only a trusted proxy can say who the client is, and a client cannot make itself another one."""

import tracemalloc
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        (["fe80::7%eth0"], "fe80::7"),
    ],
)
def test_client_is_the_last_address_that_is_no_proxy(forwarded: list[str], client: str) -> None:
    assert PROXIES.client_of(forwarded_by(*forwarded)) == client


@pytest.mark.regression("Behind a proxy that named no client all clients were one, and limited as one.")
@pytest.mark.parametrize(
    "forwarded",
    [
        ["unknown"],
        ["1.1.1.1, unknown"],  # what stands before it is what the client says of itself
        ["unknown, 10.0.0.2"],
        ["1.1.1.1,"],
        ["1.1.1.1", ""],
        ["_hidden"],
        ["_x:4711, 10.0.0.2"],
        ["0.0.0.0"],
        ["[::]:80"],
        ["203.0.113.256"],
        ["for=203.0.113.7"],
        ["203.0.113.7 10.0.0.2"],
        ["-"],
        ["\xff, ,"],
        [""],
        [],
    ],
)
def test_client_is_unknown_where_a_proxy_wrote_no_address(forwarded: list[str]) -> None:
    assert PROXIES.client_of(forwarded_by(*forwarded)) is None


@given(forwarded=st.binary(max_size=80), claimed=st.sampled_from([b"1.1.1.1, ", b"1.1.1.1,,", b""]))
def test_header_of_any_bytes_has_an_address_or_none(forwarded: bytes, claimed: bytes) -> None:
    client = PROXIES.client_of([(b"x-forwarded-for", claimed + forwarded)])
    assert client is None or str(ip_address(client)) == client


def forwarded_by(*values: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request with these fields of X-Forwarded-For."""
    return [(b"host", b"x"), *((b"x-forwarded-for", value.encode("latin-1")) for value in values)]


def test_long_header_is_read_and_kept_from_its_end_only() -> None:
    proxies = TrustedProxies(parse_networks("10.0.0.0/8"))
    tracemalloc.start()
    for number in range(2_000):
        claimed = b"%d, " % number + b"x" * 60_000
        header = (b"x-forwarded-for", claimed + b", 203.0.113.%d, 10.0.0.2" % (number % 250))
        assert proxies.client_of([header]) == f"203.0.113.{number % 250}"
        assert proxies.client_of([(b"x-forwarded-for", b"1" * 60_000)]) is None
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
