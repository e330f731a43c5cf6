"""The settings of a login to Kafka, which the gateway and the jobs share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
OAUTH: Mechanism = "OAUTHBEARER"
AWS: Mechanism = "AWS_MSK_IAM"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """How connections to brokers are protected, and how the client shows who it is."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_password_file: Path | None = None
    oauth_token_url: str | None = None
    oauth_scope: str | None = None
    oauth_extensions: str = ""  # NAME=VALUE,NAME=VALUE
    oauth_ca_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_key_password_file: Path | None = None
    prefix: str = "GATEWAY_KAFKA_"  # of the variables that sentences name

    @classmethod
    def of(cls, source: Any, *, prefix: str = "GATEWAY_KAFKA_") -> Self:
        """Return the settings that a model has under the same names, its SecretStr as text."""
        values = {each.name: getattr(source, each.name) for each in fields(cls) if each.name != "prefix"}
        secret = values["sasl_password"]
        values["sasl_password"] = secret.get_secret_value() if secret else None
        return cls(prefix=prefix, **values)

    @property
    def uses_sasl(self) -> bool:
        """Whether brokers authenticate the client by SASL."""
        return self.security_protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def uses_token(self) -> bool:
        """Whether the client shows a token."""
        return self.uses_sasl and self.sasl_mechanism in {OAUTH, AWS}

    @property
    def uses_endpoint(self) -> bool:
        """Whether tokens come from an endpoint over HTTP, by the client's id and secret."""
        return self.uses_sasl and self.sasl_mechanism == OAUTH and not self.token_file

    @property
    def token_file(self) -> Path | None:
        """The file that holds the token, if OAUTHBEARER reads one."""
        place = urlsplit(self.oauth_token_url or "")
        is_file = self.uses_sasl and self.sasl_mechanism == OAUTH and place.scheme == "file"
        return Path(place.path) if is_file else None

    @property
    def extensions(self) -> Pairs:
        """What OAUTHBEARER tells the brokers besides the token. Raises ValueError."""
        parts = [part.strip().partition("=") for part in self.oauth_extensions.split(",") if part.strip()]
        if not all(name.isalpha() and name.isascii() and _is_value(value) for name, _, value in parts):
            raise ValueError("not NAME=VALUE,NAME=VALUE")
        return tuple((name, value) for name, _, value in parts)

    def variable(self, name: str) -> str:
        """Return the variable of a setting."""
        return f"{self.prefix}{name}".upper()

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each rule that the settings break."""
        if self.uses_sasl:
            yield from self._sasl_rules(self.variable)
        if self.uses_tls:
            yield from self._tls_rules(self.variable)

    def _sasl_rules(self, name: Callable[[str], str]) -> Iterator[str]:
        if self.sasl_password and self.sasl_password_file:
            yield f"{name('sasl_password')} and {name('sasl_password_file')} must not both be set"
        has_password = bool(self.sasl_password or self.sasl_password_file)
        needs_password = self.sasl_mechanism != AWS and not self.token_file
        if needs_password and not (self.sasl_username and has_password):
            whose = " (the client's id and secret)" if self.sasl_mechanism == OAUTH else ""
            yield (
                f"{name('sasl_username')} and {name('sasl_password')} must be set{whose} when "
                f"{name('security_protocol')} is {self.security_protocol} and {name('sasl_mechanism')} is "
                f"{self.sasl_mechanism}; {name('sasl_password_file')} may name a file with the password"
            )
        if self.sasl_mechanism != OAUTH and self.oauth_token_url:
            yield f"{name('oauth_token_url')} is used with {name('sasl_mechanism')}={OAUTH} only"
        if self.sasl_mechanism == OAUTH and not _is_place(self.oauth_token_url or ""):
            yield (
                f"{name('oauth_token_url')} must be set when {name('sasl_mechanism')} is {OAUTH}: the token "
                "endpoint as https://HOST/..., or the file that holds the token as file:///..."
            )
        try:
            _ = self.extensions
        except ValueError:
            yield f"{name('oauth_extensions')} must be NAME=VALUE,NAME=VALUE, with letters alone as names"

    def _tls_rules(self, name: Callable[[str], str]) -> Iterator[str]:
        if self.ssl_key_file and not self.ssl_cert_file:
            yield f"{name('ssl_key_file')} needs {name('ssl_cert_file')}, the certificate that it belongs to"
        if self.ssl_key_password_file and not self.ssl_cert_file:
            yield f"{name('ssl_key_password_file')} needs {name('ssl_cert_file')} and {name('ssl_key_file')}"


def _is_value(text: str) -> bool:
    """Whether RFC 7628 allows the value of an extension."""
    return bool(text) and text.isascii() and text.isprintable()


def _is_place(url: str) -> bool:
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError:
        return False
    if place.username is not None or place.password is not None or any(map(str.isspace, url)):
        return False
    if place.scheme == "file":
        return place.path.startswith("/") and place.netloc in {"", "localhost"}
    return place.scheme in {"http", "https"} and bool(place.hostname)
