"""A proxy that serves one port below a path of its own and cuts that off, as an ingress does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.support.processes import HOST

HEAD_END = b"\r\n\r\n"


class _Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


@contextmanager
def below(prefix: str, port: int) -> Iterator[str]:
    """Serve what a port has below `prefix` (/a/b), and nothing else; give its URL without a slash."""
    words = b"GET %b/" % prefix.encode()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            head = _head_of(self.request)
            if not head.startswith(words):
                self.request.sendall(
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return
            line, _, rest = head[len(words) :].partition(b"\r\n")
            with socket.create_connection((HOST, port)) as upstream:
                upstream.sendall(b"GET /%b\r\nConnection: close\r\n%b" % (line, _without_connection(rest)))
                while data := upstream.recv(65536):
                    try:
                        self.request.sendall(data)
                    except OSError:
                        return  # the browser has enough

    with _Server((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}{prefix}"
        finally:
            server.shutdown()
            thread.join()


def _head_of(connection: socket.socket) -> bytes:
    head = b""
    while HEAD_END not in head and (data := connection.recv(65536)):
        head += data
    return head


def _without_connection(head: bytes) -> bytes:
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines)
