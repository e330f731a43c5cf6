"""A login to Kafka's brokers: what all connections share, which follows its files while the process runs."""

import asyncio
import importlib.util
import ssl

from dedupe.login.errors import LoginError
from dedupe.login.secret_file import read_secret
from dedupe.login.settings import AWS, LoginSettings
from dedupe.login.tls import TlsContext
from dedupe.login.tokens import AwsSigner, Fetch, TokenEndpoint, TokenFile, Tokens, region_of
from dedupe.model.errors import ConfigurationError

AWS_PACKAGE = "aws_msk_iam_sasl_signer"


class Login:
    """The TLS context, the password and the token of new connections."""

    def __init__(self, settings: LoginSettings | None = None, *, bootstrap_servers: str = "") -> None:
        """
        Read nothing yet.

        Args:
            settings: free of contradictions; None for neither TLS nor SASL.
            bootstrap_servers: whose names tell AWS's region.
        """
        self.settings = settings = settings or LoginSettings()
        self._region = region_of(bootstrap_servers)
        self._tls = self._tls_of(settings) if settings.uses_tls else None
        self.tokens = self._tokens_of(settings)
        """Those of OAUTHBEARER, which is AWS_MSK_IAM's mechanism, too; None for other mechanisms."""

    async def check(self) -> None:
        """
        Look at everything that the login needs of this machine.

        Raises:
            ConfigurationError: a file is missing, or cannot be used; or a package is missing.
        """
        settings = self.settings
        if settings.uses_sasl and settings.sasl_mechanism == AWS:
            if importlib.util.find_spec(AWS_PACKAGE) is None:
                raise ConfigurationError(
                    f"{settings.variable('sasl_mechanism')}={AWS} needs AWS's signer: install "
                    "'idempotent-ingestion-gateway[msk]'"
                )
            if self._region is None:
                raise ConfigurationError(
                    f"{settings.variable('sasl_mechanism')}={AWS} needs AWS_REGION: the names of the brokers "
                    "do not tell the region"
                )
        try:
            await self.tls_context()
            if settings.uses_sasl and settings.sasl_mechanism != AWS and not settings.token_file:
                await self.password()
        except LoginError as err:
            raise ConfigurationError(str(err)) from err

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of a new connection, None without TLS. Raises LoginError."""
        return None if self._tls is None else await self._tls.current()

    async def password(self) -> str:
        """Return the password, or the client's secret; a file is read each time. Raises LoginError."""
        settings = self.settings
        if settings.sasl_password_file is None:
            return settings.sasl_password or ""
        name = settings.variable("sasl_password_file")
        return await asyncio.to_thread(read_secret, settings.sasl_password_file, name)

    def _tls_of(self, settings: LoginSettings) -> TlsContext:
        return TlsContext(
            settings.ssl_ca_file,
            settings.ssl_cert_file,
            settings.ssl_key_file,
            settings.ssl_key_password_file,
            variable=settings.variable,
        )

    def _tokens_of(self, settings: LoginSettings) -> Tokens | None:
        if not settings.uses_token:
            return None
        fetch: Fetch
        if settings.sasl_mechanism == AWS:
            fetch = AwsSigner(self._region or "")
        elif settings.token_file:
            fetch = TokenFile(settings.token_file, settings.variable("oauth_token_url"))
        else:
            url = settings.oauth_token_url or ""
            is_https = url.lower().startswith("https")
            fetch = TokenEndpoint(
                url=url,
                client_id=settings.sasl_username or "",
                client_secret=self.password,
                scope=settings.oauth_scope,
                tls=TlsContext(settings.oauth_ca_file, variable=settings.variable, ca_setting="oauth_ca_file")
                if is_https
                else None,
            )
        return Tokens(fetch)
