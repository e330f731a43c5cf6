"""
Makes snapshots of the open indexes of this process, and restores lost ones from them.

A snapshot holds the files of an index, which are never changed: see copying. Files that the bucket has
already are not sent again. The manifest comes last, so what it names is there.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncGenerator, Iterable, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import structlog

from dedupe.model.clock import Clock
from dedupe.model.types import Offset
from dedupe.storage.index import DedupeIndex, IndexIdentity, Opening
from dedupe.storage.log import Crashpoint, no_crashpoint
from dedupe.storage.rocksdb.copying import copy_index
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.marks import note_unproved
from dedupe.storage.rocksdb.store import RocksStore
from dedupe.storage.snapshots.bucket import Bucket, StoredObject, drop_from_cache
from dedupe.storage.snapshots.earlier_plans import delete_earlier_plans
from dedupe.storage.snapshots.manifest import (
    HASH_BYTES,
    MANIFEST_BYTES_MAX,
    Manifest,
    SnapshotError,
    SnapshotFile,
    decode,
    encode,
    folder_of,
    key_of,
    made_ms_of,
)
from dedupe.storage.snapshots.store import Made, Quiet

RECORDS_MIN = 20_000
RESTORE_S, RESTORE_BYTES_A_SECOND_MIN = 60.0, 8 * 1024 * 1024
"""A bucket that takes longer for a whole index is slower than the log."""
DOWNLOADS = 8
PROVED_RECORDS = 64
"""So many random records of the window are looked up before a restored index serves."""
KEPT = 2
"""So many of the newest manifests are kept, with their files."""
KEPT_MANIFEST_S = 3600.0
KEPT_FILE_S = 86_400.0
"""A file that no manifest names is kept for so long: its manifest may be under way."""
LOOKED_AT_MAX = 16
"""So many manifests are read before a restore is given up."""

logger = structlog.get_logger(__name__)


class IndexSnapshots:
    """See SnapshotStore."""

    def __init__(
        self,
        bucket: Bucket,
        store: RocksStore,
        *,
        secret: bytes,
        worker: str,
        clock: Clock,
        rng: random.Random | None = None,
        crashpoint: Crashpoint = no_crashpoint,
    ) -> None:
        """
        Ask the bucket nothing yet.

        Args:
            bucket: where snapshots are.
            store: of the indexes of this process.
            secret: the identity secret.
            worker: the name of this process, part of the names of its manifests.
            clock: tells when a snapshot was made.
            rng: chooses the records that are looked up.
            crashpoint: called at the steps of making and restoring.
        """
        self.records_min = RECORDS_MIN
        self._bucket, self._store = bucket, store
        self._key = key_of(secret)
        self._worker, self._clock = worker, clock
        self._rng = rng or random.Random()
        self._crashpoint = crashpoint
        self._digests: dict[IndexIdentity, dict[_FileKey, str]] = {}
        self._to_withdraw: dict[IndexIdentity, set[bytes]] = {}  # the lineages that are disproved
        self._progress: dict[IndexIdentity, Opening] = {}

    # ---- make

    async def make(
        self, identity: IndexIdentity, index: DedupeIndex, window_start: Offset, quiet: Quiet
    ) -> Made:
        """See SnapshotStore."""
        assert isinstance(index, RocksIndex)
        folder = self._store.path_of(identity).with_suffix(".copy")
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            _check_not_disproved(index)
            state = await copy_index(index, folder, quiet, self._clock)
            self._crashpoint("snapshot_copied")
            files = await asyncio.to_thread(self._files_of, folder, self._digests.setdefault(identity, {}))
            manifest = Manifest(
                identity, state, window_start, files, self._clock.now_ms(), self._worker, version("rocksdict")
            )
            sent = await self._send(manifest, folder, index)
            if identity in self._to_withdraw:
                await self._withdraw(identity, but=manifest)
            await self._clean_up(identity)
            await delete_earlier_plans(self._bucket, identity)
        except OSError as err:
            raise SnapshotError("disk", f"the copy of the index cannot be read: {err}") from err
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return Made(manifest, sent)

    def _files_of(self, folder: Path, digests: "dict[_FileKey, str]") -> tuple[SnapshotFile, ...]:
        """Return the files of a copy; of data files only new ones are read. Raises OSError."""
        found = []
        known = {}
        for path in sorted(folder.iterdir()):
            key = _key_of_file(path)
            digest = digests.get(key) if path.suffix == ".sst" else None
            found.append(SnapshotFile(path.name, key.size_bytes, digest or _digest_of(path)))
            if path.suffix == ".sst":
                known[key] = found[-1].digest
        digests.clear()
        digests.update(known)
        return tuple(found)

    async def _send(self, manifest: Manifest, folder: Path, index: RocksIndex) -> int:
        """Put what the bucket lacks, then the manifest; return the number of bytes. Raises SnapshotError."""
        place = folder_of(manifest.identity)
        sent = await self._send_missing(manifest.files, folder, place)
        self._crashpoint("snapshot_files")
        content = encode(manifest, self._key)
        _check_not_disproved(index)
        name = f"{place}/manifests/{manifest.name}"
        await self._bucket.create(name, content)
        self._crashpoint("snapshot_manifest")
        try:
            _check_not_disproved(index)
            if await self.is_doubted(manifest.identity, index.lineage):
                raise SnapshotError("disproved", "another worker's log has disproved what it is a copy of")
        except SnapshotError:
            await self._bucket.delete([name])
            raise
        # An older clean-up may have taken a file that was there before.
        return sent + len(content) + await self._send_missing(manifest.files, folder, place)

    async def _send_missing(self, files: Iterable[SnapshotFile], folder: Path, place: str) -> int:
        held = {each.name: each.size_bytes for each in await self._bucket.names(f"{place}/files/")}
        sent = 0
        for file in files:
            if held.get(file.digest) != file.size_bytes:
                name = f"{place}/files/{file.digest}"
                await self._bucket.upload(folder / file.name, name, size_bytes=file.size_bytes)
                held[file.digest] = file.size_bytes
                sent += file.size_bytes
        return sent

    async def _clean_up(self, identity: IndexIdentity) -> None:
        """Delete old manifests, and files that no manifest names. Raises SnapshotError."""
        place = folder_of(identity)
        manifests = await self._bucket.names(f"{place}/manifests/")
        files = await self._bucket.names(f"{place}/files/")
        named: set[str] = set()
        kept = 0
        old = []
        for each in sorted(manifests, key=_rank, reverse=True):
            if kept >= KEPT and each.age_s > KEPT_MANIFEST_S:
                old.append(f"{place}/manifests/{each.name}")
                continue
            try:
                found = decode(
                    await self._bucket.read(f"{place}/manifests/{each.name}", MANIFEST_BYTES_MAX),
                    self._key,
                    identity,
                )
            except SnapshotError as err:
                if err.reason in ("forged", "foreign"):
                    continue  # it is none of this index
                raise  # also for one of a later version, whose files must stay
            kept += 1
            named.update(file.digest for file in found.files)
        await self._bucket.delete(old)
        unnamed = [each for each in files if each.name not in named and each.age_s > KEPT_FILE_S]
        await self._bucket.delete([f"{place}/files/{each.name}" for each in unnamed])

    def doubt(self, identity: IndexIdentity, lineage: bytes) -> None:
        """See SnapshotStore."""
        self._to_withdraw.setdefault(identity, set()).add(lineage)

    async def withdraw(self, identity: IndexIdentity) -> None:
        """See SnapshotStore."""
        self._to_withdraw.setdefault(identity, set())
        await self._withdraw(identity)

    async def withdraw_doubted(self) -> None:
        """See SnapshotStore."""
        for identity in list(self._to_withdraw):
            await self._withdraw(identity)

    async def is_doubted(self, identity: IndexIdentity, lineage: bytes) -> bool:
        """See SnapshotStore. A name in the bucket says so, which only who has the secret can make."""
        names = await self._bucket.names(_doubts_of(identity))
        return self._doubt_name(identity, lineage) in {each.name for each in names}

    async def _withdraw(self, identity: IndexIdentity, but: Manifest | None = None) -> None:
        """Tell first, delete then: a restore that is under way asks at its end."""
        lineages = set(self._to_withdraw[identity])
        for lineage in lineages:
            if not await self.is_doubted(identity, lineage):
                await self._bucket.create(f"{_doubts_of(identity)}{self._doubt_name(identity, lineage)}", b"")
        folder = f"{folder_of(identity)}/manifests/"
        names = {each.name for each in await self._bucket.names(folder)} - {but and but.name}
        await self._bucket.delete([f"{folder}{name}" for name in sorted(names)])
        if self._to_withdraw.get(identity, set()) <= lineages:
            self._to_withdraw.pop(identity, None)

    def _doubt_name(self, identity: IndexIdentity, lineage: bytes) -> str:
        place = folder_of(identity).encode()
        return blake2b(place + b"\n" + lineage, key=self._key, digest_size=HASH_BYTES).hexdigest()

    # ---- restore

    async def candidates(self, identity: IndexIdentity) -> AsyncGenerator[Manifest, None]:
        """See SnapshotStore."""
        place = folder_of(identity)
        found_there = await self._bucket.names(f"{place}/manifests/")
        named = sorted((each for each in found_there if made_ms_of(each.name) is not None), key=_rank)
        for name in (each.name for each in reversed(named[-LOOKED_AT_MAX:])):
            try:
                raw = await self._bucket.read(f"{place}/manifests/{name}", MANIFEST_BYTES_MAX)
                found = decode(raw, self._key, identity)
                if _parts(found.rocksdict) > _parts(version("rocksdict")):
                    raise SnapshotError(
                        "version", f"a newer RocksDB has made it (rocksdict {found.rocksdict})"
                    )
            except SnapshotError as err:
                logger.warning("a snapshot is not used", snapshot=name, reason=err.reason, error=str(err))
                continue
            yield found

    async def restore(self, manifest: Manifest) -> None:
        """See SnapshotStore. Nothing is at the index's place before all files are there, synced and right."""
        identity = manifest.identity
        folder = self._store.path_of(identity).with_suffix(".restoring")
        limit_s = RESTORE_S + manifest.size_bytes / RESTORE_BYTES_A_SECOND_MIN
        try:
            await asyncio.to_thread(_make_anew, folder)
            async with asyncio.timeout(limit_s):
                await self._download(manifest, folder)
            await asyncio.to_thread(note_unproved, folder, self._to_prove(manifest))
            self._crashpoint("restore_files")
            await self._store.install(identity, folder)
            self._crashpoint("restore_installed")
        except TimeoutError as err:
            raise SnapshotError("slow", f"not all files are there after {limit_s:.0f} s") from err
        except OSError as err:
            raise SnapshotError("disk", f"the index cannot be written: {err}") from err
        finally:
            self._progress.pop(identity, None)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def verify(self, manifest: Manifest, scratch: Path) -> None:
        """See SnapshotStore."""
        place = folder_of(manifest.identity)
        for file in manifest.files:
            path = scratch / file.name
            name = f"{place}/files/{file.digest}"
            if await self._bucket.download(name, path, size_bytes=file.size_bytes) != file.digest:
                raise SnapshotError("damaged", f"{file.name} differs from what the manifest says")
            path.unlink()

    async def note_drill(self, identity: IndexIdentity) -> None:
        """See SnapshotStore. The note is an object of the bucket."""
        place = _drills_of(identity)
        await self._bucket.create(f"{place}{self._clock.now_ms():015}", b"")
        old = sorted(each.name for each in await self._bucket.names(place))[:-KEPT]
        await self._bucket.delete([f"{place}{name}" for name in old])

    async def last_drill_ms(self, identity: IndexIdentity) -> int | None:
        """See SnapshotStore."""
        names = [each.name for each in await self._bucket.names(_drills_of(identity))]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def opening(self, identity: IndexIdentity) -> Opening | None:
        """See SnapshotStore."""
        return self._progress.get(identity)

    async def _download(self, manifest: Manifest, folder: Path) -> None:
        place, slots = folder_of(manifest.identity), asyncio.Semaphore(DOWNLOADS)
        self._progress[manifest.identity] = Opening(0, max(1, manifest.size_bytes))

        async def fetch(file: SnapshotFile) -> None:
            async with slots:
                digest = await self._bucket.download(
                    f"{place}/files/{file.digest}", folder / file.name, size_bytes=file.size_bytes
                )
            if digest != file.digest:
                raise SnapshotError("damaged", f"{file.name} differs from what the manifest says")
            progress = self._progress[manifest.identity]
            done = progress.done_bytes + file.size_bytes
            self._progress[manifest.identity] = progress._replace(done_bytes=done)

        try:
            async with asyncio.TaskGroup() as group:
                for file in manifest.files:
                    group.create_task(fetch(file))
        except ExceptionGroup as err:
            raise _first_of(err) from err

    def _to_prove(self, manifest: Manifest) -> list[Offset]:
        """Return offsets before which recovery looks up the newest record, see note_unproved."""
        end = manifest.state.last_offset + 1
        return sorted({self._rng.randint(manifest.window_start, end) for _ in range(PROVED_RECORDS)})


