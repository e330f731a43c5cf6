"""The native module; app.ingest.native, dedupe.storage and dedupe.decide.recovery use it."""

from array import array
from collections.abc import Sequence
from typing import Literal

from dedupe.decide.recovery import CheckedRecord
from dedupe.model.types import Event, LogRecord, Order, Session

__version__: str

def faults() -> tuple[int, str]: ...
def provoke() -> None: ...
def add_keys(words: memoryview, masks: array[int], keys: list[bytes]) -> bool | None: ...

class Deployment:
    def __new__(
        cls,
        secret: bytes,
        partitions: int,
        depth_max: int,
        event: type,
        session: type,
    ) -> Deployment: ...

class PlainFields:
    def __new__(
        cls,
        ignored: Sequence[bytes],
        dropped: Sequence[bytes],
        odd: Sequence[bytes],
        types: Sequence[bytes],
    ) -> PlainFields: ...

class Request:
    def __new__(
        cls,
        fields: PlainFields,
        source: str,
        order: Order,
        key_prefix: bytes,
        event_bytes_max: int,
        merged_bytes: int,
        ip_field: bytes,
        suffix: bytes,
        suffix_without_sent_at: bytes,
        session: tuple[int | None, bytes, bytes, int, int, int, bytes, bytes] | None,
    ) -> Request: ...

class Document:
    shape: Literal["batch", "array", "event"]
    is_nested: bool
    def __new__(cls, deployment: Deployment, body: bytes) -> Document: ...
    def __len__(self) -> int: ...
    def read(self, work_bytes: int) -> bool | None: ...
    def top(self) -> bytes: ...
    def raw(self, index: int) -> bytes: ...
    def identify(
        self, request: Request, start: int, bytes_left: int, work_bytes: int
    ) -> tuple[list[Event], int, bytes | None] | None: ...

def encode_records(
    events: Sequence[Event],
    sessions: Sequence[Session | None],
    first_lane_seq: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    bytes_max: int,
) -> bytes | None: ...

class Decoder:
    def __new__(
        cls, record: type, identity: type, checked: type, no_evicted: tuple[()], no_source: bytes
    ) -> Decoder: ...
    def decode(self, raw: bytes, start: int) -> Fetched | None: ...

class Fetched:
    next_fetch_offset: int
    def take(self, count: int) -> Records: ...

class Records:
    end: int
    def __len__(self) -> int: ...
    def log_records(self) -> list[LogRecord]: ...
    def checked(self, secret: bytes, partition: int, partitions: int) -> list[CheckedRecord] | None: ...
