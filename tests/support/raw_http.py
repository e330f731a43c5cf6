"""HTTP by hand, over a socket: whatever bytes a test wants to send, and the answers that come back."""

import socket
from typing import NamedTuple, Self

import orjson

from tests.support.processes import HOST
from tests.support.waiting import PATIENCE_S


class Answer(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def code(self) -> str | None:
        """The problem's code; None for a success."""
        document = orjson.loads(self.body)
        assert isinstance(document, dict)
        return document.get("code")


class RawConnection:
    """One connection to a gateway."""

    def __init__(self, port: int, *, receive_buffer: int | None = None, source: str = HOST) -> None:
        self.socket = socket.socket()
        self.socket.bind((source, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((HOST, port))
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Answer:
        """Read one answer; fail if the connection ends before."""
        while b"\r\n\r\n" not in self._unread:
            self._receive()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers["content-length"])
        while len(self._unread) < size:
            self._receive()
        body, self._unread = self._unread[:size], self._unread[size:]
        return Answer(int(status_line.split()[1]), headers, body)

    def is_closed(self) -> bool:
        """Wait until the gateway closes the connection; false if it sends something instead."""
        try:
            return not self._unread and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self) -> None:
        data = self.socket.recv(65_536)
        assert data, f"closed after {self._unread!r}"
        self._unread += data


def request(
    body: bytes = b'{"batch":[]}', *, path: str = "/v1/batch?writeKey=web", head: bytes = b""
) -> bytes:
    """Return a complete request; `head` adds header lines, each with its line end."""
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        head,
        len(body),
        body,
    )
