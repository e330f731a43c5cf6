"""The limits of the ingest port: write keys, quotas, memory, connections, disk and open files."""

from dataclasses import dataclass

from app.auth.key_file import KeyFile
from app.auth.quotas import QuotaPolicy
from app.auth.write_keys import OpenKeys
from app.http.body_memory import BodyMemory
from app.http.connections import Connections
from app.process.disk import Disk
from app.process.open_files import OpenFiles


@dataclass(frozen=True, slots=True)
class IngressLimits:
    """The limits of the process."""

    write_keys: OpenKeys | KeyFile
    quotas: QuotaPolicy
    memory: BodyMemory
    connections: Connections
    disk: Disk
    files: OpenFiles
