"""
A bucket of S3, Google Cloud Storage or Azure, or a folder, by obstore (optional extra `snapshots`).

Every failure is a SnapshotError. Credentials and endpoints are found as the cloud's own tools do: by the
variables AWS_*, GOOGLE_* and AZURE_*, and by the role of a service account.
"""

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from dedupe.model.errors import ConfigurationError
from dedupe.storage.snapshots.manifest import HASH_BYTES, SnapshotError

CHUNK_BYTES = 1024 * 1024
REQUEST_S = 30.0
"""For one request without a file."""
BYTES_A_SECOND_MIN = 1024 * 1024
"""A transfer that is slower is ended: the log is faster."""
UPLOAD_PARTS = 2
"""Parts of 5 MiB of one file that are sent at once: the memory that an upload takes."""


class StoredObject(NamedTuple):
    """One object of a bucket."""

    name: str  # below the prefix that was asked for
    size_bytes: int
    modified_ms: int  # by the bucket's clock
    age_s: float


class Bucket:
    """The objects below one URL."""

    def __init__(self, url: str) -> None:
        """
        Connect to nothing yet.

        Args:
            url: `s3://bucket/prefix`, `gs://...`, `az://...` or `file:///folder`, which is created.

        Raises:
            ConfigurationError: the URL is none of these, or the extra `snapshots` is not installed.
        """
        try:
            import obstore.exceptions
            import obstore.store
        except ImportError:
            raise ConfigurationError(
                "GATEWAY_SNAPSHOTS_URL needs the extra snapshots: "
                "pip install 'idempotent-ingestion-gateway[snapshots]'"
            ) from None
        self.url = url
        self._obstore: Any = obstore
        self._errors = (obstore.exceptions.BaseError, OSError, TimeoutError)
        self._missing = (obstore.exceptions.NotFoundError, FileNotFoundError)
        self._store: Any = None
        self._opening: asyncio.Future[Any] | None = None
        if (parts := urlsplit(url)).scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise ConfigurationError("GATEWAY_SNAPSHOTS_URL cannot be used: a folder is file:///folder")
            self._local = unquote(parts.path)
            return
        try:
            options: Any = {
                "client_options": {"connect_timeout": "5s", "timeout": "3600s", "allow_http": True},
                "retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
            }
            self._store = obstore.store.from_url(url, **options)
        except Exception as err:
            raise ConfigurationError(f"GATEWAY_SNAPSHOTS_URL cannot be used: {err}") from err

    async def names(self, prefix: str) -> list[StoredObject]:
        """Return the objects below a prefix. Raises SnapshotError."""
        found = []
        async with self._asking(f"list {prefix}"), asyncio.timeout(REQUEST_S):
            async for batch in self._obstore.list(self._store, prefix=prefix):
                for each in batch:
                    modified = each["last_modified"]
                    age_s = (datetime.now(UTC) - modified).total_seconds()
                    name = str(each["path"]).rpartition("/")[2]
                    found.append(StoredObject(name, each["size"], int(modified.timestamp() * 1000), age_s))
        return found

    async def folders(self, prefix: str) -> list[str]:
        """Return the names of folders right below a prefix. Raises SnapshotError."""
        async with self._asking(f"list {prefix}"), asyncio.timeout(REQUEST_S):
            found = await self._obstore.list_with_delimiter_async(self._store, prefix)
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    async def read(self, name: str, bytes_max: int) -> bytes:
        """Return an object of at most so many bytes. Raises SnapshotError."""
        content = bytearray()
        async with self._asking(f"read {name}"), asyncio.timeout(REQUEST_S):
            got = await self._obstore.get_async(self._store, name)
            async for chunk in got.stream(min_chunk_size=CHUNK_BYTES):
                content += chunk
                if len(content) > bytes_max:
                    raise SnapshotError("forged", f"{name} is larger than {bytes_max} bytes")
        return bytes(content)

    async def create(self, name: str, content: bytes) -> None:
        """Put an object, unless there is one of this name. Raises SnapshotError."""
        async with self._asking(f"create {name}"), asyncio.timeout(REQUEST_S):
            await self._obstore.put_async(self._store, name, content, mode="create", use_multipart=False)

    async def upload(self, path: Path, name: str, *, size_bytes: int) -> None:
        """Put a file. Raises SnapshotError."""
        limit_s = REQUEST_S + size_bytes / BYTES_A_SECOND_MIN
        async with self._asking(f"upload {name}"), asyncio.timeout(limit_s):
            await self._obstore.put_async(self._store, name, path, max_concurrency=UPLOAD_PARTS)
        await asyncio.to_thread(drop_from_cache, path)

    async def download(self, name: str, path: Path, *, size_bytes: int) -> str:
        """
        Write an object into a new file, synced; return the BLAKE2b-256 of its content, hex.

        It is not read beyond its size. Raises SnapshotError; the file may be there in part.
        """
        digest = blake2b(digest_size=HASH_BYTES)
        received = 0
        limit_s = REQUEST_S + size_bytes / BYTES_A_SECOND_MIN
        async with self._asking(f"download {name}"), asyncio.timeout(limit_s):
            with _new_file(path) as file:

                def take(chunk: Any) -> None:
                    digest.update(chunk)
                    with _disk_errors(path):
                        file.write(chunk)

                def sync() -> None:
                    with _disk_errors(path):
                        file.flush()  # else its last bytes are written after it is synced
                        os.fsync(file.fileno())

                got = await self._obstore.get_async(self._store, name)
                async for chunk in got.stream(min_chunk_size=CHUNK_BYTES):
                    received += len(chunk)
                    if received > size_bytes:
                        break
                    await asyncio.to_thread(take, chunk)
                await asyncio.to_thread(sync)
        await asyncio.to_thread(drop_from_cache, path)
        return digest.hexdigest()

    async def delete(self, names: list[str]) -> None:
        """Delete objects; those that are not there do not matter. Raises SnapshotError."""
        for name in names:
            async with self._asking(f"delete {name}"), asyncio.timeout(REQUEST_S):
                try:
                    await self._obstore.delete_async(self._store, name)
                except self._missing:
                    continue

    @asynccontextmanager
    async def _asking(self, what: str) -> AsyncIterator[None]:
        try:
            if self._store is None:
                async with asyncio.timeout(REQUEST_S):
                    await self._open_folder()
            yield
        except self._missing as err:
            raise SnapshotError("missing", f"cannot {what}: it is not there") from err
        except TimeoutError as err:
            raise SnapshotError("slow", f"cannot {what}: the bucket is too slow") from err
        except self._errors as err:
            raise SnapshotError("bucket", f"cannot {what}: {str(err).partition(chr(10))[0]}") from err

    async def _open_folder(self) -> None:
        """Create the folder now, since a share that is not there must not keep a gateway from its start."""
        if self._opening is None or self._opening.done():
            create = functools.partial(self._obstore.store.LocalStore, self._local, mkdir=True)
            self._opening = asyncio.ensure_future(asyncio.to_thread(create))
        self._store = await asyncio.shield(self._opening)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is not there yet. Raises SnapshotError."""
    with _disk_errors(path):
        file = path.open("xb")
    try:
        yield file
    finally:
        with suppress(OSError):  # of what is left after an error: after a sync nothing is
            file.close()


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Tell errors of this machine's disk from those of the bucket."""
    try:
        yield
    except OSError as err:
        raise SnapshotError("disk", f"cannot write {path.name}: {err}") from err


def drop_from_cache(path: Path) -> None:
    """Have the kernel forget a file's pages, which count as the container's memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
