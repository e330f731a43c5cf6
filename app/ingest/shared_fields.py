"""
The batch-level fields that are too many to be merged into every event. Pure.

They are quarantined once, and the events are stored without them.
"""

from collections.abc import Mapping
from typing import Any

from app.ingest.deep_json import dumps_any
from app.ingest.items import Fragment
from app.ingest.payload import Payload
from app.ingest.record_values import SHARED_FIELDS
from dedupe.decide.rejection import RejectionCode


def without_shared(payload: Payload) -> tuple[Payload, Fragment]:
    """Return a payload whose batch-level fields are not merged, and these fields."""
    shared = payload.shared
    return payload._replace(shared=_rest_of(shared)), _fragment(_merged_of(shared))


class Growth:
    """The growth of a request whose items have the fields of several batches."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: of the fields in all events together."""
        self._bytes_left = bytes_max
        self._left_out: list[dict[str, Any]] = []
        self._last: Mapping[str, Any] | None = None
        self._rest: Mapping[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """Whether the fields of the following items are not merged."""
        return self._bytes_left < 0

    def add(self, merged_bytes: int) -> None:
        """Count the fields of one item."""
        self._bytes_left -= merged_bytes

    def leave_out(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set the fields of one item aside, and return those that are merged nevertheless."""
        if fields is not self._last:
            self._last, self._rest = fields, _rest_of(fields)
            if merged := _merged_of(fields):
                self._left_out.append(merged)
        return self._rest

    def left_out(self) -> Fragment | None:
        """Return the fields that were not merged; None without any."""
        return _fragment(self._left_out) if self._left_out else None


def _merged_of(shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: shared[name] for name in SHARED_FIELDS if name in shared}


def _rest_of(shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shared.items() if name not in SHARED_FIELDS}


def _fragment(fields: object) -> Fragment:
    return Fragment(0, dumps_any(fields), RejectionCode.BATCH_FIELDS_TOO_LARGE)
