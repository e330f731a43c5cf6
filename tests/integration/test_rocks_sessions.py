"""Client sessions in RocksDB agree with the entries or are not believed, and take the room that is said."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from dedupe.decide.sessions import (
    LIVE,
    SEQUENCES_AHEAD_MAX,
    SessionChange,
    SessionCounts,
    SessionState,
    SessionUpdate,
)
from dedupe.model.errors import IndexCorruptError
from dedupe.storage.index import EMPTY_STATE
from dedupe.storage.rocksdb import sessions as rocks_sessions
from dedupe.storage.rocksdb.database import tuning_for
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.sessions import COUNTS_KEY, ROW_BYTES_MAX
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from tests.contract.index_contract import (
    IDENTITY,
    KEYS_MAX,
    entry_of,
    key_of,
    session_key_of,
    session_of,
    update_of,
)

WEB = b"web-hash"
TUNING = tuning_for(LANE_BYTES_MIN, KEYS_MAX)


def opened(path: Path) -> RocksIndex:
    return RocksIndex(path, IDENTITY, TUNING)


def add(index: RocksIndex, offset: int) -> None:
    """Apply one record of a session of its own, with a second key."""
    change = SessionChange(session_key_of(offset), None, session_of(offset))
    secondary_key = key_of(10**9 + offset), entry_of(offset)
    sessions = SessionUpdate([change], SessionCounts(offset + 1, 0))
    index.apply(update_of(offset, 1)._replace(secondary_keys=[secondary_key], sessions=sessions))


def test_sessions_agree_with_the_entries_wherever_the_log_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = opened(path)
    for offset in range(60):
        add(index, offset)
    image = tmp_path / "image"
    shutil.copytree(path, image)
    index.close()
    (log,) = (file for file in image.glob("*.log") if file.stat().st_size)
    content = log.read_bytes()
    seen = set()

    for size in range(len(content) // 4, len(content) + 1, 97):
        copy = tmp_path / "copy"
        shutil.copytree(image, copy)
        (copy / log.name).write_bytes(content[:size])
        index = opened(copy)
        applied = index.state.applied_offset
        seen.add(applied)
        for offset in range(60):
            is_there = offset < applied
            assert (
                index.lookup([key_of(offset), key_of(10**9 + offset)])
                == [entry_of(offset) if is_there else None] * 2
            )
            assert index.sessions([session_key_of(offset)]) == [session_of(offset) if is_there else None]
        assert index.session_counts == SessionCounts(applied, 0)
        assert [state.last_offset for _, state in index.oldest_sessions(99, LIVE)] == [*range(applied)]
        index.close()
        shutil.rmtree(copy)

    assert len(seen) > 20


def row_of(offset: int) -> bytes:
    return b"s" + session_key_of(offset)


@pytest.mark.parametrize(
    ("damage", "use"),
    [
        pytest.param(
            lambda index: index._opened().sessions.put(row_of(1), b"\x00" * 40),
            lambda index: index.sessions([session_key_of(0), session_key_of(1)]),
            id="row too short",
        ),
        pytest.param(
            lambda index: index._opened().sessions.put(row_of(1), b"\x00" * (57 + 65)),
            lambda index: index.sessions([session_key_of(1)]),
            id="row too long",
        ),
        pytest.param(
            lambda index: index._opened().sessions.delete(row_of(1)),
            lambda index: index.oldest_sessions(9, LIVE),
            id="row is lost, and its place in the order is not",
        ),
        pytest.param(
            lambda index: index._opened().sessions.put(b"zweb-hash", b"\x00" * 7),
            lambda index: index.session_sizes,
            id="size of a source too short",
        ),
        pytest.param(
            lambda index: index._opened().meta.put(COUNTS_KEY, b"\x00" * 16),
            lambda index: index.session_counts,
            id="counts too short",
        ),
    ],
)
def test_row_that_does_not_fit_is_not_believed(
    tmp_path: Path, damage: Callable[[RocksIndex], None], use: Callable[[RocksIndex], object]
) -> None:
    index = opened(tmp_path / "index")
    for offset in range(3):
        add(index, offset)
    damage(index)
    index.close()

    with pytest.raises(IndexCorruptError):
        use(opened(tmp_path / "index"))


def test_rows_are_remembered_as_they_are_stored_and_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_sessions, "RECENT_MAX", 3)
    index = opened(tmp_path / "index")
    for offset in range(6):
        add(index, offset)
    change = SessionChange(session_key_of(4), session_of(4), None)
    gone = SessionUpdate([change], SessionCounts(5, 0))
    index.apply(update_of(6, 1)._replace(sessions=gone))
    assert len(index._sessions._recent) == 3

    keys = [session_key_of(offset) for offset in range(7)]
    told = [None if offset in {4, 6} else session_of(offset) for offset in range(7)]
    for _ in range(2):
        assert index.sessions(keys) == told
        assert [index.sessions([key])[0] for key in keys] == told
        index.close()
        index = opened(tmp_path / "index")
    index.close()


async def test_index_of_before_there_were_sessions_is_rebuilt(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    path = store.path_of(IDENTITY)
    path.parent.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    families = {"default": Options(raw_mode=True), "meta": Options(raw_mode=True)}
    Rdict(str(path), options, column_families=families).close()

    await store.prepare(IDENTITY)
    with pytest.raises(IndexCorruptError):
        store.open(IDENTITY)
    store.discard(IDENTITY)
    await store.prepare(IDENTITY)
    index = store.open(IDENTITY)

    assert index.state == EMPTY_STATE
    index.close()
    store.close()


def test_session_takes_no_more_room_than_is_said(tmp_path: Path) -> None:
    """Even if each misses what it can, before RocksDB has compressed anything."""
    index = opened(tmp_path / "index")
    worst = (1 << SEQUENCES_AHEAD_MAX) - 2
    for first in range(0, 20_000, 1_000):
        changes = [
            SessionChange(
                session_key_of(n), None, SessionState(2**63, worst, 2**63, 2**63, 2**40, n, source_hash=WEB)
            )
            for n in range(first, first + 1_000)
        ]
        update = SessionUpdate(changes, SessionCounts(first + 1_000, 0))
        index.apply(update_of(first, 1_000)._replace(sessions=update))
    index._opened().sessions.flush()
    index._opened().sessions.compact_range(None, None)

    size_bytes = index._opened().sessions.property_int_value("rocksdb.live-sst-files-size")

    assert size_bytes is not None
    assert size_bytes / 20_000 < ROW_BYTES_MAX
    index.close()
