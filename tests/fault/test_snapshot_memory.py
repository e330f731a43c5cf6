"""Claim: a process that sends or fetches many snapshots at once needs no more memory than is planned."""

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupe.storage.snapshots.bucket import Bucket
from tests.support.s3_stores import BUCKET, s3_environment, s3_store

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
FILE_BYTES = 40 * MIB
UPLOADS = 8
DOWNLOADS = 32  # of four lanes that are restored at once
PLANNED_MIB = 192
"""docs/capacity.md"""


class Grown(NamedTuple):
    """By how many MiB a process's resident memory grew at most."""

    uploading: float
    downloading: float


def peak_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def begin_peak() -> float:
    """Forget the peak; return what the process has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def transfer(port: int, folder: Path) -> Grown:
    os.environ |= s3_environment(port)
    return asyncio.run(transfer_all(folder))


async def transfer_all(folder: Path) -> Grown:
    bucket = Bucket(f"s3://{BUCKET}/memory")
    for number in range(UPLOADS):
        (folder / f"{number}").write_bytes(os.urandom(MIB) * (FILE_BYTES // MIB))
    await bucket.create("first", b"")  # what the client has once
    before = begin_peak()
    async with asyncio.TaskGroup() as group:
        for number in range(UPLOADS):
            group.create_task(bucket.upload(folder / f"{number}", f"{number}", size_bytes=FILE_BYTES))
    uploading, before = peak_mib() - before, begin_peak()
    async with asyncio.TaskGroup() as group:
        for number in range(DOWNLOADS):
            path = folder / f"back-{number}"
            group.create_task(bucket.download(f"{number % UPLOADS}", path, size_bytes=FILE_BYTES))
    return Grown(uploading, peak_mib() - before)


def test_many_transfers_at_once(tmp_path: Path) -> None:
    with (
        s3_store("gofakes3", tmp_path / "log") as port,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        grown = process.submit(transfer, port, tmp_path).result()
    assert grown.uploading < PLANNED_MIB
    assert grown.downloading < PLANNED_MIB
