"""Databases as bytes: the schema without rows, and rows put into it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.eval.replicas.shape import declared, quoted
from nl2sql.eval.suites.source import Row, SourceDatabase

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
