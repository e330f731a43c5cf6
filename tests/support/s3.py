"""A private store that speaks S3, on loopback, in memory: moto's server, in an environment of its own."""

import subprocess
import time
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

import httpx

from tests.support.processes import HOST, free_port, kill_when_parent_dies

SERVER = Path(__file__).resolve().parents[2] / "build" / "s3" / "bin" / "moto_server"
START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
PORT = free_port()
"""Chosen before Spark starts: a session keeps the first client of a store that it has made."""

CONF = {
    "spark.hadoop.fs.s3a.endpoint": f"http://{HOST}:{PORT}",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.access.key": "tests",
    "spark.hadoop.fs.s3a.secret.key": "tests",
}


class S3:
    """One server with one bucket; a context. The process also ends when the parent dies."""

    def __init__(self, bucket: str, log: Path) -> None:
        self.url = f"http://{HOST}:{PORT}/{bucket}"
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [SERVER, "-H", HOST, "-p", str(PORT)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._watcher = kill_when_parent_dies(self._process.pid)
        try:
            self._make_bucket()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._process, self._watcher):
            process.kill()
            process.communicate()

    def objects(self) -> list[str]:
        """Return the keys of what is stored, of the first thousand."""
        listing = ElementTree.fromstring(httpx.get(self.url, params={"list-type": "2"}).content)
        return [element.text or "" for element in listing.iter() if element.tag.endswith("Key")]

    def _make_bucket(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                httpx.put(self.url).raise_for_status()
            except httpx.TransportError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(POLL_INTERVAL_S)
            else:
                return
