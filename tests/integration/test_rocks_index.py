"""
RocksIndex on a bad day: it answers rightly or raises, and never the third thing.

A copy of the folder of an open index is what a killed process leaves behind; the damage is done
to such copies.
"""

import configparser
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from dedupe.decide.committed import Committed, LastRecord
from dedupe.decide.sessions import SessionPolicy
from dedupe.decide.window import Step, WindowPolicy
from dedupe.model.errors import ConfigurationError, IndexCorruptError, IndexUnavailableError, RetriableError
from dedupe.model.types import Entry
from dedupe.partition.partition_index import PartitionIndex
from dedupe.storage.index import EMPTY_STATE, IndexState, IndexUpdate
from dedupe.storage.rocksdb.database import (
    FILE_BYTES_PER_KEY,
    FILES_BESIDE,
    Database,
    Tuning,
    translate,
    tuning_for,
)
from dedupe.storage.rocksdb.index import RocksIndex
from dedupe.storage.rocksdb.store import LANE_BYTES_MIN, RocksStore
from tests.contract.index_contract import IDENTITY, KEYS_MAX, entry_of, key_of, open_anew, update_of
from tests.support.rocks import SMALLEST, copy_as_killed, until_flushed_and_dropped
from tests.support.waiting import PATIENCE_S, until

REPOSITORY = Path(__file__).parents[2]
SMALL = tuning_for(LANE_BYTES_MIN, KEYS_MAX)
BATCH = 250


def build(path: Path, *, batches: int, tuning: Tuning = SMALL) -> RocksIndex:
    """Return an open index of batches * BATCH entries."""
    index = RocksIndex(path, IDENTITY, tuning)
    for first in range(0, batches * BATCH, BATCH):
        index.apply(update_of(first, BATCH))
    return index


def outcome_of(path: Path, *, written: int) -> str:
    """
    Open an index that may be damaged and compare what it says with what was written.

    Returns:
        "refused" for an IndexCorruptError; "whole", or "older" when the newest records are missing
        and its state says so. Anything else fails.
    """
    try:
        index = RocksIndex(path, IDENTITY, SMALL)
    except IndexCorruptError:
        return "refused"
    try:
        applied = index.state.applied_offset
        assert applied <= written
        found = index.lookup([key_of(offset) for offset in range(applied)])
        assert found == [entry_of(offset) for offset in range(applied)]
        return "whole" if applied == written else "older"
    except IndexCorruptError:
        return "refused"
    finally:
        index.close()


def outcomes_of(image: Path, damaged: Iterable[tuple[str, bytes]], *, written: int) -> set[str]:
    """Put each of these contents in place of the named file, one at a time, and collect the outcomes."""
    outcomes = set()
    copy = image.with_name("copy")
    for name, content in damaged:
        shutil.copytree(image, copy)
        (copy / name).write_bytes(content)
        outcomes.add(outcome_of(copy, written=written))
        shutil.rmtree(copy)
    return outcomes


def with_flipped_bit(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :]


def image_of(index: RocksIndex) -> Path:
    """Return a copy of an open index, as a killed process leaves it."""
    image = index.path.with_name("image")
    copy_as_killed(index, image)
    return image


def only(path: Path, pattern: str) -> Path:
    (found,) = path.glob(pattern)
    return found


# ---- damage


