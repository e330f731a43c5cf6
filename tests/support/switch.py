"""
Network namespaces joined by a switch in user space, which cuts, loses, delays, slows and filters packets.

Each node is a namespace of its own with one TUN device; the switch reads all devices and forwards by
address. What goes wrong is set for each direction by itself. Nothing has a name in the system: namespaces and
devices end with the process that has made them, however it ends.
"""

import asyncio
import ctypes
import fcntl
import os
import random
import struct
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

TUN = "/dev/net/tun"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PREFIX = 24
PACKET_BYTES_MAX = 1_500
FULL_BYTES = 1_400
"""A packet as large carries a part of something larger."""
QUEUE_BYTES_MAX = 128 * 1024
"""What a slow direction keeps; what comes on top is lost, as in a router."""
READS_MAX = 64

T = TypeVar("T")


@dataclass
class Path:
    """One direction between two addresses, and what is wrong with it."""

    is_cut: bool = False
    ends_at_full: bool = False  # cut by the first full packet
    loss: float = 0.0
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    packet_bytes_max: int = PACKET_BYTES_MAX
    free_at: float = 0.0  # when a slow one has sent what it keeps

    def takes(self, size: int, chance: float) -> bool:
        """Whether a packet of this size passes."""
        if self.ends_at_full and size >= FULL_BYTES:
            self.is_cut = True
        return not self.is_cut and size <= self.packet_bytes_max and chance >= self.loss

    def due(self, size: int, now: float) -> float | None:
        """Return when a packet arrives; None: it is lost, since too many wait."""
        if self.bytes_per_s is not None:
            if (self.free_at - now) * self.bytes_per_s > QUEUE_BYTES_MAX:
                return None
            self.free_at = max(now, self.free_at) + size / self.bytes_per_s
        return max(now, self.free_at) + self.delay_s


class Node:
    """One namespace, or the caller's own, and its device."""

    def __init__(self, addresses: Sequence[str], *, device: str = "gw0", is_apart: bool = True) -> None:
        """
        Make it.

        Raises:
            OSError: there is no TUN device, or no right to use one.
        """
        self.addresses = addresses
        begin = partial(_unshare) if is_apart else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"node-{addresses[0]}", initializer=begin)
        self.tun: int = self.run(self._open, device)

    @property
    def address(self) -> str:
        """Its first address."""
        return self.addresses[0]

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function within the namespace; processes that it starts stay there."""
        return self._thread.submit(function, *arguments).result()

    def _open(self, device: str) -> int:
        tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
            _ip("link", "set", "lo", "up")
            for address in self.addresses:
                _ip("addr", "add", f"{address}/{PREFIX}", "dev", device)
            _ip("link", "set", device, "mtu", str(PACKET_BYTES_MAX), "up")
        except BaseException:
            os.close(tun)
            raise
        return tun

    def close(self) -> None:
        """Remove the device; the namespace ends with its last process."""
        os.close(self.tun)
        self._thread.shutdown()


class Switch:
    """Forwards between nodes, in a thread of its own, while the context is open."""

    def __init__(self, nodes: Sequence[Node], *, seed: int = 0) -> None:
        self._tuns = {address: node.tun for node in nodes for address in node.addresses}
        self._paths: defaultdict[tuple[str, str], Path] = defaultdict(Path)
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="switch")

    def __enter__(self) -> Self:
        for tun in {*self._tuns.values()}:
            self._loop.add_reader(tun, self._forward, tun)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def change(self, senders: Iterable[str], receivers: Iterable[str], **what: Any) -> None:
        """Have something wrong with every direction from one of these addresses to one of those."""
        ways = [(sender, receiver) for sender in senders for receiver in receivers if sender != receiver]
        for way in ways:
            self._paths[way] = Path(**what)

    def between(self, one: Iterable[str], other: Iterable[str], **what: Any) -> None:
        """As `change`, both ways."""
        one, other = list(one), list(other)
        self.change(one, other, **what)
        self.change(other, one, **what)

    def heal(self) -> None:
        """Let everything pass at once."""
        self._paths.clear()

    def _forward(self, tun: int) -> None:
        for _ in range(READS_MAX):
            try:
                packet = os.read(tun, 65_536)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            sender, receiver = (".".join(map(str, packet[at : at + 4])) for at in (12, 16))
            path, now = self._paths[sender, receiver], self._loop.time()
            if receiver not in self._tuns or not path.takes(len(packet), self._rng.random()):
                continue
            due = path.due(len(packet), now)
            if due is None:
                continue
            if due <= now:
                self._send(receiver, packet)
            else:
                self._loop.call_at(due, self._send, receiver, packet)

    def _send(self, receiver: str, packet: bytes) -> None:
        try:
            os.write(self._tuns[receiver], packet)
        except OSError:
            return  # its queue is full, or its device down: lost, as on a wire


def why_not() -> str | None:
    """Say in a sentence why this machine cannot have nodes, if it cannot."""
    try:
        Node(["10.77.0.253"]).close()
    except (OSError, subprocess.SubprocessError) as err:
        return f"network namespaces need root and {TUN} (or unshare -rn): {err}"
    except Exception as err:
        return f"network namespaces cannot be made here: {err!r}"
    return None


def _unshare() -> None:
    """Give the calling thread a network namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
