"""Scopes of a query's SELECTs: the table and column that a column reference means.

>>> [part.sql() for part in and_parts(exp.condition("a = 1 AND (b = 2 OR c)"))]
['a = 1', 'b = 2 OR c']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp

from nl2sql.eval.suites.source import SourceDatabase, TableSource

Ref: TypeAlias = tuple[str, int]  # alias in lower case, number of the column


@dataclass
class Scope:
    """One SELECT: its sources by alias (None for a derived table), and the SELECT around it."""

    select: exp.Select
    sources: dict[str, TableSource | None]
    outer: Scope | None = None
    names: dict[str, str] = field(default_factory=dict)  # lower-case alias -> as written

    def find(self, column: exp.Column) -> tuple[Scope, str, int] | None:
        """The scope, alias and column number of a reference; None where it is not a column of a plain table."""
        name, alias = column.name.lower(), column.table.lower()
        for key, table in self.sources.items():
            if table is not None and (not alias or alias == key) and name in table.position:
                return self, key, table.position[name]
        return self.outer.find(column) if self.outer else None

    def ref(self, node: Any) -> Ref | None:
        """The reference as a column of this very SELECT."""
        if not isinstance(node, exp.Column):
            return None
        place = self.find(node)
        return (place[1], place[2]) if place and place[0] is self else None

    def table(self, ref: Ref) -> TableSource:
        table = self.sources[ref[0]]
        assert table is not None, ref
        return table

    def column(self, ref: Ref) -> exp.Column:
        """A column node for ``ref``, qualified where there are several sources."""
        table = self.table(ref)
        qualifier = exp.to_identifier(self.names[ref[0]]) if len(self.sources) > 1 else None
        return exp.Column(this=exp.to_identifier(table.names[ref[1]]), table=qualifier)

    def refs(self) -> Iterator[Ref]:
        for alias, table in self.sources.items():
            if table is not None:
                yield from ((alias, index) for index in range(len(table.names)))

    def own(self, kind: type[Any]) -> Iterator[Any]:
        """Nodes of a kind that belong to this SELECT and not to one inside it."""
        for node in self.select.find_all(kind):
            if node is not self.select and node.find_ancestor(exp.Select) is self.select:
                yield node


def scopes_of(tree: exp.Expr, source: SourceDatabase) -> dict[int, Scope]:
    """Scopes by ``id`` of their SELECT node."""
    scopes: dict[int, Scope] = {}
    for select in tree.find_all(exp.Select):
        sources: dict[str, TableSource | None] = {}
        names: dict[str, str] = {}
        parts = [select.args["from_"].this] if select.args.get("from_") else []
        parts += [join.this for join in select.args.get("joins") or []]
        for part in parts:
            alias = part.alias_or_name
            sources[alias.lower()] = source.by_name.get(part.name.lower()) if isinstance(part, exp.Table) else None
            names[alias.lower()] = alias
        above = select.find_ancestor(exp.Select)
        scopes[id(select)] = Scope(select, sources, scopes.get(id(above)) if above else None, names)
    return scopes


def and_parts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """The parts of a condition that all have to hold."""
    if node is None:
        return
    if isinstance(node, exp.Paren):
        yield from and_parts(node.this)
    elif isinstance(node, exp.And):
        yield from and_parts(node.this)
        yield from and_parts(node.expression)
    else:
        yield node
