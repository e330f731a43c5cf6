"""
Counts what one plain new event passes on its way from the socket to the log and back.

A file is one of app/ or dedupe/ that has a Python frame between the first `data_received` and the
`transport.write` of one request. A call is a frame that was entered from another such file: what the event
loop enters, resumptions of coroutines and generators, and other threads do not count. The gateway runs in
development mode on the embedded log without the native module. Each event has a connection of its own; of
several after the sixth the one counts that passed the fewest, since background tasks run beside them.

    python -m tools.one_event [--calls]
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

from app.cli.commands import main as gateway
from app.http.protocol import EdgeProtocol

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(f"{ROOT / name}{os.sep}" for name in ("app", "dedupe"))

EVENTS, FIRST_MEASURED = 14, 6
PAUSE_S = 0.3
"""Between two events, so that nothing of the one before is still under way."""
START_TIMEOUT_S = 60.0

RESUMABLE = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
FIRST_INSTRUCTION_MAX = 6
"""The last instruction of a coroutine or generator that has not begun lies at most here."""


class Call(NamedTuple):
    """A frame that was entered from another file."""

    caller: str
    file: str
    function: str


class Record:
    """The frames of one request."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.calls: Counter[Call] = Counter()

    @property
    def size(self) -> tuple[int, int]:
        """The number of files, and of calls."""
        return len(self.files), self.calls.total()

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Note a frame; see sys.setprofile."""
        file = _file_of(frame)
        if event != "call" or file is None:
            return
        if frame.f_code.co_flags & RESUMABLE and frame.f_lasti > FIRST_INSTRUCTION_MAX:
            return
        self.files[file] += 1
        caller = _caller_of(frame)
        if caller is not None and caller != file:
            self.calls[Call(caller, file, frame.f_code.co_name)] += 1


class Trace:
    """Records the frames of requests."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._received = 0

    def install(self) -> None:
        """Record the requests from number FIRST_MEASURED on."""
        connection_made, received = EdgeProtocol.connection_made, EdgeProtocol.data_received

        def made(protocol: EdgeProtocol, transport: asyncio.Transport) -> None:
            connection_made(protocol, cast(asyncio.Transport, _EndingTransport(transport)))

        def data_received(protocol: EdgeProtocol, data: bytes) -> None:
            if data.startswith(b"POST "):
                self._received += 1
                if self._received >= FIRST_MEASURED:
                    self._records.append(Record())
                    sys.setprofile(self._records[-1].note)
            received(protocol, data)

        setattr(EdgeProtocol, "connection_made", made)  # noqa: B010 - to replace, not to define
        setattr(EdgeProtocol, "data_received", data_received)  # noqa: B010

    def report(self, *, with_calls: bool) -> str:
        """Return the figures as lines, one for each file or each call after the first."""
        record = min(self._records, key=lambda record: record.size)
        lines = ["{} files, {} calls".format(*record.size)]
        if with_calls:
            lines += [
                f"{count:4} {of.caller} -> {of.file} {of.function}" for of, count in record.calls.items()
            ]
        else:
            lines += [f"{count:4} {file}" for file, count in sorted(record.files.items())]
        return "\n".join(lines)


class _EndingTransport:
    """A transport whose `write` ends the record."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        sys.setprofile(None)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _file_of(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name[len(str(ROOT)) + 1 :] if name.startswith(PACKAGES) else None


def _caller_of(frame: FrameType) -> str | None:
    """Return the nearest file that the frame was entered from, through libraries; None for the event loop."""
    above = frame.f_back
    while above is not None:
        file = _file_of(above)
        if file is not None:
            return None if file.startswith("app/cli/") else file
        above = above.f_back
    return None


def _send_events(port: int, admin_port: int) -> None:
    """Send one event after another, each on a connection of its own; then stop the process."""
    try:
        _await_ready(f"http://127.0.0.1:{admin_port}/readyz")
        for number in range(EVENTS):
            event = {"messageId": f"event-{number}", "type": "track", "event": "Tried", "userId": "u1"}
            body = json.dumps(event).encode()
            head = f"POST /v1/events?writeKey=any HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port), timeout=START_TIMEOUT_S) as connection:
                connection.sendall(head.encode() + body)  # in one piece, as SDKs' HTTP clients mostly do
                answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            time.sleep(PAUSE_S)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _await_ready(url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer 200 within {START_TIMEOUT_S:g} s")


def _free_ports(count: int) -> list[int]:
    with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_sockets]
    for each in with_sockets:
        each.close()
    return ports


def main() -> None:
    """Start a gateway in this process, send it events, and print what the measured one passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="list the calls instead of the files")
    options = parser.parse_args()
    trace = Trace()
    trace.install()
    port, admin_port = _free_ports(2)
    with tempfile.TemporaryDirectory() as data_dir:
        os.environ |= {
            "GATEWAY_MODE": "development",
            "GATEWAY_DATA_DIR": data_dir,
            "GATEWAY_PORT": str(port),
            "GATEWAY_ADMIN_PORT": str(admin_port),
            "GATEWAY_NATIVE": "off",
        }
        sys.argv = ["gateway", "serve"]
        threading.Thread(target=_send_events, args=(port, admin_port), daemon=True).start()
        try:
            gateway()
        except SystemExit as ended:
            if ended.code:
                raise
    print(trace.report(with_calls=options.calls))


if __name__ == "__main__":
    main()
