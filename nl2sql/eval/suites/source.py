"""The facts of an original database that generation needs: schema, keys, and a sample of its rows, as plain data."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from nl2sql.eval.replicas.shape import HeldForeignKey, TableShape, open_read_only, quoted, read_shapes, table_kinds

CHECKED = re.compile(r"""check\s*\(\s*["`\[]?(\w+)["`\]]?\s+in\s*\(([^)]*)\)""", re.IGNORECASE)
SAMPLE_ROWS = 150  # rows read per table; spread over the table where it has row ids
NUMERIC = re.compile(r"INT|REAL|FLOA|DOUB|NUM|DEC|BOOL|YEAR|MONEY", re.IGNORECASE)
TEXTUAL = re.compile(r"CHAR|TEXT|CLOB|DATE|TIME|BLOB", re.IGNORECASE)

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class TableSource:
    """One ordinary table; columns are counted from 0, generated columns are left out."""

    name: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    nullable: tuple[bool, ...]  # a column of the primary key is never nullable here, though SQLite may allow it
    unique: tuple[tuple[int, ...], ...]
    foreign_keys: tuple[HeldForeignKey, ...]
    has_check: bool
    collated: bool  # some column has a collation of its own
    rows: tuple[Row, ...]
    listed: tuple[tuple[int, tuple[str, ...]], ...] = ()  # column and the texts that its CHECK lists

    @cached_property
    def position(self) -> dict[str, int]:
        return {name.lower(): index for index, name in enumerate(self.names)}

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Whether a column holds numbers: by its declared type, by its values where that says nothing."""
        flags = []
        for index, declared in enumerate(self.types):
            if TEXTUAL.search(declared):
                flags.append(False)
            elif NUMERIC.search(declared):
                flags.append(True)
            else:
                values = [row[index] for row in self.rows if row[index] is not None]
                flags.append(bool(values) and all(isinstance(value, int | float) for value in values))
        return tuple(flags)


@dataclass(frozen=True)
class SourceDatabase:
    """A database as data. ``tables`` stand parents before children."""

    tables: tuple[TableSource, ...]
    statements: tuple[tuple[str, str, str], ...] = field(repr=False)  # type, name, SQL, in order of creation

    @cached_property
    def by_name(self) -> dict[str, TableSource]:
        return {table.name.lower(): table for table in self.tables}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SourceDatabase:
        tables = []
        for entry in data["tables"]:
            keys = tuple(
                HeldForeignKey(tuple(k["columns"]), k["parent"], tuple(k["parent_columns"]))
                for k in entry["foreign_keys"]
            )
            tables.append(
                TableSource(
                    entry["name"],
                    tuple(entry["names"]),
                    tuple(entry["types"]),
                    tuple(entry["nullable"]),
                    tuple(map(tuple, entry["unique"])),
                    keys,
                    entry["has_check"],
                    entry["collated"],
                    tuple(map(tuple, entry["rows"])),
                    tuple((column, tuple(values)) for column, values in entry["listed"]),
                )
            )
        return SourceDatabase(tuple(tables), tuple((kind, name, sql) for kind, name, sql in data["statements"]))


def read_source(path: Path) -> SourceDatabase:
    """Read ``path`` (read-only; SQL of our own only). Raises OSError and sqlite3.Error."""
    with open_read_only(path) as connection:
        kinds = table_kinds(connection)
        statements = tuple(
            (kind, name, sql)
            for kind, name, sql in connection.execute(
                "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
            )
            if kinds.get(name) != "shadow" and not name.lower().startswith("sqlite_")
        )
        ddl = {name: sql for kind, name, sql in statements if kind == "table"}
        tables = tuple(_table(connection, shape, ddl.get(shape.name, "")) for shape in read_shapes(connection))
    return SourceDatabase(tables, statements)


def _table(connection: sqlite3.Connection, shape: TableShape, ddl: str) -> TableSource:
    primary = set()
    for position, (key,) in enumerate(connection.execute("SELECT pk FROM pragma_table_info(?)", (shape.name,))):
        if key and position < len(shape.names):
            primary.add(position)
    return TableSource(
        shape.name,
        shape.names,
        shape.types,
        tuple(free and index not in primary for index, free in enumerate(shape.nullable)),
        shape.unique,
        shape.foreign_keys,
        "check" in ddl.lower(),
        "collate" in ddl.lower(),
        tuple(_sample(connection, shape)),
        tuple(_listed(shape, ddl)),
    )


def _listed(shape: TableShape, ddl: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    position = {name.lower(): index for index, name in enumerate(shape.names)}
    for name, values in CHECKED.findall(ddl):
        if name.lower() in position:
            yield position[name.lower()], tuple(re.findall(r"'([^']*)'", values))


def _sample(connection: sqlite3.Connection, shape: TableShape) -> list[Row]:
    select = f"SELECT {shape.column_list()} FROM {quoted(shape.name)}"
    if shape.has_rowid:
        (last,) = connection.execute(f"SELECT max(rowid) FROM {quoted(shape.name)}").fetchone()
        if last and last > 2 * SAMPLE_ROWS:
            step = last // SAMPLE_ROWS
            rows = connection.execute(f"{select} WHERE rowid % {step} = 0 LIMIT {SAMPLE_ROWS}").fetchall()
            if len(rows) >= SAMPLE_ROWS // 2:
                return rows
    return connection.execute(f"{select} LIMIT {SAMPLE_ROWS}").fetchall()
