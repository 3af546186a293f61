"""Databases in memory: as bytes, with the schema alone or filled, and golds and neighbours executed on them.

Runs in the process of ``child.py`` only. The connection has the authorizer, limits and deadline under which
model-written SQL runs; only putting a database image into it steps outside, with SQL of our own.

>>> one_statement("SELECT 1;"), one_statement("SELECT 1; SELECT 2")
('SELECT 1', None)
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from nl2sql.databases.sqlite.worker import Rejected, Sandbox, single_statement
from nl2sql.eval.replicas.shape import declared, quoted
from nl2sql.eval.rules import gold_order, results_match, suites_match
from nl2sql.eval.suites.source import Row, SourceDatabase
from nl2sql.interfaces import RunResult

# ------------------------------------------------------------------------------- databases as bytes

_COMPUTED = re.compile(r"\bAS\s*\(", re.IGNORECASE)  # of a generated column


def empty_image(source: SourceDatabase, *, loose: bool = False) -> bytes:
    """A serialised database with the schema and no rows; ``loose``: columns only, for rows in another order.

    A table with generated columns is made as it is: no query on it would run without them.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
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
    finally:
        connection.close()


def store(image: bytes, source: SourceDatabase, rows: Mapping[str, Sequence[Row]]) -> bytes:
    """A copy of ``image`` with ``rows`` in it; a row that a constraint refuses is left out, and what refers to it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(image)
        connection.execute("BEGIN")
        for name, entries in rows.items():
            table = source.by_name[name.lower()]
            marks = ", ".join("?" * len(table.names))
            columns = ", ".join(map(quoted, table.names))
            statement = f"INSERT OR IGNORE INTO {quoted(table.name)} ({columns}) VALUES ({marks})"
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
        _close_under_foreign_keys(connection, source, rows)
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _close_under_foreign_keys(connection: sqlite3.Connection, source: SourceDatabase, rows: Mapping[str, Any]) -> None:
    changed = True
    while changed:
        changed = False
        for name in rows:
            table = source.by_name[name.lower()]
            for key in table.foreign_keys:
                parent = source.by_name[key.parent.lower()]
                ours = [quoted(table.names[c]) for c in key.columns]
                theirs = [quoted(parent.names[c]) for c in key.parent_columns]
                matched = " AND ".join(f"p.{t} = c.{o}" for o, t in zip(ours, theirs, strict=True))
                not_null = " AND ".join(f"c.{o} IS NOT NULL" for o in ours)
                done = connection.execute(
                    f"DELETE FROM {quoted(table.name)} AS c WHERE {not_null} "
                    f"AND NOT EXISTS (SELECT 1 FROM {quoted(parent.name)} AS p WHERE {matched})"
                )
                changed = changed or done.rowcount > 0


# ------------------------------------------------------------------------------- statements on them

STATEMENT_S = 1.0  # a neighbour that takes longer fails, and so counts as killed
MAX_ROWS = 20_000
ORDERS = (0, 1, 2)  # reversed, and two at random


class Arena:
    """One sandboxed connection that holds one database image at a time."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(":memory:", "")

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


class GoldJudge:
    """EX[bag] against one gold, with the gold's order."""

    def __init__(self, gold_sql: str) -> None:
        self.sql = gold_sql
        self._order: dict[str, Any] | None = None

    def order(self, gold: RunResult) -> dict[str, Any]:
        if self._order is None:
            self._order = gold_order(self.sql, gold)
        return self._order

    def same(self, gold: RunResult, other: RunResult) -> bool:
        if not other.success or other.truncated or len(gold.rows) != len(other.rows):
            return False
        if len(gold.columns) != len(other.columns):
            return False
        if gold.rows == other.rows:
            return True
        if len(gold.columns) == 1 and len(gold.rows) <= 1 and not _fractional(gold) and not _fractional(other):
            return Counter(gold.rows) == Counter(other.rows)
        return results_match(gold, other, **self.order(gold))

    def same_everywhere(self, gold: list[RunResult], other: list[RunResult]) -> bool:
        return bool(gold) and suites_match(gold, other, **self.order(gold[0]))

    @cached_property
    def rests_on_row_order(self) -> bool:
        """Whether the order of rows could matter to the gold at all."""
        text = self.sql.lower()
        return any(word in text for word in ("limit", "order", "group", "over", "(select", "( select", "distinct"))


def _fractional(result: RunResult) -> bool:
    return any(isinstance(value, float) for row in result.rows for value in row)


def read_rows(image: bytes, source: SourceDatabase, names: Iterable[str]) -> dict[str, list[Row]]:
    """The rows of tables as they are stored."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(image)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        rows = {}
        for name in names:
            table = source.by_name[name.lower()]
            columns = ", ".join(map(quoted, table.names))
            rows[name] = connection.execute(f"SELECT {columns} FROM {quoted(table.name)}").fetchall()
        return rows
    finally:
        connection.close()


def shuffled(rows: dict[str, list[Row]], order: int) -> dict[str, list[Row]]:
    """The same rows in another order: 0 reverses, any other number shuffles."""
    changed = {}
    for name, entries in rows.items():
        changed[name] = entries[::-1]
        if order:
            random.Random(order).shuffle(changed[name])
    return changed
