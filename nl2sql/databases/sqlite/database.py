"""A SQLite file as the ``Database`` of the interfaces, on top of a pool of workers.

``SqliteDatabase("shop.sqlite").run("SELECT 1")`` gives a RunResult with columns and rows.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from nl2sql.databases.schema import Descriptions, Schema, described, introspect, quote_always
from nl2sql.databases.sqlite.files import check_is_file, fingerprint_sqlite, read_only, shown_path, unusable
from nl2sql.databases.sqlite.pool import QueryPool, default_pool
from nl2sql.databases.sqlite.vetting import OPEN_S
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import RunResult, content_key

__all__ = ["QueryPool", "SqliteDatabase", "default_pool", "fingerprint_sqlite"]


class SqliteDatabase:
    """A SQLite file as a ``Database``. Model-written SQL runs in ``pool`` (default: the shared one).

    origin: the data file, or the folder of such, that the file is a copy of. descriptions: what is said of its columns.
    Raises UsageError for a path that is not there or not a file, DatabaseError for a file that is not a SQLite
    database, is broken, unreadable, or holds no tables.
    """

    dialect = "sqlite"

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        pool: QueryPool | None = None,
        origin: Path | None = None,
        descriptions: Descriptions | None = None,
    ) -> None:
        self.path, self.origin, self.descriptions = Path(path), origin, descriptions or {}
        self.name = name or self.path.stem
        self._pool = pool
        self._schema: Schema | None = None
        self._check()

    def _check(self) -> None:
        check_is_file(self.path)
        if not self.schema().tables:
            raise DatabaseError(f"database {shown_path(self.path)} has no tables")

    def __enter__(self) -> SqliteDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pool(self) -> QueryPool:
        return self._pool or default_pool()

    @property
    def fingerprint(self) -> str:
        """Of the file's content, and of what is said of its columns."""
        of_file = fingerprint_sqlite(self.path)
        return content_key(of_file, sorted(self.descriptions.items())) if self.descriptions else of_file

    def schema(self) -> Schema:
        """Tables and views of the file, read once: a schema changed later needs a new SqliteDatabase."""
        if self._schema is None:
            try:
                with read_only(self.path) as connection:
                    self._schema = described(introspect(connection), self.descriptions)
            except (OSError, sqlite3.Error) as error:
                raise unusable(self.path, error) from None
        return self._schema

    def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
        """The first ``n`` rows of ``table`` as dicts. Raises UsageError for an unknown table or a negative ``n``."""
        if n < 0:
            raise UsageError(f"cannot show {n} rows; give 0 or more")
        found = self.schema().table(table)
        if found is None:
            names = ", ".join(t.name for t in self.schema().tables[:20])
            raise UsageError(f"no table {table!r} in {self.name}; its tables: {names}")
        result = self.run(f"SELECT * FROM {quote_always(found.name)} LIMIT {n}", timeout_s=OPEN_S, max_rows=n)
        if not result.success:
            raise DatabaseError(f"table {found.name!r} of {shown_path(self.path)} cannot be read: {result.error}")
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        return self.pool.explain(self.path, sql, timeout_s=timeout_s)

    def run(self, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult:
        return self.pool.run(self.path, sql, timeout_s=timeout_s, max_rows=max_rows)

    def close(self) -> None:
        """Nothing to release: connections belong to the pool, which whoever made it closes."""
