"""The TLS contexts of connections between workers; changed certificate files apply to new connections."""

import ssl
from pathlib import Path
from typing import NamedTuple

import structlog

from dedupe.certificate import end_of
from dedupe.file_signature import signature_of
from dedupe.model.errors import ConfigurationError

logger = structlog.get_logger(__name__)


class Contexts(NamedTuple):
    """One context for each side of a connection; each side requires a certificate of the other."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerTLS:
    """This worker's certificate and the authority that it trusts."""

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        """Read three PEM files: certificate, private key, trusted authorities. Raises ConfigurationError."""
        self._files = cert, key, ca
        self._signatures = self._read_signatures()
        self._contexts = self._read()
        self._log("certificate loaded")

    def contexts(self) -> Contexts:
        """
        Return the contexts of new connections; open connections keep theirs.

        Changed files are read first, which takes about a millisecond. Unusable files, such as half-written
        ones, leave the previous contexts in use and are logged once per change.
        """
        signatures = self._read_signatures()
        if signatures != self._signatures:
            self._signatures = signatures
            try:
                self._contexts = self._read()
            except ConfigurationError as err:
                logger.error("certificates not reloaded, the previous ones stay in use", error=str(err))
            else:
                self._log("certificates reloaded")
        return self._contexts

    def _log(self, event: str) -> None:
        logger.info(event, file=str(self._files[0]), ends=str(end_of(self._files[0])))

    def _read_signatures(self) -> list[object]:
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
