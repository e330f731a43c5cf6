"""When a certificate ends."""

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509


class Validity(NamedTuple):
    """When a certificate ends, and from when on it counts; in UTC."""

    end: datetime
    begin: datetime


def validity_of(path: Path) -> Validity | None:
    """Return that of the PEM file's certificate that ends first; None if it cannot be read, or has none."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
        return min(Validity(each.not_valid_after_utc, each.not_valid_before_utc) for each in found)
    except (OSError, ValueError):
        return None


def end_of(path: Path) -> datetime | None:
    """Return the first end of a PEM file's certificates, in UTC; None if it cannot be read, or has none."""
    found = validity_of(path)
    return found and found.end
