"""Claim: a head that two servers might read differently is refused, whatever the parser thinks of it."""

import pytest

from app.http.errors import HeadTooLargeError, RequestError
from app.http.head import PATH_BYTES_MAX, check_head

HOST = (b"host", b"gateway.example:8080")


def check(*headers: tuple[bytes, bytes], method: bytes = b"POST", version: str = "1.1") -> None:
    check_head(method, version, b"/v1/batch", headers)


@pytest.mark.parametrize(
    "headers",
    [
        [HOST],
        [(b"host", b"")],
        [(b"host", b"[2001:db8::1]:80")],
        [HOST, (b"transfer-encoding", b"Chunked")],
        [HOST, (b"content-length", b"00012")],
        [HOST, (b"te", b"trailers, gzip")],
    ],
)
def test_ordinary_heads_pass(headers: list[tuple[bytes, bytes]]) -> None:
    check(*headers)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [HOST, HOST],
        [(b"host", b"a b")],
        [(b"host", b"a/b")],
        [(b"host", b"a@b")],
        [HOST, (b"transfer-encoding", b"gzip, chunked")],
        [HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [HOST, (b"transfer-encoding", b"identity")],
        [HOST, (b"transfer-encoding", b"")],
        [HOST, (b"content-length", b"0" * 900)],
    ],
)
def test_doubtful_heads_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(RequestError):
        check(*headers)


def test_old_clients_need_no_host_and_know_no_chunks() -> None:
    check(version="1.0")
    with pytest.raises(RequestError):
        check((b"transfer-encoding", b"chunked"), version="1.0")


def test_other_methods_and_versions_of_a_proxy_are_refused() -> None:
    for method, version in ((b"CONNECT", "1.1"), (b"POST", "2.0"), (b"POST", "0.9")):
        with pytest.raises(RequestError):
            check(HOST, method=method, version=version)


def test_path_has_a_limit_of_its_own_and_a_query_has_not() -> None:
    path = b"/".ljust(PATH_BYTES_MAX, b"x")
    check_head(b"GET", "1.1", path + b"?" + path, [HOST])
    with pytest.raises(HeadTooLargeError):
        check_head(b"GET", "1.1", path + b"x?" + path, [HOST])
