"""An original database as plain data, databases as bytes made after it, and golds and neighbours executed on them.

``Arena`` runs in the process of ``distil.py`` only. Its connection has the authorizer, limits and deadline under which
model-written SQL runs; only putting a database image into it steps outside, with SQL of our own.

>>> one_statement("SELECT 1;"), one_statement("SELECT 1; SELECT 2")
('SELECT 1', None)
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from nl2sql.databases.sqlite.worker import Rejected, Sandbox, single_statement
from nl2sql.eval.replicas.table_shapes import (
    TableShape,
    dangling,
    declared,
    open_read_only,
    quoted,
    read_shapes,
    written_statements,
)
from nl2sql.interfaces import RunResult

# ------------------------------------------------------------------------------ the original as data

CHECKED = re.compile(r"""check\s*\(\s*["`\[]?(\w+)["`\]]?\s+in\s*\(([^)]*)\)""", re.IGNORECASE)
SAMPLE_ROWS = 150  # rows read per table; spread over the table where it has row ids
NUMERIC = re.compile(r"INT|REAL|FLOA|DOUB|NUM|DEC|BOOL|YEAR|MONEY", re.IGNORECASE)
TEXTUAL = re.compile(r"CHAR|TEXT|CLOB|DATE|TIME|BLOB", re.IGNORECASE)

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class TableSource(TableShape):
    """An ordinary table with a sample of its rows. A column of its primary key is never ``nullable`` here."""

    rows: tuple[Row, ...]
    listed: tuple[tuple[int, tuple[str, ...]], ...]  # column and the texts that its CHECK lists

    @cached_property
    def position(self) -> dict[str, int]:
        return {name.lower(): index for index, name in enumerate(self.names)}

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Whether a column holds numbers: by its declared type, by its values where that says nothing."""
        flags = []
        for index, declared_type in enumerate(self.types):
            values = [row[index] for row in self.rows if row[index] is not None]
            numbers = bool(values) and all(isinstance(value, int | float) for value in values)
            named = NUMERIC.search(declared_type) is not None
            flags.append(not TEXTUAL.search(declared_type) and (named or numbers))
        return tuple(flags)


@dataclass(frozen=True)
class SourceDatabase:
    """A database as data. ``tables`` stand parents before children."""

    tables: tuple[TableSource, ...]
    statements: tuple[tuple[str, str, str], ...] = field(repr=False)  # type, name, SQL, in order of creation

    @cached_property
    def by_name(self) -> dict[str, TableSource]:
        return {table.name.lower(): table for table in self.tables}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SourceDatabase:
        """What ``dataclasses.asdict`` gave, after it went through JSON."""
        return TypeAdapter(SourceDatabase).validate_python(data)


def read_source(path: Path) -> SourceDatabase:
    """Read ``path`` (read-only; SQL of our own only). Raises OSError and sqlite3.Error."""
    with open_read_only(path) as connection:
        statements = written_statements(connection)
        ddl = {name: sql for kind, name, sql in statements if kind == "table"}
        tables = tuple(_table(connection, shape, ddl.get(shape.name, "")) for shape in read_shapes(connection))
    return SourceDatabase(tables, tuple(statements))


def _table(connection: sqlite3.Connection, shape: TableShape, ddl: str) -> TableSource:
    keys = connection.execute("SELECT pk FROM pragma_table_info(?)", (shape.name,)).fetchall()
    nullable = tuple(free and not key for free, (key,) in zip(shape.nullable, keys, strict=False))
    position = {name.lower(): index for index, name in enumerate(shape.names)}
    checked = [(position.get(name.lower()), re.findall(r"'([^']*)'", texts)) for name, texts in CHECKED.findall(ddl)]
    listed = tuple((column, tuple(texts)) for column, texts in checked if column is not None)
    return TableSource(**{**vars(shape), "nullable": nullable}, rows=tuple(_sample(connection, shape)), listed=listed)


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


# ------------------------------------------------------------------------------- databases as bytes

_COMPUTED = re.compile(r"\bAS\s*\(", re.IGNORECASE)  # of a generated column


def empty_image(source: SourceDatabase, *, loose: bool = False) -> bytes:
    """A serialised database with the schema and no rows; ``loose``: columns only, for rows in another order.

    A table with generated columns is made as it is: no query on it would run without them.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=1024")
        connection.execute("BEGIN")
        for kinds in (("table", "index"), ("view",)):
            for kind, name, sql in source.statements:
                computed = kind == "table" and _COMPUTED.search(sql)
                if kind not in kinds or (
                    loose and (kind == "index" or (name.lower() in source.by_name and not computed))
                ):
                    continue
                try:
                    connection.execute(sql)
                except sqlite3.Error:
                    if name.lower() in source.by_name:
                        raise
            if loose and "table" in kinds:
                made = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
                for table in (table for table in source.tables if table.name not in made):
                    columns = ", ".join(map(declared, table.names, table.types))
                    connection.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
        connection.execute("COMMIT")
        return connection.serialize()


def store(image: bytes, source: SourceDatabase, rows: Mapping[str, Sequence[Row]]) -> bytes:
    """A copy of ``image`` with ``rows`` in it; a row that a constraint refuses is left out, and what refers to it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(image)
        connection.execute("BEGIN")
        for name, entries in rows.items():
            table = source.by_name[name.lower()]
            marks = ", ".join("?" * len(table.names))
            statement = f"INSERT OR IGNORE INTO {quoted(table.name)} ({table.column_list()}) VALUES ({marks})"
            connection.execute("SAVEPOINT before")
            try:
                connection.executemany(statement, entries)
            except sqlite3.Error:  # a strict table or a trigger refuses outright: row by row, from none
                connection.execute("ROLLBACK TO before")
                for entry in entries:
                    try:
                        connection.execute(statement, entry)
                    except sqlite3.Error:
                        continue
        while sum(_delete_dangling(connection, source, name) for name in rows):
            pass
        connection.execute("COMMIT")
        return connection.serialize()


def _delete_dangling(connection: sqlite3.Connection, source: SourceDatabase, name: str) -> int:
    """Delete the rows of a table that refer to nothing; how many went."""
    table = source.by_name[name.lower()]
    conditions = [dangling(table, source.by_name[key.parent.lower()], key) for key in table.foreign_keys]
    return sum(connection.execute(f"DELETE FROM {quoted(name)} WHERE {c}").rowcount for c in conditions)


# ------------------------------------------------------------------------------- statements on them

STATEMENT_S = 1.0  # a neighbour that takes longer fails, and so counts as killed
MAX_ROWS = 20_000
ORDERS = (0, 1, 2)  # reversed, and two at random


class Arena:
    """The images without rows of one source, and a sandboxed connection that holds one database image at a time."""

    def __init__(self, source: SourceDatabase) -> None:
        self.source, self.sandbox = source, Sandbox(":memory:", "")
        self.empty, self.loose = empty_image(source), empty_image(source, loose=True)

    def load(self, image: bytes) -> None:
        connection = self.sandbox.connection
        connection.set_authorizer(None)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 1)  # deserialize attaches the image
        self.sandbox.deadline = time.monotonic() + STATEMENT_S
        try:
            connection.deserialize(image)
        finally:
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.set_authorizer(self.sandbox._authorize)

    def run(self, statement: str) -> RunResult:
        """Execute one statement (through ``single_statement`` already). Failure is data."""
        sandbox = self.sandbox
        sandbox.denied, sandbox.selecting = "", False
        sandbox.deadline = time.monotonic() + STATEMENT_S
        try:
            cursor = sandbox.connection.execute(statement)
            try:
                if cursor.description is None:
                    return RunResult(False, error="the statement returns no columns", error_kind="denied")
                columns = tuple(column[0] for column in cursor.description)
                rows = cursor.fetchmany(MAX_ROWS + 1)
            finally:
                cursor.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            return RunResult(False, error=str(error)[:300], error_kind="other")
        return RunResult(True, columns, tuple(rows), truncated=len(rows) > MAX_ROWS)

    def compiles(self, statement: str) -> bool:
        """Whether SQLite can execute ``statement`` on this schema."""
        return self.run("EXPLAIN " + statement).success


def one_statement(sql: str) -> str | None:
    """The one statement in ``sql``; None where the sandbox would refuse it."""
    try:
        return single_statement(sql)
    except Rejected:
        return None


def read_rows(image: bytes, source: SourceDatabase, names: Iterable[str]) -> dict[str, list[Row]]:
    """The rows of tables as they are stored."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(image)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        rows = {}
        for name in names:
            columns = source.by_name[name.lower()].column_list()
            rows[name] = connection.execute(f"SELECT {columns} FROM {quoted(name)}").fetchall()
        return rows


def shuffled(rows: dict[str, list[Row]], order: int) -> dict[str, list[Row]]:
    """The same rows in another order: 0 reverses, any other number shuffles."""
    changed = {}
    for name, entries in rows.items():
        changed[name] = entries[::-1]
        if order:
            random.Random(order).shuffle(changed[name])
    return changed
