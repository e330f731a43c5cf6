"""Debian's docker-registry on a free port of this machine, without TLS."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.processes import HOST, free_port, http_server


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps everything in a folder; yield its host and port."""
    address = f"{HOST}:{free_port()}"
    config = folder / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'blobs'}}}}}\n"
        f"http: {{addr: {address}}}\n"
        "log: {accesslog: {disabled: true}}\n"
    )
    command = ["docker-registry", "serve", str(config)]
    with http_server(command, folder / "log", greet=lambda: httpx.get(f"http://{address}/v2/")):
        yield address