def test_bit_flips_in_a_table_are_never_believed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=40).close()
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = table.read_bytes()
    positions = [*range(0, len(content), len(content) // 60), *range(len(content) - 60, len(content), 4)]

    outcomes = outcomes_of(
        path, ((table.name, with_flipped_bit(content, p)) for p in positions), written=40 * BATCH
    )

    assert outcomes <= {"refused", "whole"}  # a filter that cannot be read is done without
    assert "refused" in outcomes


def test_cut_and_missing_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=40).close()
    for table in path.glob("*.sst"):
        content = table.read_bytes()

        assert outcomes_of(path, [(table.name, content[:-1]), (table.name, b"")], written=40 * BATCH) == {
            "refused"
        }
    only_tables = sorted(path.glob("*.sst"))
    only_tables[0].unlink()
    assert outcome_of(path, written=40 * BATCH) == "refused"


def test_step_list_that_cannot_be_read_to_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    steps = [Step(offset, offset, offset) for offset in range(4_000)]
    index = RocksIndex(path, IDENTITY, SMALL)
    index.apply(update_of(0, len(steps), new_steps=steps))
    index.close()
    table = min(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = table.read_bytes()
    refused = 0

    for position in range(0, len(content), len(content) // 40):
        table.write_bytes(with_flipped_bit(content, position))
        try:
            index = RocksIndex(path, IDENTITY, SMALL)
        except IndexCorruptError:
            refused += 1
            continue
        assert list(index.steps) == steps
        index.close()

    assert refused > 20


def test_damaged_file_list_is_refused_or_older(tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = image_of(build(path, batches=120, tuning=SMALLEST))
    manifest = only(image, "MANIFEST-*")
    content = manifest.read_bytes().rstrip(b"\x00")  # RocksDB reserves room at the end
    cuts = [*range(0, len(content), 25), *range(len(content) - 20, len(content))]

    cut = outcomes_of(image, ((manifest.name, content[:at]) for at in cuts), written=120 * BATCH)
    flipped = outcomes_of(
        image,
        ((manifest.name, with_flipped_bit(content, at)) for at in range(0, len(content), 17)),
        written=120 * BATCH,
    )

    assert cut <= {"refused", "older", "whole"}
    assert flipped <= {"refused", "older", "whole"}
    assert "refused" in cut & flipped


@pytest.mark.parametrize("content", [b"", b"MANIFEST-0", b"MANIFEST-999999\n"])
def test_damaged_pointer_to_the_file_list_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index"
    build(path, batches=4).close()

    (path / "CURRENT").write_bytes(content)

    assert outcome_of(path, written=4 * BATCH) == "refused"


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_lost_file_list_is_not_taken_for_a_new_index(tmp_path: Path, name: str) -> None:
    path = tmp_path / "index"
    build(path, batches=4).close()

    only(path, name).unlink()

    assert outcome_of(path, written=4 * BATCH) == "refused"


def test_damaged_write_ahead_log_loses_its_tail_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = image_of(build(path, batches=10))
    log = only(image, "*.log")
    content = log.read_bytes()
    places = range(0, len(content), len(content) // 40)

    cut = outcomes_of(image, ((log.name, content[:at]) for at in places), written=10 * BATCH)
    flipped = outcomes_of(
        image, ((log.name, with_flipped_bit(content, at)) for at in places), written=10 * BATCH
    )

    assert cut | flipped <= {"refused", "older"}
    assert "older" in cut & flipped


def test_lost_write_ahead_log_is_refused_or_older(tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = image_of(build(path, batches=120, tuning=SMALLEST))

    for log in image.glob("*.log"):
        log.unlink()

    assert outcome_of(image, written=120 * BATCH) in {"refused", "older"}


def test_state_that_is_ahead_of_the_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = build(path, batches=4)
    index._opened().entries.delete(index.state.last_key)
    index.close()

    with pytest.raises(IndexCorruptError, match="lacks the last entry"):
        RocksIndex(path, IDENTITY, SMALL)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("meta", b"identity", None),
        ("meta", b"identity", b"{"),
        ("meta", b"state", None),
        ("meta", b"state", b"\x00" * 40),
        ("meta", b"step\x00", b"\x00" * 16),
        ("meta", b"step" + b"\x00" * 8, b"\x00"),
    ],
)
def test_meta_that_cannot_be_decoded_is_refused(
    tmp_path: Path, family: str, key: bytes, value: bytes | None
) -> None:
    path = tmp_path / "index"
    build(path, batches=1).close()
    families = {name: Options(raw_mode=True) for name in ("default", "meta", "sessions")}
    database = Rdict(str(path), Options(raw_mode=True), column_families=families)
    meta = database.get_column_family(family)
    if value is None:
        meta.delete(key)
    else:
        meta.put(key, value)
    meta.close()
    database.close()
    del meta, database

    assert outcome_of(path, written=BATCH) == "refused"


def test_entry_of_another_length_is_not_believed(tmp_path: Path) -> None:
    index = build(tmp_path / "index", batches=1)
    index._opened().entries.put(key_of(3), b"\x00" * 15)

    with pytest.raises(IndexCorruptError):
        index.lookup([key_of(2), key_of(3)])
    index.close()


def test_folder_that_is_not_an_index_is_refused_until_discarded(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    path = tmp_path / IDENTITY.topic / str(IDENTITY.partition)
    path.mkdir(parents=True)
    (path / "LOCK").touch()
    (path / "notes.txt").touch()

    with pytest.raises(IndexCorruptError):
        store.open(IDENTITY)
    store.discard(IDENTITY)
    index = store.open(IDENTITY)

    assert index.state == EMPTY_STATE
    index.close()


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").touch()

    with pytest.raises(IndexCorruptError, match="Not a directory"):
        RocksIndex(tmp_path / "index", IDENTITY, SMALL)


def test_folder_of_another_lane_is_refused(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    neighbour = IDENTITY._replace(partition=4)
    index = store.open(neighbour)
    index.apply(update_of(0, BATCH))
    index.close()
    store.close()
    shutil.copytree(tmp_path / IDENTITY.topic / "4", tmp_path / IDENTITY.topic / "3")

    with pytest.raises(IndexCorruptError, match="partition"):
        RocksIndex(tmp_path / IDENTITY.topic / "3", IDENTITY, SMALL)


def test_half_deleted_folder_is_never_believed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    image = image_of(build(path, batches=120, tuning=SMALLEST))
    names = sorted(file.name for file in image.iterdir())
    copy = tmp_path / "copy"
    for deleted in range(1, len(names)):
        for kept in (names[deleted:], names[:-deleted]):
            shutil.copytree(image, copy)
            for name in set(names) - set(kept):
                (copy / name).unlink()
            assert outcome_of(copy, written=120 * BATCH) in {"refused", "older", "whole"}, kept
            shutil.rmtree(copy)


# ---- failing and locking

# What RocksDB says, with the reasons of the C library.
OF_THE_MACHINE = [
    "IO error: No space left on device: While appending to file: i/000012.sst: No space left on device",
    "IO error: While appending to file: i/000012.sst: Disk quota exceeded",
    "IO error: While appending to file: i/000012.log: File too large",
    "IO error: While open a file for random read: i/000012.sst: Too many open files",
    "IO error: While open a file for random read: i/000012.sst: Too many open files in system",
    "IO error: While open a file for appending: i/000012.log: Read-only file system",
    "IO error: While open a file for random read: i/000012.sst: Permission denied",
    "IO error: While mkdir if missing: i: Operation not permitted",
    "IO error: While pread offset 0 len 53: i/000012.sst: Cannot allocate memory",
    "IO error: While creating thread: i: Resource temporarily unavailable",
    "IO error: While fdatasync: i/000012.log: Input/output error",
    "IO error: While appending to file: i/000012.sst: Input/output error",
    "IO error: While open a file for random read: i/000012.sst: Input/output error",
]
OF_THE_INDEX = [
    "IO error: While pread offset 4096 len 4101: i/000012.sst: Input/output error",
    "IO error: While reading file sequentially: i/MANIFEST-000005: Input/output error",
    "IO error: No such file or directory: While open a file for random read: i/000012.sst: "
    "No such file or directory",
    "Corruption: block checksum mismatch: stored(context removed) = 1, computed = 2, type = 4",
]


@pytest.mark.regression("A machine out of memory or files cost a whole index.")
@pytest.mark.parametrize("sentence", OF_THE_MACHINE)
def test_condition_of_the_machine_keeps_the_index(sentence: str) -> None:
    with pytest.raises(IndexUnavailableError):
        translate(Exception(sentence), "cannot use i")


@pytest.mark.parametrize("sentence", OF_THE_INDEX)
def test_damage_of_the_index_ends_it(sentence: str) -> None:
    with pytest.raises(IndexCorruptError):
        translate(Exception(sentence), "cannot use i")


FULL_DISK_PROCESS = """
import resource, signal, sys
from pathlib import Path
from dedupe.model.errors import IndexUnavailableError
from tests.integration.test_rocks_index import build, key_of, update_of
index = build(Path(sys.argv[1]), batches=4)
state = index.state
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
uses = [
    lambda: index.apply(update_of(1_000, 4_000)),
    lambda: index.apply(update_of(1_000, 1)),
    lambda: index.lookup([key_of(0)]),
    lambda: index.covers(0),
    lambda: index.size_bytes,
]
for use in uses:
    try:
        use()
    except IndexUnavailableError:
        continue
    sys.exit("believed after a failed write")
assert index.state == state
index.close()
print("refused")
"""


def test_failed_write_ends_the_use_of_the_index_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    written = subprocess.run(
        [sys.executable, "-c", FULL_DISK_PROCESS, path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert written.stdout.splitlines()[-1:] == ["refused"], written.stderr
    assert outcome_of(path, written=4 * BATCH) == "whole"


NO_FILES_PROCESS = """
import resource, sys
from pathlib import Path
from dedupe.model.errors import IndexUnavailableError
from tests.integration.test_rocks_index import BATCH, SMALLEST, build, update_of
path = Path(sys.argv[1])
index = build(path, batches=4, tuning=SMALLEST)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (8, most))
try:
    for first in range(4 * BATCH, 4_000 * BATCH, BATCH):
        index.apply(update_of(first, BATCH))
except IndexUnavailableError:
    print(first)
index.close()
"""


@pytest.mark.regression("A machine out of file descriptors cost an index.")
def test_index_without_files_to_write_to_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "index"
    written = subprocess.run(
        [sys.executable, "-c", NO_FILES_PROCESS, path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    first, *_ = written.stdout.splitlines()
    assert outcome_of(path, written=int(first)) in {"whole", "older"}


HOLDING_PROCESS = """
import sys
from pathlib import Path
from tests.integration.test_rocks_index import BATCH, build
from dedupe.storage.rocksdb.store import RocksStore, LANE_BYTES_MIN
from tests.contract.index_contract import IDENTITY, KEYS_MAX, update_of
index = RocksStore(Path(sys.argv[1]), lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX).open(IDENTITY)
index.apply(update_of(0, BATCH))
print("open", flush=True)
sys.stdin.readline()
assert index.lookup([update_of(0, 1).state.last_key]) != [None]
index.close()
"""


def test_index_of_a_living_process_is_reported_and_kept(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING_PROCESS, tmp_path],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"

        with pytest.raises(RetriableError, match="locked by another process"):
            store.open(IDENTITY)
        with pytest.raises(IndexCorruptError):
            open_anew(store)

        holder.communicate("\n", timeout=PATIENCE_S)
    assert holder.returncode == 0
    index = store.open(IDENTITY)
    assert index.lookup([key_of(0)]) == [entry_of(0)]
    index.close()


def test_error_still_at_hand_does_not_hold_the_lock(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, lanes=1, memory_bytes=LANE_BYTES_MIN, keys_max=KEYS_MAX)
    index = store.open(IDENTITY)
    index.apply(update_of(0, BATCH))
    index._opened().entries.put(key_of(3), b"")
    with pytest.raises(IndexCorruptError) as in_lookup:
        index.lookup([key_of(3)])
    index.close()
    with pytest.raises(IndexCorruptError) as in_open:
        store.open(IDENTITY._replace(log_id="another"))

    store.discard(IDENTITY)
    store.open(IDENTITY).close()

    assert in_lookup.tb is not None
    assert in_open.tb is not None


def test_reset_of_a_failed_index_begins_anew(tmp_path: Path) -> None:
    index = build(tmp_path / "index", batches=1)
    index._failure = IndexUnavailableError("disk full")
    with pytest.raises(IndexUnavailableError):
        index.lookup([key_of(0)])

    index.reset(7)

    assert index.lookup([key_of(0)]) == [None]
    assert index.state.applied_offset == 7
    index.close()


WRITING_PROCESS = """
import sys
from pathlib import Path
from tests.integration.test_rocks_index import BATCH, SMALL, RocksIndex, IDENTITY, update_of
index = RocksIndex(Path(sys.argv[1]), IDENTITY, SMALL)
for first in range(0, 1_000_000_000, BATCH):
    index.apply(update_of(first, BATCH))
    print(first + BATCH, flush=True)
"""


def test_process_killed_while_writing_leaves_whole_updates(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with subprocess.Popen(
        [sys.executable, "-c", WRITING_PROCESS, path], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        reported = [int(writer.stdout.readline()) for _ in range(200)][-1]
        writer.kill()

    index = RocksIndex(path, IDENTITY, SMALL)

    applied = index.state.applied_offset
    assert applied >= reported
    assert applied % BATCH == 0
    assert index.lookup([key_of(i) for i in range(applied)]) == [entry_of(i) for i in range(applied)]
    assert index.lookup([key_of(i) for i in range(applied, applied + BATCH)]) == [None] * BATCH
    index.close()


# ---- options and files


def test_absent_keys_are_answered_by_the_filters(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=80).close()
    index = RocksIndex(path, IDENTITY, replace(SMALL, has_statistics=True))
    useful, misled = (_ticker(index, name) for name in ("bloom.filter.useful", "bloom.filter.full.positive"))

    assert index.lookup([key_of(i) for i in range(100_000, 110_000)]) == [None] * 10_000

    useful = _ticker(index, "bloom.filter.useful") - useful
    misled = _ticker(index, "bloom.filter.full.positive") - misled
    assert useful + misled == 10_000  # one file, so one question a key
    assert misled < 300  # 10 bits a key: about 1 in 100
    index.close()


def test_reopened_index_has_the_options_it_was_opened_with(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=1, tuning=tuning_for(LANE_BYTES_MIN, 1_000)).close()

    index = RocksIndex(path, IDENTITY, tuning_for(200 * 1024 * 1024, 2_000_000))

    files = sorted(path.glob("OPTIONS-*"))
    options = configparser.ConfigParser(interpolation=None, strict=False)
    options.read_string("\n".join(line.strip() for line in files[-1].read_text().splitlines()))
    entries = options['CFOptions "default"']
    assert entries["write_buffer_size"] == str(16 * 1024 * 1024)
    assert entries["min_write_buffer_number_to_merge"] == "8"
    assert entries["max_write_buffer_number"] == "10"
    assert entries["compaction_style"] == "kCompactionStyleFIFO"
    assert entries["compression"] == "kLZ4Compression"
    assert entries["ttl"] == "0"
    assert entries["disable_auto_compactions"] == "false"
    assert entries["memtable_whole_key_filtering"] == "true"
    assert f"max_table_files_size={48 * 2_062_500 + 160 * 1024 * 1024};" in entries["compaction_options_fifo"]
    assert "allow_compaction=true;" in entries["compaction_options_fifo"]
    table = options['TableOptions/BlockBasedTable "default"']
    assert table["filter_policy"].startswith("bloomfilter:10")
    assert options['CFOptions "meta"']["compaction_style"] == "kCompactionStyleLevel"
    assert options["DBOptions"]["paranoid_checks"] == "true"
    assert options["DBOptions"]["atomic_flush"] == "false"
    cache_bytes = index._opened().entries.property_int_value("rocksdb.block-cache-capacity")
    assert cache_bytes == 25 * 1024 * 1024
    index.close()


def test_closed_write_ahead_logs_are_synced_before_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=120, tuning=SMALLEST).close()

    before_flush, _, _ = (path / "LOG").read_text().partition('"flush_started"')

    closed = re.findall(r"\[default\] New memtable created with log file: #(\d+)", before_flush)[:7]
    synced = re.findall(r"Syncing log #(\d+)", before_flush)
    assert len(closed) == 7  # and the first log, so eight memtables are in the flush
    assert set(closed) < set(synced)


def test_little_restarts_leave_few_files(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for restart in range(30):
        index = RocksIndex(path, IDENTITY, SMALL)
        index.apply(update_of(restart * 10, 10))
        index.close()

    index = RocksIndex(path, IDENTITY, SMALL)

    until(lambda: len(index._opened().entries.live_files()) <= 12)
    assert index.covers(0)
    assert index.lookup([key_of(i) for i in range(300)]) == [entry_of(i) for i in range(300)]
    index.close()


def test_open_files_are_bounded_however_often_it_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "index"
    tuning = replace(SMALLEST, files_bytes_max=1024 * 1024)
    for restart in range(40):
        index = RocksIndex(path, IDENTITY, tuning)
        update = update_of(restart * 1_200, 1_200)  # a file a little larger than a memtable
        index.apply(update._replace(secondary_keys=update_of(10**9 + restart * 1_200, 1_200).entries))
        assert open_files_in(path) <= tuning.open_files_max
        index.close()

    index = RocksIndex(path, IDENTITY, tuning)
    assert tuning.open_files_max == 2 * 16 + FILES_BESIDE
    until_flushed_and_dropped(index)
    assert not index.covers(0)  # so it has as many files as it may
    index.close()


def open_files_in(path: Path) -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # RocksDB's threads close some meanwhile
            count += str(link.readlink()).startswith(str(path))
    return count


def test_memory_is_divided_among_the_lanes() -> None:
    few = tuning_for(512 * 1024 * 1024 // 2, 1_000)
    many = tuning_for(512 * 1024 * 1024 // 64, 1_000)

    assert few.write_buffer_bytes == 16 * 1024 * 1024
    assert many.write_buffer_bytes < 1024 * 1024
    for tuning in (few, many):
        memory = 10 * tuning.write_buffer_bytes + 2 * tuning.meta_buffer_bytes
        assert memory + tuning.cache_mib * 1024 * 1024 <= (256 if tuning is few else 8) * 1024 * 1024


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        RocksStore(tmp_path, lanes=9, memory_bytes=9 * LANE_BYTES_MIN - 1, keys_max=KEYS_MAX)


# ---- dropped files


def test_dropped_files_are_told_from_the_window(tmp_path: Path) -> None:
    path = tmp_path / "index"
    small = replace(SMALLEST, files_bytes_max=1024 * 1024)
    index = build(path, batches=10, tuning=small)
    assert index.covers(0)

    end = 300 * BATCH
    for first in range(10 * BATCH, end, BATCH):
        index.apply(update_of(first, BATCH))
    index.close()
    index = RocksIndex(path, IDENTITY, small)
    until_flushed_and_dropped(index)

    # Whole files are gone, oldest first: a search finds the first offset it still vouches for.
    assert not index.covers(0)
    assert index.covers(end)
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if index.covers(middle) else (middle, high)
    assert 10_000 < end - high < 40_000
    kept = range(high, end)
    assert index.lookup([key_of(i) for i in kept]) == [entry_of(i) for i in kept]
    assert index.lookup([key_of(i) for i in range(1_000)]) == [None] * 1_000
    index.reset(end)
    assert index.covers(end)
    index.close()


def test_window_is_covered_whatever_is_dropped(tmp_path: Path) -> None:
    keys_max = 20_000
    tuning = tuning_for(LANE_BYTES_MIN, keys_max)
    policy = WindowPolicy(window_ms=1_000_000_000, keys_max=keys_max)
    index = RocksIndex(tmp_path / "index", IDENTITY, tuning)
    opened = PartitionIndex(index, policy, SessionPolicy(1_000, 10), log_start=0)
    window = opened.window

    for first in range(0, 400_000, 1_000):
        offsets = range(first, first + 1_000)
        prints = [entry_of(offset).fingerprint for offset in offsets]
        last = LastRecord.of(index.state)
        opened.apply(Committed(first, first, first, last, [key_of(offset) for offset in offsets], prints))
        assert index.covers(window.start)

    until_flushed_and_dropped(index)
    assert index.covers(window.start)
    assert not index.covers(0)
    assert index.lookup([key_of(i) for i in range(window.start, 400_000)]) == [
        entry_of(i) for i in range(window.start, 400_000)
    ]
    assert list(index.steps) == window.steps
    index.close()


@pytest.mark.regression("Opening an index dropped files that held keys of the window.")
def test_second_keys_of_records_drop_no_file_of_the_window(tmp_path: Path) -> None:
    path = tmp_path / "index"
    small = replace(SMALLEST, files_bytes_max=1024 * 1024)  # which is enough for one key a record
    index = RocksIndex(path, IDENTITY, small)
    records = 20_000
    for first in range(0, records, BATCH):
        secondary_keys = [
            (key_of(10**9 + offset), entry_of(offset)) for offset in range(first, first + BATCH)
        ]
        index.apply(update_of(first, BATCH)._replace(secondary_keys=secondary_keys))
    index.close()
    assert sum(file.stat().st_size for file in path.glob("*.sst")) > small.files_bytes_max

    for _ in range(3):
        Database(path, small, is_new=False).close()  # as a replay of its log does
        index = RocksIndex(path, IDENTITY, small)
        until_flushed_and_dropped(index)
        assert index.covers(0)
        index.close()


def test_file_bytes_per_key_is_an_upper_bound(tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, batches=400).close()
    index = RocksIndex(path, IDENTITY, SMALL)

    assert 25 * 100_000 < index.size_bytes < FILE_BYTES_PER_KEY * 100_000
    index.close()


def test_key_written_again_makes_its_file_look_younger_only(tmp_path: Path) -> None:
    path = tmp_path / "index"
    small = replace(SMALLEST, files_bytes_max=1024 * 1024)
    index = build(path, batches=300, tuning=small)
    until_flushed_and_dropped(index)
    end = 300 * BATCH
    edges = [file["start_key"] for file in index._opened().entries.live_files()]
    again = [(key, Entry(end + i, b"\x00" * 8)) for i, key in enumerate(edges) if len(key) == 16]
    last_key, last = again[-1]
    index.apply(IndexUpdate(again, IndexState(last.offset + 1, last.offset + 1, 9, last.offset, last_key)))

    assert not index.covers(0)
    assert index.covers(last.offset)
    index.close()


def _ticker(index: RocksIndex, name: str) -> int:
    statistics = index._opened().entries.property_value("rocksdb.options-statistics")
    assert statistics is not None
    (line,) = [line for line in statistics.splitlines() if line.startswith(f"rocksdb.{name} ")]
    return int(line.split()[-1])
