"""The smallest part of a failing statement that fails on its own: a WITH part or a subquery, compiled by itself.

A part that refers to columns of the query round it cannot be compiled alone, and is passed over. Statements that cannot
be parsed have no parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nl2sql.sql.parse import SLIPS, parse_bounded

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

    from nl2sql.databases.schema import Schema
    from nl2sql.interfaces import Database


@dataclass(frozen=True)
class BrokenPart:
    """A part that fails: its SQL, why, and the statement round it."""

    sql: str
    error: str
    dialect: str
    node: Expr  # in the tree of the whole statement

    def spliced(self, repaired: str) -> str:
        """The whole statement with this part repaired; "" where ``repaired`` is no query."""
        from sqlglot import exp
        from sqlglot.errors import SqlglotError

        try:
            query = parse_bounded(repaired, self.dialect)
        except SqlglotError:
            return ""
        if not isinstance(query, exp.Query):
            return ""
        copy = self.node.root().copy()
        twin = next(
            theirs for ours, theirs in zip(self.node.root().walk(), copy.walk(), strict=True) if ours is self.node
        )
        twin.replace(query)
        return str(copy.sql(dialect=self.dialect))


def smallest_broken_part(sql: str, database: Database, schema: Schema) -> BrokenPart | None:
    """The innermost part that fails alone, the first in reading order; None where only the whole does."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    from nl2sql.repair.deterministic import fault

    try:
        tree = parse_bounded(sql, database.dialect)
        scopes = traverse_scope(tree)  # inner scopes come before those they are part of
    except (SqlglotError, *SLIPS):
        return None
    for scope in scopes:
        part = scope.expression
        if part is tree or not isinstance(part, exp.Select) or any(c.table for c in scope.external_columns):
            continue
        text = part.sql(dialect=database.dialect)
        error = fault(_with_parts_before(part, tree, database.dialect) + text, database, schema)
        if error and not _is_of_outer_query(error, part, schema, database.dialect):
            return BrokenPart(text, error, database.dialect, part)
    return None


def _is_of_outer_query(error: str, part: Expr, schema: Schema, dialect: str) -> bool:
    """Whether the column that is missing in ``part`` is one of a table outside it, written without that table."""
    from sqlglot import exp

    from nl2sql.repair.registry import packaged
    from nl2sql.repair.schema_names import bare

    found = packaged(dialect).find(error)
    wanted = bare(found[1].get("column", "")).lower() if found is not None else ""
    inside = {id(table) for table in part.find_all(exp.Table)}
    outside = [schema.table(table.name) for table in part.root().find_all(exp.Table) if id(table) not in inside]
    return any(column.name.lower() == wanted for table in outside if table is not None for column in table.columns)


def _with_parts_before(part: Expr, tree: Expr, dialect: str) -> str:
    """``WITH a AS (...), `` of the WITH parts that ``part`` may use: those that end before it is reached."""
    from sqlglot import exp

    clause = tree.args.get("with_")
    earlier = []
    for cte in clause.expressions if clause is not None else ():
        if any(node is part for node in cte.walk()):
            break
        earlier.append(cte.sql(dialect=dialect))
    if not earlier or part.args.get("with_") is not None:
        return ""
    recursive = "RECURSIVE " if isinstance(clause, exp.With) and clause.recursive else ""
    return f"WITH {recursive}{', '.join(earlier)} "
