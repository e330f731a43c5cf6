"""Sends prebuilt requests over keep-alive connections, one at a time on each, and times the answers."""

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import NamedTuple

import uvloop

from app.cli.load.connection import Connection
from tests.support.processes import HOST


class Answered(NamedTuple):
    """The figures of one run."""

    seconds: float
    client_cpu_seconds: float
    latencies_s: list[float]


class LoadError(Exception):
    """An answer that ends a benchmark."""


def send_all(port: int | Sequence[int], requests: Sequence[bytes], connections: int) -> Answered:
    """
    Send every request once and wait for its answer; several ports receive equal numbers.

    Raises:
        LoadError: an answer was not 200, or is missing.
    """
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(_send_all([port] if isinstance(port, int) else port, requests, connections))
    finally:
        gc.enable()


async def _send_all(ports: Sequence[int], requests: Sequence[bytes], connections: int) -> Answered:
    waiting, latencies_s = [iter(requests[place :: len(ports)]) for place in range(len(ports))], list[float]()
    opened: list[Connection] = []

    async def keep_sending(number: int, connection: Connection) -> None:
        for request in waiting[number % len(ports)]:
            began = time.perf_counter()
            try:
                answer = await connection.exchange(request)
            except ConnectionError as err:
                raise LoadError(str(err)) from err
            latencies_s.append(time.perf_counter() - began)
            if answer.status != 200:
                raise LoadError(f"{answer.status} {answer.body.decode(errors='replace')}")

    try:
        for number in range(min(connections, len(requests))):
            opened.append(await Connection.open(f"http://{HOST}:{ports[number % len(ports)]}"))
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.gather(*(keep_sending(*numbered) for numbered in enumerate(opened)))
        return Answered(time.perf_counter() - began, time.process_time() - cpu_began, latencies_s)
    finally:
        for connection in opened:
            connection.close()
        await asyncio.gather(*(connection.closed for connection in opened))
