"""Claim: all connections share a TLS context, which follows its files; unusable ones are one sentence."""

import ssl
from pathlib import Path

import pytest

from dedupe.login.errors import LoginError
from dedupe.login.login import Login
from dedupe.login.settings import LoginSettings
from dedupe.login.tls import explain_tls
from dedupe.model.errors import ConfigurationError
from tests.support.certificates import write_certificate

PASSWORD = "of the key"


class Files:
    """The files of a client with a certificate and an encrypted key."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key, self.password = folder / "crt.pem", folder / "key.pem", folder / "password"
        write_certificate(self.cert, self.key, "client", password=PASSWORD)
        self.password.write_text(PASSWORD + "\n")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.cert.read_bytes())
        self.has_password = True

    def login(self) -> Login:
        return Login(
            LoginSettings(
                security_protocol="SSL",
                ssl_ca_file=self.ca,
                ssl_cert_file=self.cert,
                ssl_key_file=self.key,
                ssl_key_password_file=self.password if self.has_password else None,
            )
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_context_is_one_until_a_file_changes(files: Files) -> None:
    login = files.login()
    first = await login.tls_context()
    assert first is not None
    assert await login.tls_context() is first
    assert first.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, True)
    write_certificate(files.cert, files.key, "client", password=PASSWORD)
    second = await login.tls_context()
    assert second is not first
    assert await login.tls_context() is second


async def test_half_written_files_leave_the_previous_context_in_use(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    login = files.login()
    first = await login.tls_context()
    files.key.write_text("half")
    for _ in range(3):
        assert await login.tls_context() is first
    assert capsys.readouterr().out.count("certificates not reloaded") == 1
    write_certificate(files.cert, files.key, "client", password=PASSWORD)
    assert await login.tls_context() is not first


async def test_system_s_authorities_are_read_once() -> None:
    login = Login(LoginSettings(security_protocol="SASL_SSL", sasl_username="a", sasl_password="b"))
    context = await login.tls_context()
    assert context is not None
    assert context is await login.tls_context()
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: f.ca.unlink(), r"SSL_CA_FILE \(.*ca.pem\) cannot be read \(No such file or directory\)$"),
        (lambda f: f.ca.write_text("nothing"), r"SSL_CA_FILE \(.*ca.pem\) has no certificate in PEM"),
        (lambda f: f.cert.unlink(), "SSL_CERT_FILE .* cannot be read"),
        (lambda f: f.cert.write_bytes(b"\xff\0"), r"SSL_CERT_FILE \(.*\) has no certificate in PEM$"),
        (lambda f: f.key.write_text(""), r"SSL_KEY_FILE \(.*\) has no private key in PEM$"),
        (
            lambda f: f.password.write_text("another"),
            "SSL_KEY_FILE .* is not decrypted by the password in GATEWAY_KAFKA_SSL_KEY_PASSWORD_FILE",
        ),
        (lambda f: f.password.write_text(""), "SSL_KEY_PASSWORD_FILE .* is empty"),
        (
            lambda f: setattr(f, "has_password", False),
            r"SSL_KEY_FILE \(.*\) is encrypted: set GATEWAY_KAFKA_SSL_KEY_PASSWORD_FILE",
        ),
        (
            lambda f: write_certificate(f.ca, f.key, "other", password=PASSWORD),
            "SSL_KEY_FILE .* is not the key of the certificate in GATEWAY_KAFKA_SSL_CERT_FILE",
        ),
        (
            lambda f: f.cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "SSL_KEY_FILE .* cannot be used with GATEWAY_KAFKA_SSL_CERT_FILE",
        ),
    ],
)
async def test_unusable_file_is_one_sentence_at_start(files: Files, damage: object, sentence: str) -> None:
    assert callable(damage)
    damage(files)
    with pytest.raises(ConfigurationError, match=f"^GATEWAY_KAFKA_{sentence}") as refused:
        await files.login().check()
    assert "\n" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


async def test_key_may_be_in_the_file_of_the_certificate(files: Files) -> None:
    files.cert.write_bytes(files.cert.read_bytes() + files.key.read_bytes())
    settings = LoginSettings(
        security_protocol="SSL", ssl_cert_file=files.cert, ssl_key_password_file=files.password
    )
    assert await Login(settings).tls_context() is not None


def test_other_errors_say_nothing_of_tls() -> None:
    assert explain_tls(ConnectionRefusedError(), "kafka:9093", str) is None
    told = explain_tls(ConnectionAbortedError("took too long"), "kafka:9093", str)
    assert isinstance(told, LoginError)
    assert "kafka:9093 ended the TLS handshake (took too long)" in str(told)
