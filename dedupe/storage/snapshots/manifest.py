"""
The manifest of a snapshot: which files make the index of one partition, and how far it has read the log.

Any prefix of a log has one right index, so any valid snapshot is right, and an old one is only a longer way
to the end of the log. Hence there are no leases and no pointer to the latest one: names sort by time.

    <log id>/<topic>/<partition>/files/<BLAKE2b-256 of the content, hex>
    <log id>/<topic>/<partition>/manifests/<ms of its making, 15 digits>-<applied offset>-<worker>
    <log id>/<topic>/<partition>/disproved/<keyed hash of the lineage of an index that the log has disproved>

A manifest is one line of JSON, and its MAC in hex. The MAC's key is derived from the identity secret: whoever
can write to the bucket can neither make an id known nor have RocksDB open a file of theirs. They can delete
snapshots, or put old ones back, which costs time.
"""

import hashlib
import hmac
import re
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from dedupe.model.types import Offset
from dedupe.storage.index import IndexIdentity, IndexState

VERSION = 1
HASH_BYTES = 32
MANIFEST_BYTES_MAX = 4 * 1024 * 1024
"""A lane of 100 million keys has about 1,000 files of 100 bytes each here."""

_MAC_BYTES = 32
_KEY_OF = b"snapshots of an index"
_NAME = re.compile(r"(\d{15})-(\d+)-(.+)")


class SnapshotError(Exception):
    """A snapshot cannot be made or used; `reason` is a word for metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SnapshotFile(NamedTuple):
    """One file of an index."""

    name: str
    size_bytes: int
    digest: str  # BLAKE2b-256 of its content, hex; its name in the bucket


class Manifest(NamedTuple):
    """What one snapshot holds."""

    identity: IndexIdentity
    state: IndexState
    window_start: Offset
    """The first offset whose id it remembers."""
    files: tuple[SnapshotFile, ...]
    made_ms: int
    worker: str
    rocksdict: str  # the version that made it

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The name of its object, below the folder `manifests`."""
        return f"{self.made_ms:015}-{self.state.applied_offset}-{quote(self.worker, safe='')}"


def key_of(secret: bytes) -> bytes:
    """Return the key of manifests' MACs, derived from the identity secret."""
    return hashlib.blake2b(_KEY_OF, key=secret, digest_size=_MAC_BYTES).digest()


def folder_of(identity: IndexIdentity) -> str:
    """Return the folder of a partition's snapshots in the bucket."""
    return f"{quote(identity.log_id, safe='')}/{quote(identity.topic, safe='')}/{identity.name}"


def made_ms_of(name: str) -> int | None:
    """Return when a manifest of this name was made; None if no gateway has named it."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode(manifest: Manifest, key: bytes) -> bytes:
    """Return the content of a manifest's object."""
    fields = manifest._asdict() | {
        "v": VERSION,
        "identity": manifest.identity.fields,
        "state": manifest.state._asdict() | {"last_key": manifest.state.last_key.hex()},
        "files": manifest.files,
    }
    line = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS, default=list)
    return line + b"\n" + _mac_of(line, key).encode()


def decode(raw: bytes, key: bytes, identity: IndexIdentity) -> Manifest:
    """
    Return the manifest of an object.

    Raises:
        SnapshotError: `forged`, the MAC is another one; `foreign`, it is of another log, topic, secret or
            number of partitions; `version`, of a later format.
    """
    line, _, mac = raw.partition(b"\n")
    if not hmac.compare_digest(_mac_of(line, key).encode(), mac):
        raise SnapshotError(
            "forged", "its MAC is wrong: it was damaged, or made under another identity secret"
        )
    fields: dict[str, Any] = orjson.loads(line)
    if fields.pop("v") != VERSION:
        raise SnapshotError("version", "a later version of the gateway has made it")
    named, expected = fields["identity"], identity.fields
    if named != expected:
        differing = ", ".join(name for name in {**named, **expected} if named.get(name) != expected.get(name))
        raise SnapshotError("foreign", f"it is of another log or of other settings: {differing}")
    state = fields["state"] | {"last_key": bytes.fromhex(fields["state"]["last_key"])}
    files = tuple(SnapshotFile(*file) for file in fields["files"])
    if any("/" in file.name or file.name.startswith(".") for file in files):
        raise SnapshotError("forged", "a file of it has a path for a name")
    return Manifest(**fields | {"identity": identity, "state": IndexState(**state), "files": files})


def _mac_of(line: bytes, key: bytes) -> str:
    return hashlib.blake2b(line, key=key, digest_size=_MAC_BYTES).hexdigest()