def _rank(manifest: StoredObject) -> tuple[int, str]:
    """Return what a newer manifest has more of; none is newer than the bucket says, whatever its name."""
    made_ms = made_ms_of(manifest.name)
    return min(manifest.modified_ms, -1 if made_ms is None else made_ms), manifest.name


def _doubts_of(identity: IndexIdentity) -> str:
    """Return the folder of what is known to be wrong."""
    return f"{folder_of(identity)}/disproved/"


def _drills_of(identity: IndexIdentity) -> str:
    """Return the folder of a topic's drills, beside those of its partitions."""
    return f"{folder_of(identity).rpartition('/')[0]}/drills/"


def _check_not_disproved(index: RocksIndex) -> None:
    if index.is_disproved:
        raise SnapshotError("disproved", "the log has disproved an entry of the index")


class _FileKey(NamedTuple):
    """A data file, which never changes: another one of its name has another key."""

    name: str
    inode: int
    written_ns: int
    size_bytes: int


def _key_of_file(path: Path) -> _FileKey:
    found = path.stat()
    return _FileKey(path.name, found.st_ino, found.st_mtime_ns, found.st_size)


def _digest_of(path: Path) -> str:
    digest = blake2b(digest_size=HASH_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(1024 * 1024):
            digest.update(chunk)
    drop_from_cache(path)
    return digest.hexdigest()


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    """Return the SnapshotError or OSError of a group whose others are its consequences."""
    errors: Sequence[Exception] = group.exceptions
    return next((each for each in errors if isinstance(each, SnapshotError | OSError)), errors[0])


def _parts(text: str) -> list[int]:
    """Return a version as numbers."""
    return [int(part) for part in text.split(".") if part.isdecimal()]
