"""Two independent servers that speak S3, as processes: moto, and gofakes3. Both keep all in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.processes import HOST, free_port, http_server

BUCKET = "snapshots"
BUILD = Path(__file__).resolve().parents[2] / "build"
COMMANDS = {
    "moto": lambda port: [str(BUILD / "s3" / "bin" / "moto_server"), "-H", HOST, "-p", str(port)],
    "gofakes3": lambda port: [str(BUILD / "go" / "s3-server"), f"{HOST}:{port}", BUCKET],
}


@contextmanager
def s3_store(kind: str, log: Path) -> Iterator[int]:
    """Run a server with an empty bucket; yield its port."""
    port = free_port()
    url = f"http://{HOST}:{port}/{BUCKET}"

    def greet() -> httpx.Response:
        return httpx.put(url) if kind == "moto" else httpx.get(url)  # the first makes the bucket

    with http_server(COMMANDS[kind](port), log, greet=greet):
        yield port


def s3_environment(port: int) -> dict[str, str]:
    """Return how a process reaches a server, or the link to it."""
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
    }
