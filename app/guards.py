"""The guards of the ingest port: who may send, how much, and what that may take of the process."""

from dataclasses import dataclass

from app.auth import OpenKeys
from app.body_memory import BodyMemory
from app.connections import Connections
from app.disk import Disk
from app.key_file import KeyFile
from app.quotas import QuotaPolicy


@dataclass(frozen=True, slots=True)
class Guards:
    """One of each, for the whole process."""

    write_keys: OpenKeys | KeyFile
    quotas: QuotaPolicy
    memory: BodyMemory
    connections: Connections
    disk: Disk
