"""The TLS context of connections to brokers and token endpoints: one for all, as its files change."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import structlog

from dedupe.certificate import end_of
from dedupe.file_signature import Signature, signature_of
from dedupe.login.errors import LoginError
from dedupe.login.secret_file import read_secret

MINIMUM_VERSION = ssl.TLSVersion.TLSv1_2  # the lowest that Kafka's brokers take, too

logger = structlog.get_logger(__name__)


class TlsContext:
    """A context that follows its files."""

    def __init__(
        self,
        ca: Path | None,
        cert: Path | None = None,
        key: Path | None = None,
        key_password: Path | None = None,
        *,
        variable: Callable[[str], str] = str,
        ca_setting: str = "ssl_ca_file",
    ) -> None:
        """
        Read nothing yet.

        Args:
            ca: PEM file of the trusted authorities; None for the system's.
            cert: PEM file of the client's certificate and what leads to its authority.
            key: PEM file of its key; None if `cert` has both.
            key_password: file with the password of an encrypted key.
            variable: returns the variable of a setting, for sentences.
            ca_setting: the setting that names `ca`.
        """
        self._ca, self._cert, self._key, self._key_password = ca, cert, key, key_password
        self._variable, self._ca_setting = variable, ca_setting
        own = [path for path in (ca, cert, key, key_password) if path is not None]
        self._files = own if ca else own + _system_files()
        self._signatures: list[Signature | None] | None = None
        self._context: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> ssl.SSLContext:
        """
        Return the context of a new connection; open connections keep theirs.

        Changed files are read in a thread: the system's authorities take 20 ms, a key's password as long.
        Unusable ones, such as half-written ones, leave the previous context in use and are logged once per
        change.

        Raises:
            LoginError: the files were never usable.
        """
        async with self._lock:
            signatures = [signature_of(path) for path in self._files]
            if self._context is None or signatures != self._signatures:
                await self._follow(signatures)
            assert self._context is not None
            return self._context

    async def _follow(self, signatures: list[Signature | None]) -> None:
        """Read changed files."""
        is_first = self._context is None
        try:
            self._context = await asyncio.to_thread(self._read)
        except LoginError as err:
            if is_first:
                raise
            logger.error("certificates not reloaded, the previous ones stay in use", error=str(err))
        else:
            ends = {} if self._cert is None else {"ends": str(end_of(self._cert))}
            if not is_first:
                logger.info("certificates reloaded", files=[str(path) for path in self._files], **ends)
            elif ends:
                logger.info("certificate loaded", file=str(self._cert), **ends)
        self._signatures = signatures

    def _read(self) -> ssl.SSLContext:
        context = (
            ssl.create_default_context() if self._ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        context.minimum_version = MINIMUM_VERSION
        if self._ca is not None:
            self._read_text(self._ca, self._ca_setting)
            try:
                context.load_verify_locations(self._ca)
            except (OSError, ValueError) as err:
                self._refuse(self._ca_setting, self._ca, "has no certificate in PEM", err)
        if self._cert is not None:
            self._load_own(context, self._cert, self._key)
        return context

    def _load_own(self, context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
        """Load the client's certificate and key, or say which of them is wrong."""
        key_setting, key_path = ("ssl_cert_file", cert) if key is None else ("ssl_key_file", key)
        if "-----BEGIN CERTIFICATE-----" not in self._read_text(cert, "ssl_cert_file"):
            self._refuse("ssl_cert_file", cert, "has no certificate in PEM")
        if "PRIVATE KEY-----" not in self._read_text(key_path, key_setting):
            self._refuse(key_setting, key_path, "has no private key in PEM")
        password = ""
        if self._key_password is not None:
            password = read_secret(self._key_password, self._variable("ssl_key_password_file"))
        was_asked = False

        def answer() -> str:  # OpenSSL would ask on the terminal
            nonlocal was_asked
            was_asked = True
            return password

        try:
            context.load_cert_chain(cert, key, answer)
        except (OSError, ValueError) as err:
            password_setting = self._variable("ssl_key_password_file")
            if getattr(err, "reason", None) == "KEY_VALUES_MISMATCH":
                why = f"is not the key of the certificate in {self._variable('ssl_cert_file')}"
            elif was_asked and not password:
                why = f"is encrypted: set {password_setting}"
            elif was_asked:
                why = f"is not decrypted by the password in {password_setting}"
            else:
                why = f"cannot be used with {self._variable('ssl_cert_file')}"
            self._refuse(key_setting, key_path, why, err)

    def _read_text(self, path: Path, setting: str) -> str:
        try:
            return path.read_bytes().decode("ascii", "replace")
        except OSError as err:
            self._refuse(setting, path, f"cannot be read ({err.strerror})", err)

    def _refuse(self, setting: str, path: Path, why: str, err: Exception | None = None) -> NoReturn:
        cause = f": {err}" if isinstance(err, ssl.SSLError) else ""
        raise LoginError(f"{self._variable(setting)} ({path}) {why}{cause}") from err


def explain_tls(err: Exception, place: str, variable: Callable[[str], str]) -> LoginError | None:
    """Return what an error says about TLS with a broker or an endpoint, None if it says nothing."""
    if isinstance(err, ssl.SSLCertVerificationError):
        return LoginError(
            f"the certificate of {place} is not trusted: {err.verify_message.rstrip('.')}; does "
            f"{variable('ssl_ca_file')} name its authority, and has it this name?"
        )
    if isinstance(err, ssl.SSLError) and "ALERT" in (err.reason or ""):
        why = str(err.reason).partition("ALERT_")[2].replace("_", " ").lower()
        return LoginError(
            f"{place} refuses the TLS connection ({why}): is the certificate in {variable('ssl_cert_file')} "
            "one that it takes, and has it not expired?"
        )
    if isinstance(err, ssl.SSLError):
        return LoginError(f"{place} does not speak TLS ({err.reason}): is it a port without TLS?")
    if isinstance(err, ConnectionResetError | ConnectionAbortedError):
        why = f" ({err})" if str(err) else ""
        return LoginError(f"{place} ended the TLS handshake{why}: is it a port without TLS?")
    return None


def _system_files() -> list[Path]:
    paths = ssl.get_default_verify_paths()
    return [Path(path) for path in (paths.cafile, paths.capath) if path]
