"""A private store that speaks S3, on loopback, in memory: moto's server, in an environment of its own."""

from pathlib import Path
from typing import Self
from xml.etree import ElementTree

import httpx

from tests.support.processes import HOST, free_port, http_server

SERVER = Path(__file__).resolve().parents[2] / "build" / "s3" / "bin" / "moto_server"
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
        command = [str(SERVER), "-H", HOST, "-p", str(PORT)]
        self._server = http_server(command, self._log, greet=lambda: httpx.put(self.url))  # makes the bucket
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    def objects(self) -> list[str]:
        """Return the keys of what is stored, of the first thousand."""
        listing = ElementTree.fromstring(httpx.get(self.url, params={"list-type": "2"}).content)
        return [element.text or "" for element in listing.iter() if element.tag.endswith("Key")]
