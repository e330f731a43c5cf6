"""
The rows of the column families `default` (entries) and `meta` (state, window steps, identity).

A row that cannot be decoded is an IndexCorruptError: the index is rebuilt from the log.
"""

import struct
from collections.abc import Sequence

import orjson
from rocksdict import WriteBatch

from dedupe.decide.window import Step
from dedupe.model.errors import IndexCorruptError
from dedupe.model.identity import KEY_BYTES
from dedupe.model.types import Entry, entry_of
from dedupe.storage.index import IndexIdentity, IndexState, IndexUpdate
from dedupe.storage.rocksdb.database import Database

ENTRY = struct.Struct(">Q8s")
_STATE = struct.Struct(">QQqq")  # last_key follows, 0 or 16 bytes
_STEP = struct.Struct(">qQ")
OFFSET = struct.Struct(">Q")

# Column family `default`: event key -> entry, and the sentinel -> start of the last reset. The sentinel is
# the first row of the oldest file: while it exists, no file was dropped. It sorts before every event key.
SENTINEL_KEY = b"\x00"
# Column family `meta`; the modules database and sessions have a key there, too. No key is as long as an event
# key (see RocksIndex.covers).
IDENTITY_KEY = b"identity"
STATE_KEY = b"state"
LINEAGE_KEY = b"lineage"
_STEP_PREFIX = b"step"


def put_meta(batch: WriteBatch, update: IndexUpdate, database: Database) -> None:
    """Put the state and the window steps of an update."""
    applied_offset, next_lane_seq, newest_timestamp_ms, last_offset, last_key = update.state
    state = _STATE.pack(applied_offset, next_lane_seq, newest_timestamp_ms, last_offset) + last_key
    batch.put(STATE_KEY, state, database.meta_handle)
    for step in update.new_steps:
        batch.put(_step_key(step), _STEP.pack(step.timestamp_ms, step.lane_seq), database.meta_handle)
    for step in update.dropped_steps:
        batch.delete(_step_key(step), database.meta_handle)


def _step_key(step: Step) -> bytes:
    return _STEP_PREFIX + OFFSET.pack(step.offset)


def read_steps(database: Database) -> list[Step]:
    """Return the step table. Iterators end silently at corruption, so the status is checked at the end."""
    steps: list[Step] = []
    iterator = database.meta.iter()
    try:
        iterator.seek(_STEP_PREFIX)
        while iterator.valid() and (key := iterator.key()).startswith(_STEP_PREFIX):
            (offset,) = OFFSET.unpack(key[len(_STEP_PREFIX) :])
            timestamp_ms, lane_seq = _STEP.unpack(iterator.value())
            steps.append(Step(timestamp_ms, offset, lane_seq))
            iterator.next()
        iterator.status()
    finally:
        del iterator
    return steps


def decode_entries(values: Sequence[bytes | None]) -> list[Entry | None]:
    """Decode entries, None for None, in order. Raises IndexCorruptError."""
    stored = [value for value in values if value is not None]
    for size in set(map(len, stored)) - {ENTRY.size}:
        raise IndexCorruptError(f"an entry has {size} bytes")
    entries = map(entry_of, ENTRY.iter_unpack(b"".join(stored)))
    if len(stored) == len(values):
        return list(entries)
    return [None if value is None else next(entries) for value in values]


def decode_state(stored: bytes | None) -> IndexState:
    """Decode the state. Raises IndexCorruptError."""
    if stored is None or len(stored) not in (_STATE.size, _STATE.size + KEY_BYTES):
        raise IndexCorruptError("its position in the log is missing")
    return IndexState._make((*_STATE.unpack_from(stored), stored[_STATE.size :]))


def encode_identity(identity: IndexIdentity) -> bytes:
    """Encode the log and the rules that an index is built from."""
    return orjson.dumps(identity.fields)


def check_identity(stored: bytes | None, identity: IndexIdentity) -> None:
    """Raise IndexCorruptError unless the index was built from this log, under these rules."""
    if stored is None:
        raise IndexCorruptError("its log is not recorded")
    expected = encode_identity(identity)
    if stored != expected:
        before, now = orjson.loads(stored), orjson.loads(expected)
        fields = ", ".join(name for name in {**before, **now} if before.get(name) != now.get(name))
        raise IndexCorruptError(f"it was built from another log or for other settings: {fields}")
