"""When a certificate ends."""

from datetime import datetime
from pathlib import Path

from cryptography import x509


def end_of(path: Path) -> datetime | None:
    """Return the first end of a PEM file's certificates, in UTC; None if it cannot be read, or has none."""
    try:
        return min(each.not_valid_after_utc for each in x509.load_pem_x509_certificates(path.read_bytes()))
    except (OSError, ValueError):
        return None
