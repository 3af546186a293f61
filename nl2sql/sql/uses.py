"""The tables and columns of a schema that a query uses: what a gold demands, and what a candidate has chosen.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> shop = Schema((Table("orders", (Column("id"), Column("day"))), Table("customers", (Column("id"),))))
>>> used = names_used("SELECT o.day FROM orders o WHERE id = 3", shop)
>>> sorted(used.tables), sorted(used.columns)
(['orders'], [('orders', 'day'), ('orders', 'id')])

Not covered: ``*`` (uses no column by name), columns of derived tables that only pass through under another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nl2sql.sql.parse import SLIPS, parse_bounded

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema


class Used(NamedTuple):
    """Names as the schema spells them; a column with its table."""

    tables: frozenset[str]
    columns: frozenset[tuple[str, str]]


def names_used(sql: str, schema: Schema) -> Used:
    """What ``sql`` uses of ``schema``; nothing where it cannot be parsed. A bare column belongs to the first table of
    its scope that has it."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    tables: set[str] = set()
    columns: set[tuple[str, str]] = set()
    try:
        scopes = traverse_scope(parse_bounded(sql, schema.dialect))
        for scope in scopes:
            real = {
                alias.lower(): table
                for alias, (_, source) in scope.selected_sources.items()
                if isinstance(source, exp.Table) and (table := schema.table(source.name)) is not None
            }
            tables |= {table.name for table in real.values()}
            for column in scope.columns:
                owner = real.get(column.table.lower())
                for table in [owner] if owner else [] if column.table else real.values():
                    name = next((c.name for c in table.columns if c.name.lower() == column.name.lower()), None)
                    if name is not None:
                        columns.add((table.name, name))
                        break
    except (SqlglotError, *SLIPS):
        return Used(frozenset(), frozenset())
    return Used(frozenset(tables), frozenset(columns))
