"""Claim: what a bucket gives is on disk before it is used, and a bucket that is not there keeps nobody up."""

import os
from pathlib import Path

import pytest

from dedupe.model.errors import ConfigurationError
from dedupe.storage.snapshots.bucket import CHUNK_BYTES, Bucket
from dedupe.storage.snapshots.manifest import SnapshotError


@pytest.mark.regression("the last bytes of a restored file were written after it was synced")
@pytest.mark.parametrize("size", [1, 100, CHUNK_BYTES + 1])
async def test_whole_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    bucket = Bucket(f"file://{tmp_path}/bucket")
    await bucket.create("object", b"x" * size)
    synced: list[int] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await bucket.download("object", tmp_path / "file", size_bytes=size)
    assert synced == [size]


@pytest.mark.regression("a gateway did not start without its share for snapshots")
async def test_folder_that_cannot_be_made_is_an_error_of_each_request(tmp_path: Path) -> None:
    (tmp_path / "share").write_bytes(b"not a folder")
    bucket = Bucket(f"file://{tmp_path}/share/bucket")
    with pytest.raises(SnapshotError) as refused:
        await bucket.names("")
    assert refused.value.reason == "bucket"
    (tmp_path / "share").unlink()
    await bucket.create("object", b"x")
    assert [each.name for each in await bucket.names("")] == ["object"]


def test_folder_has_an_absolute_path() -> None:
    with pytest.raises(ConfigurationError, match="file:///folder"):
        Bucket("file://folder/below")
