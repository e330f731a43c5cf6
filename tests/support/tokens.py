"""Tokens for Kafka, signed; who gives them for a secret (OAuth's client credentials), and who checks them."""

import base64
import http.server
import json
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.processes import HOST

KEY_ID = "of-the-tests"
LIFETIME_S = 3600
OAUTH = "org.apache.kafka.common.security.oauthbearer"


def checked_by_broker(listener: str, keys: Path) -> dict[str, str]:
    """Return the properties by which a broker's listener takes the tokens that a key set checks."""
    name = f"listener.name.{listener}.oauthbearer"
    return {
        f"{name}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{name}.sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{name}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
    }


def broker_may_read(keys: Path) -> list[str]:
    """Return the flags of a broker's JVM without which it reads no key set."""
    places = ("urls", "files")
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{place}={keys.as_uri()}" for place in places]


class Signer:
    """Makes signed tokens (JWT, RS256)."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def token(self, subject: str, *, life_s: int = LIFETIME_S) -> str:
        """Return one that says who its owner is, for an hour."""
        now = int(time.time())
        claims = {"sub": subject, "scope": "kafka", "iat": now - LIFETIME_S, "exp": now + life_s}
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
    """Answers with a token, or with 401; or with `answer`, a status and a document, where that is set."""

    def __init__(
        self, signer: Signer, client_id: str, secret: str, *, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self.secret = secret
        self.life_s = LIFETIME_S
        self.answer: tuple[int, Any] | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.forms: list[dict[str, list[str]]] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.forms.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                server.may_answer.wait()
                login = "Basic " + base64.b64encode(f"{client_id}:{server.secret}".encode()).decode()
                status, document = server.answer or (401, {"error": "invalid_client"})
                if server.answer is None and self.headers["Authorization"] == login:
                    token = signer.token(client_id, life_s=server.life_s)
                    status, document = 200, {"access_token": token, "expires_in": server.life_s}
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", server.url)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._scheme = "http"
        if certificate is not None:
            self._scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
