"""Tokens for Kafka, signed; who gives them for a secret (OAuth's client credentials), and who checks them."""

import base64
import http.server
import json
import threading
import time
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.processes import HOST

KEY_ID = "of-the-tests"
LIFETIME_S = 3600


class Signer:
    """Makes signed tokens (JWT, RS256)."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def token(self, subject: str) -> str:
        """Return one that says who its owner is, for an hour."""
        now = int(time.time())
        claims = {"sub": subject, "scope": "kafka", "iat": now, "exp": now + LIFETIME_S}
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        signed = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def key_set(self) -> str:
        """Return what checks them, as JSON Web Key Set."""
        public = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": KEY_ID, "use": "sig", "alg": "RS256"}
        numbers = {"n": _text(public.n.to_bytes(256, "big")), "e": _text(public.e.to_bytes(3, "big"))}
        return json.dumps({"keys": [key | numbers]})


class TokenServer:
    """Answers with a token, or with 401."""

    def __init__(self, signer: Signer, client_id: str, secret: str) -> None:
        login = "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                is_known = self.headers["Authorization"] == login
                body = json.dumps({"access_token": signer.token(client_id)} if is_known else {}).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
