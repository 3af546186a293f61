"""What the checks of an answer read: the question, the query as a tree with its scopes, its rows, and the database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.databases.schema import Schema
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.interfaces import Database, RunResult
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import Tree

READ_S = 1.0  # of each look into the database
INDEXED_BYTES = 200 << 20
MOST_JOINS = 6  # a statement with more is not looked at: its scopes cost too much


@dataclass(frozen=True)
class Place:
    """A column of a table of the database, as a statement names it under ``alias``."""

    table: str
    column: str
    alias: str

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"


@dataclass
class Evidence:
    """A question, the query that answered it, and its rows; what checks share is read once."""

    question: str
    sql: str
    schema: Schema
    database: Database
    result: RunResult
    _seen: dict[str, RunResult] = field(default_factory=dict)

    @cached_property
    def tree(self) -> Tree | None:
        """The statement with every column under its table's alias; None where it cannot be read."""
        dialect = self.database.dialect
        try:
            tree = parse_bounded(self.sql, dialect)
            if sum(1 for _ in tree.find_all(exp.Table)) > MOST_JOINS:
                return None
            known_names = {column.name.lower() for table in self.schema.tables for column in table.columns}
            known_names |= {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
            for name in [c for c in tree.find_all(exp.Column) if _is_text(c, known_names)]:
                name.replace(exp.Literal.string(name.name))
            known: Any = {t.name: {c.name: c.type or "TEXT" for c in t.columns} for t in self.schema.tables}
            return qualify(
                tree,
                schema=known,
                dialect=dialect,
                validate_qualify_columns=False,
                quote_identifiers=False,
                expand_stars=False,
            )
        except (SqlglotError, RecursionError, ValueError, KeyError, AttributeError):
            return None

    @cached_property
    def scopes(self) -> list[Scope]:
        """The statement's scopes, the innermost first."""
        try:
            return list(traverse_scope(self.tree)) if self.tree is not None else []
        except (SqlglotError, RecursionError):
            return []

    @cached_property
    def values(self) -> list[Match]:
        """The cell values that the question names; of SQLite files up to ``INDEXED_BYTES``, for an index is built."""
        file = sqlite_file(self.database)
        if file is None or file.stat().st_size > INDEXED_BYTES:
            return []
        return ground(self.question, self.database, 6)

    def place(self, scope: Scope, node: Tree) -> Place | None:
        """The table and column behind a column node; None for one of a derived table."""
        if not isinstance(node, exp.Column):
            return None
        source = scope.sources.get(node.table)
        if not isinstance(source, exp.Table) or (table := self.schema.table(source.name)) is None:
            return None
        name = next((c.name for c in table.columns if c.name.lower() == node.name.lower()), None)
        return Place(table.name, name, node.table) if name else None

    def type_of(self, place: Place) -> str:
        table = self.schema.table(place.table)
        return next((c.type for c in table.columns if c.name == place.column), "") if table else ""

    def read(self, query: exp.Select, most: int = 1) -> RunResult:
        """A bounded look into the database."""
        sql = query.sql(dialect=self.database.dialect)
        if sql not in self._seen:
            self._seen[sql] = self.database.run(sql, timeout_s=READ_S, max_rows=most)
        return self._seen[sql]


def _is_text(node: exp.Column, names: Collection[str]) -> bool:
    """Whether SQLite reads a column as a text: a double-quoted name of nothing; ``names``: all that there are."""
    return not node.table and bool(node.this.args.get("quoted")) and node.name.lower() not in names
