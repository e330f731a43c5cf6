"""The nginx of docs/nginx.conf in front of a gateway: the file as it is, but for ports and paths."""

import datetime
import subprocess
import time
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.processes import HOST, free_port, is_free, kill_when_parent_dies

EXAMPLE = Path(__file__).parents[2] / "docs" / "nginx.conf"
SERVER_NAME = "events.example.com"
START_TIMEOUT_S = 20.0

MAIN = """
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

    def __init__(self, folder: Path, gateway_port: int) -> None:
        self.folder = folder
        self.port = free_port(other_than=gateway_port)
        self.certificate = folder / "gateway.crt"
        folder.mkdir(parents=True)
        _write_certificate(self.certificate, folder / "gateway.key")
        example = EXAMPLE.read_text(encoding="utf-8")
        for shown, used in (
            ("127.0.0.1:8080", f"{HOST}:{gateway_port}"),
            ("listen 443", f"listen {HOST}:{self.port}"),
            ("/etc/nginx/tls", str(folder)),
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
        deadline = time.monotonic() + START_TIMEOUT_S
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


def _write_certificate(certificate: Path, key: Path) -> None:
    private_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(private_key, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
