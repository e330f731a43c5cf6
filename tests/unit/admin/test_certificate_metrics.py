"""Claim: metrics and log say when the files' certificates end, whichever of a chain is the first."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.admin.certificate_metrics import CertificateCollector
from app.peers.tls import PeerTLS
from dedupe.login.tls import TlsContext
from tests.support.certificates import write_certificate
from tests.support.settings import make_settings

DAY_S = 86_400


def shown(collector: CertificateCollector) -> dict[str, float]:
    """Return the days that are left, by metric."""
    return {
        family.name: round(sample.value / DAY_S, 1)
        for family in collector.collect()
        for sample in family.samples
    }


def days_of(*, left: float, life: float) -> dict[str, float]:
    return {
        f"gateway_{whose}_certificate_{name}_seconds": days
        for whose in ("peer", "kafka")
        for name, days in (("expires", left), ("lifetime", life))
    }


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key, "worker", days=10)
    return cert, key


def collector_of(cert: Path, key: Path) -> CertificateCollector:
    return CertificateCollector(
        make_settings(
            mode="development",
            log="kafka",
            kafka_bootstrap_servers="x:1",
            kafka_security_protocol="SSL",
            kafka_ssl_cert_file=cert,
            kafka_ssl_key_file=key,
            peer_listen="127.0.0.1:0",
            peer_tls_cert_file=cert,
            peer_tls_key_file=key,
            peer_tls_ca_file=cert,
        )
    )


def test_both_certificates_are_shown_as_their_files_are(files: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = files
    collector = collector_of(cert, key)
    assert shown(collector) == days_of(left=10, life=12)

    write_certificate(tmp_path / "authority.pem", tmp_path / "other.pem", "authority", days=-1)
    cert.write_bytes(cert.read_bytes() + (tmp_path / "authority.pem").read_bytes())
    assert shown(collector) == days_of(left=-1, life=1), "what leads to its authority has ended"

    write_certificate(cert, key, "worker", days=90)
    assert shown(collector) == days_of(left=90, life=92), "no connection was made since"

    for text in (b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        cert.write_bytes(text)
        assert shown(collector) == {}
    cert.unlink()
    assert shown(collector) == {}


def test_gateway_without_certificates_shows_none() -> None:
    assert shown(CertificateCollector(make_settings(mode="development", log="sqlite"))) == {}


async def test_each_load_is_logged_with_its_end(files: tuple[Path, Path]) -> None:
    cert, key = files
    with capture_logs() as logs:
        peers, kafka = PeerTLS(cert, key, cert), TlsContext(cert, cert, key)
        await kafka.current()
        write_certificate(cert, key, "worker", days=20)
        peers.contexts()
        await kafka.current()
    assert [line["event"] for line in logs] == ["certificate loaded"] * 2 + ["certificates reloaded"] * 2
    ends = [line["ends"][:10] for line in logs]
    assert ends[0] == ends[1] < ends[2] == ends[3]
