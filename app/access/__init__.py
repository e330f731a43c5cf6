"""Who may send, and how much: write keys, their file, quotas, and the guards of the whole process."""

from app.access.auth import INGEST, REPLAY, OpenKeys, Source, WriteKeys, find_write_key, key_in_head
from app.access.guards import Guards
from app.access.key_file import KeyFile, check_key_file
from app.access.quotas import Quota, QuotaPolicy

__all__ = [
    "INGEST",
    "REPLAY",
    "Guards",
    "KeyFile",
    "OpenKeys",
    "Quota",
    "QuotaPolicy",
    "Source",
    "WriteKeys",
    "check_key_file",
    "find_write_key",
    "key_in_head",
]
