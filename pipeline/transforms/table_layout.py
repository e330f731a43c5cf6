"""
Which tables and columns there are: found in the events of a batch, limited, typed and widened. Pure.

    see_cells       counts kinds of values by table and column, in a task
    SeenTables      what the tasks of a batch saw, merged
    next_layout     the columns of a table after a batch, and what did not fit: its drift

Who comes first by partition and offset gets the room under a limit; all others are in `_rescued`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson

from pipeline.transforms.table_names import STANDARD_TABLES
from pipeline.transforms.table_rows import Cell
from pipeline.transforms.table_types import Kind, Type, chosen_type, is_held, kind_of, widens

Layout: TypeAlias = Mapping[str, Type]
Place: TypeAlias = tuple[int, int]
"""Partition and offset."""

TABLES_MAX, COLUMNS_MAX = 500, 500
COLUMNS_SEEN_TIMES = 4
"""A task counts so many times the limit of columns in a table: clients choose the names."""

CLASH = "the column has another property of this event"
NO_COLUMN = "the table has its limit of columns"
NO_TABLE = "there is the limit of tables"


@dataclass
class SeenColumn:
    """The values of one column in a batch."""

    first: Place
    kinds: dict[Kind, int] = field(default_factory=dict)
    firsts: dict[Kind, Place] = field(default_factory=dict)
    """Of each kind the first place."""
    clashes: int = 0

    def add(self, other: "SeenColumn") -> None:
        """Add what another task saw."""
        self.first = min(self.first, other.first)
        self.clashes += other.clashes
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
            self.firsts[kind] = min(self.firsts.get(kind, other.firsts[kind]), other.firsts[kind])


@dataclass
class SeenTable:
    """The events of one table in a batch."""

    first: Place
    rows: int = 0
    columns: dict[str, SeenColumn] = field(default_factory=dict)

    def see(self, place: Place, cells: Iterable[Cell], columns_max: int) -> None:
        """Count one event."""
        self.rows += 1
        self.first = min(self.first, place)
        taken = set()
        for cell in cells:
            column = self.columns.get(cell.column)
            if column is None:
                if len(self.columns) >= columns_max * COLUMNS_SEEN_TIMES:
                    continue
                column = self.columns[cell.column] = SeenColumn(place)
            if cell.column in taken:
                column.clashes += 1
                continue
            taken.add(cell.column)
            if cell.value is not None:
                kind = kind_of(cell.value)
                column.kinds[kind] = column.kinds.get(kind, 0) + 1
                column.firsts[kind] = min(column.firsts.get(kind, place), place)

    def add(self, other: "SeenTable") -> None:
        """Add what another task saw."""
        self.first = min(self.first, other.first)
        self.rows += other.rows
        for name, column in other.columns.items():
            if name in self.columns:
                self.columns[name].add(column)
            else:
                self.columns[name] = column


@dataclass
class SeenTables:
    """What a task or a batch has for each table."""

    known: Collection[str]
    """The event tables that exist, to which no limit applies, as to the standard ones."""
    tables_max: int = TABLES_MAX
    columns_max: int = COLUMNS_MAX
    tables: dict[str, SeenTable] = field(default_factory=dict)
    left_out: int = 0
    """Not 0 if there are events without a table of their own; a task may have left out what another took."""
    _new: int = 0

    def see(self, table: str, place: Place, cells: Iterable[Cell]) -> None:
        """Count an event of a table."""
        seen = self.tables.get(table)
        if seen is None:
            if self._is_new(table):
                if self._new >= self.tables_max:
                    self.left_out += 1
                    return
                self._new += 1
            seen = self.tables[table] = SeenTable(place)
        seen.see(place, cells, self.columns_max)

    def add(self, tables: Mapping[str, SeenTable], left_out: int) -> None:
        """Add what a task saw."""
        self.left_out += left_out
        for name, seen in tables.items():
            if name in self.tables:
                self.tables[name].add(seen)
            else:
                self.tables[name] = seen

    def admit(self) -> None:
        """Leave out the new tables over the limit, those that came last."""
        new = sorted((seen.first, name) for name, seen in self.tables.items() if self._is_new(name))
        for _, name in new[max(0, self.tables_max - len(self.known)) :]:
            self.left_out += self.tables.pop(name).rows

    def _is_new(self, table: str) -> bool:
        return table not in self.known and table not in STANDARD_TABLES

    def to_json(self) -> str:
        """Return what a task hands to the driver."""
        return orjson.dumps([self.tables, self.left_out], option=orjson.OPT_NON_STR_KEYS).decode()

    def add_json(self, text: str) -> None:
        """Add the text of a task."""
        tables, left_out = orjson.loads(text)
        self.add({name: _table(seen) for name, seen in tables.items()}, left_out)


class Drift(NamedTuple):
    """Values of a batch that are in `_rescued`."""

    table_name: str
    column_name: str | None
    column_type: str | None
    """None if there is no such column."""
    found: str
    """The kind of the values, or the reason."""
    row_count: int
    log_partition: int | None
    log_offset: int | None
    """Of the first one."""

    @property
    def sentence(self) -> str:
        """What to tell of it."""
        if self.column_name is None:
            return f"{self.row_count:,} events of {self.table_name} have no table of their own: {self.found}"
        column = f"{self.table_name}.{self.column_name}"
        is_a = "which is no column" if self.column_type is None else f"a {self.column_type}"
        place = f"partition {self.log_partition} offset {self.log_offset}"
        return f"{self.row_count:,} values of {column}, {is_a}, are in _rescued: {self.found}, one is {place}"


class NextLayout(NamedTuple):
    """The columns of a table for a batch."""

    layout: dict[str, Type]
    widened: tuple[str, ...]
    """Columns that were bigint and are double now."""
    drift: tuple[Drift, ...]


def next_layout(
    table: str, before: Layout, seen: SeenTable, *, columns_max: int, may_widen: Collection[str] | None = None
) -> NextLayout:
    """
    Return the columns of a table that a batch needs.

    Args:
        table: its name.
        before: the columns that it has.
        seen: of the batch.
        columns_max: the limit of columns.
        may_widen: the columns whose stored integers a double holds exactly; None for all.
    """
    layout = dict(before)
    wanted = [name for name, column in before.items() if name in seen.columns]
    widened = tuple(
        name
        for name in wanted
        if widens(layout[name], seen.columns[name].kinds) and (may_widen is None or name in may_widen)
    )
    layout |= dict.fromkeys(widened, Type.DOUBLE)
    # By name where one event brought both: the order in which tasks are merged must make no difference.
    for _, name in sorted((column.first, name) for name, column in seen.columns.items()):
        chosen = chosen_type(seen.columns[name].kinds)
        if name not in layout and chosen is not None and len(layout) < columns_max:
            layout[name] = chosen
    drift = [found for name, column in seen.columns.items() for found in _drift(table, name, column, layout)]
    return NextLayout(layout, widened, tuple(drift))


def _drift(table: str, name: str, column: SeenColumn, layout: Layout) -> Iterable[Drift]:
    held = layout.get(name)
    for kind, count in column.kinds.items():
        if held is None:
            found = kind.value if kind is Kind.HUGE else f"{kind.value}: {NO_COLUMN}"
        elif is_held(kind, held):
            continue
        else:
            found = kind.value
        yield Drift(table, name, held and held.value, found, count, *column.firsts[kind])
    if column.clashes:
        yield Drift(table, name, held and held.value, CLASH, column.clashes, *column.first)


def _table(seen: Any) -> SeenTable:
    columns = {
        name: SeenColumn(
            tuple(column["first"]),
            {Kind(kind): count for kind, count in column["kinds"].items()},
            {Kind(kind): tuple(place) for kind, place in column["firsts"].items()},
            column["clashes"],
        )
        for name, column in seen["columns"].items()
    }
    return SeenTable(tuple(seen["first"]), seen["rows"], columns)
