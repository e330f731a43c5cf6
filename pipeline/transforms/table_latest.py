"""
The latest traits of users and groups: each trait has the value of the last call that named it. Pure.

"Last" is by log time, partition and offset, whatever the order in which calls are read. A call that does not
name a trait leaves it, and a null deletes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dedupe.model.identity import is_blank
from pipeline.transforms.table_names import ACCOUNTS
from pipeline.transforms.table_rows import RESCUED, Entry, text_of, traits_of
from pipeline.transforms.table_types import Type, fitted, json_text

POSITIONS = "_positions"


class Position(NamedTuple):
    """Where a trait was set."""

    log_time: datetime
    log_partition: int
    log_offset: int


@dataclass
class Latest:
    """The traits of one user or group."""

    received_at: datetime
    values: dict[str, Any] = field(default_factory=dict)
    rescued: dict[str, str] = field(default_factory=dict)
    """JSON of what has no column, or does not fit into it."""
    positions: dict[str, Position] = field(default_factory=dict)

    def see(self, entry: Entry, layout: Mapping[str, Type]) -> None:
        """Take the traits of a call that are newer than what is there."""
        position = Position(entry.log_time, entry.record.partition, entry.record.offset)
        self.received_at = max(self.received_at, entry.log_time)
        taken: set[str] = set()
        for cell in traits_of(entry):
            if cell.column in taken or self.positions.get(cell.column, position) > position:
                continue
            taken.add(cell.column)
            self.positions[cell.column] = position
            self.values.pop(cell.column, None)
            self.rescued.pop(cell.column, None)
            if cell.value is None:
                continue
            try:
                self.values[cell.column] = fitted(cell.value, layout[cell.column])
            except (KeyError, ValueError):
                self.rescued[cell.column] = json_text(cell.value)


def owner_of(entry: Entry, table: str) -> str | None:
    """Return the id of the user or group that a call is about; None if it names none."""
    owner = text_of(entry.event.get("groupId" if table == ACCOUNTS else "userId"))
    return None if owner is None or is_blank(owner) else owner


def latest_rows(entries: Iterable[Entry], table: str, layout: Mapping[str, Type]) -> list[dict[str, Any]]:
    """Return a row for each user or group of these calls, by column."""
    found: dict[tuple[str, str], Latest] = {}
    for entry in entries:
        if (owner := owner_of(entry, table)) is not None:
            key = (entry.record.source or "", owner)
            found.setdefault(key, Latest(entry.log_time)).see(entry, layout)
    return [
        {
            "id": owner,
            "source": source,
            "received_at": latest.received_at,
            **latest.values,
            RESCUED: list(latest.rescued.items()),
            POSITIONS: [(column, place._asdict()) for column, place in latest.positions.items()],
        }
        for (source, owner), latest in found.items()
    ]
