"""The nginx of deploy/nginx.conf in front of a gateway: the file as it is, but for ports and paths."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.certificates import write_certificate
from tests.support.processes import HOST, free_port, is_free, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

EXAMPLE = Path(__file__).parents[2] / "deploy" / "nginx.conf"
SERVER_NAME = "events.example.com"

MAIN = """
user root;
daemon off;
error_log stderr warn;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/gateway.conf;
}}
"""


class Nginx:
    """One nginx process in the foreground."""

    def __init__(self, folder: Path, gateway_port: int, changes: Sequence[tuple[str, str]] = ()) -> None:
        """`changes`: what else is written differently from what the file shows."""
        self.folder = folder
        self.port = free_port()
        self.certificate = folder / "gateway.crt"
        folder.mkdir(parents=True)
        write_certificate(self.certificate, folder / "gateway.key", SERVER_NAME)
        example = EXAMPLE.read_text(encoding="utf-8")
        for shown, used in (
            ("127.0.0.1:8080", f"{HOST}:{gateway_port}"),
            ("listen 443", f"listen {HOST}:{self.port}"),
            ("/etc/nginx/tls", str(folder)),
            *changes,
        ):
            assert shown in example
            example = example.replace(shown, used)
        (folder / "gateway.conf").write_text(example, encoding="utf-8")
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder), encoding="utf-8")

    def __enter__(self) -> Self:
        log = self.folder / "nginx.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["nginx", "-c", str(self.folder / "nginx.conf"), "-p", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._watcher = kill_when_parent_dies(self._process.pid)
        deadline = time.monotonic() + PATIENCE_S
        while is_free(self.port):
            assert self._process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._watcher.kill()
        self._watcher.wait()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
