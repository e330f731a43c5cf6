"""What workers prove to one another by TLS: certificates that are read again once they have changed."""

import ssl
from pathlib import Path
from typing import NamedTuple

import structlog

from app.config import signature_of
from dedupe.errors import ConfigurationError

log = structlog.get_logger(__name__)


class Contexts(NamedTuple):
    """Those of a worker that is called, and that calls; each side wants to see the other's certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerTLS:
    """The certificate of this worker, and whose it trusts."""

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        """Read the PEM files: certificate, its key, and who is trusted. Raises ConfigurationError."""
        self._files = cert, key, ca
        self._seen = self._signatures()
        self._contexts = self._read()

    def contexts(self) -> Contexts:
        """
        Return the contexts of a new connection; those that are open keep what they have agreed on.

        Files that have changed are read first, in a millisecond. If they cannot be used, as while somebody
        still writes them, the previous ones stay in use, and the log says so once a change.
        """
        found = self._signatures()
        if found != self._seen:
            self._seen = found
            try:
                self._contexts = self._read()
            except ConfigurationError as err:
                log.error("certificates not read again, the previous ones stay in use", error=str(err))
            else:
                log.info("certificates read again", file=str(self._files[0]))
        return self._contexts

    def _signatures(self) -> list[object]:
        return [signature_of(path) for path in self._files]

    def _read(self) -> Contexts:
        try:
            return Contexts(*map(self._context, (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)))
        except (OSError, ssl.SSLError) as err:
            raise ConfigurationError(f"the files in GATEWAY_PEER_TLS_* cannot be used: {err}") from err

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        cert, key, ca = self._files
        context = ssl.create_default_context(purpose, cafile=ca)
        context.load_cert_chain(cert, key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context
