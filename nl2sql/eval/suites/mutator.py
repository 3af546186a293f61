"""The tree that every mutation changes for a moment, and what its columns mean.

A mutation changes the tree in place, writes it down (``emit``), and puts it back (``swap``, ``setting``).

>>> constant_value(exp.Neg(this=exp.Literal.number(3)))
-3

>>> [part.sql() for part in and_parts(exp.condition("a = 1 AND (b = 2 OR c)"))]
['a = 1', 'b = 2 OR c']
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from nl2sql.errors import UsageError
from nl2sql.eval.suites.arena import SourceDatabase, TableSource
from nl2sql.sql.parse import parse_bounded

# --------------------------------------------------------- which table and column a reference means

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

    def column(self, ref: Ref, *, qualified: bool = False) -> exp.Column:
        """A column node for ``ref``, qualified where there are several sources."""
        table = self.table(ref)
        qualified = qualified or len(self.sources) > 1
        qualifier = exp.to_identifier(self.names[ref[0]]) if qualified else None
        return exp.Column(this=exp.to_identifier(table.names[ref[1]]), table=qualifier)

    def refs(self) -> Iterator[Ref]:
        for alias, table in self.sources.items():
            if table is not None:
                yield from ((alias, index) for index in range(len(table.names)))

    def may_be_null(self, ref: Ref) -> bool:
        """Whether a column may hold NULL, by the schema or by an outer join."""
        return self.table(ref).nullable[ref[1]] or any(join.side for join in self.select.args.get("joins") or ())

    def own(self, *kinds: type[Any]) -> Iterator[Any]:
        """Nodes of some kinds that belong to this SELECT and not to one inside it."""
        for node in self.select.find_all(*kinds):
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


def parse_gold(sql: str, source: SourceDatabase) -> exp.Query:
    """The tree of a gold; double-quoted text that names no column becomes a string, as SQLite reads it.

    Raises UsageError for what is not one query that sqlglot can read.
    """
    try:
        tree = parse_bounded(sql)
    except SqlglotError as error:
        raise UsageError(f"no neighbours of a query that does not parse: {str(error).splitlines()[0]}") from None
    if not isinstance(tree, exp.Query):
        raise UsageError(f"no neighbours of {type(tree).__name__}; expected a SELECT")
    scopes = scopes_of(tree, source)
    for column in list(tree.find_all(exp.Column)):
        identifier = column.this
        if column.table or not isinstance(identifier, exp.Identifier) or not identifier.quoted:
            continue
        select = column.find_ancestor(exp.Select)
        scope = scopes.get(id(select)) if select else None
        aliases = {item.alias.lower() for s in scopes.values() for item in s.select.expressions if item.alias}
        known = column.name.lower() in aliases
        if scope and not known and scope.find(column) is None and all(t is not None for t in scope.sources.values()):
            column.replace(exp.Literal.string(column.name))
    return tree


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


# ------------------------------------------------------------------------- the tree and its SELECTs

PER_SITE = 4  # columns tried in place of one column, values in place of one constant
AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
SET_OPERATIONS = (exp.Union, exp.Intersect, exp.Except)

Touch: TypeAlias = tuple[str, int, Any]  # table, column, and the constant at which a neighbour parts from its gold


@dataclass(frozen=True)
class Neighbour:
    kind: str
    sql: str
    touches: Touch | None = None


class Mutator:
    """The tree of a gold, and the neighbours found so far by their text."""

    def __init__(self, tree: exp.Query, source: SourceDatabase, seed: int) -> None:
        self.holder = exp.Paren(this=tree)  # so that the outermost query can be replaced as well
        self.source = source
        self.rng = random.Random(f"{seed}/{tree.sql('sqlite')}")
        self.scopes = scopes_of(tree, source)
        self.neighbours: dict[str, Neighbour] = {self.text(): Neighbour("gold", "")}

    def text(self) -> str:
        return self.holder.this.sql("sqlite")

    def emit(self, kind: str, touches: Touch | None = None) -> None:
        sql = self.text()
        self.neighbours.setdefault(sql, Neighbour(kind, sql, touches))

    def swap(self, kind: str, node: exp.Expr, new: exp.Expr, touches: Touch | None = None) -> None:
        """Emit the tree with ``new`` in the place of ``node``."""
        node.replace(new)
        self.emit(kind, touches)
        new.replace(node)

    def place(self, column: Any) -> tuple[Scope, Ref] | None:
        """The stored column that a node is."""
        scope = self.scope_of(column) if isinstance(column, exp.Column) else None
        place = scope.find(column) if scope else None
        return (place[0], place[1:]) if place else None

    def touch(self, column: Any, constant: Any) -> Touch | None:
        """The column of a comparison and the constant at which it turns."""
        place, value = self.place(column), constant_value(constant)
        return (place[0].table(place[1]).name, place[1][1], value) if place and value is not None else None

    def nodes(self, *kinds: type[Any]) -> list[Any]:
        return list(self.holder.find_all(*kinds))

    def scope_of(self, node: exp.Expr) -> Scope | None:
        select = node.find_ancestor(exp.Select)
        return self.scopes.get(id(select)) if select else None

    def with_condition(self, kind: str, scope: Scope, condition: exp.Expr, touches: Touch | None = None) -> None:
        old = scope.select.args.get("where")
        left = old.this.copy() if old is not None else None
        left = exp.Paren(this=left) if isinstance(left, exp.Or) else left
        new = exp.And(this=left, expression=condition) if left is not None else condition
        with setting(scope.select, "where", exp.Where(this=new)):
            self.emit(kind, touches)

    def some_refs(self, scope: Scope, count: int) -> list[Ref]:
        refs = list(scope.refs())
        return self.rng.sample(refs, min(count, len(refs)))


@contextmanager
def setting(node: exp.Expr, key: str, value: Any) -> Iterator[None]:
    """Another value of one argument of ``node`` for a while."""
    old = node.args.get(key)
    node.set(key, value)
    try:
        yield
    finally:
        node.set(key, old)


def own_values(scope: Scope, ref: Ref) -> list[Any]:
    """Values of the column in the original that are of its type and can be written as a constant."""
    table = scope.table(ref)
    kind = (int, float) if table.numeric[ref[1]] else str
    values = dict.fromkeys(row[ref[1]] for row in table.rows[:60] if isinstance(row[ref[1]], kind))
    return [v for v in values if not isinstance(v, str) or (0 < len(v) < 60 and v.isprintable())]


def literal(value: Any) -> exp.Expr:
    if isinstance(value, str):
        return exp.Literal.string(value)
    return exp.Neg(this=exp.Literal.number(-value)) if value < 0 else exp.Literal.number(value)


def constant_value(node: Any) -> Any:
    """The value of a constant as it is written in SQL; None for anything else."""
    sign = 1
    while isinstance(node, (exp.Neg, exp.Paren)):
        sign = -sign if isinstance(node, exp.Neg) else sign
        node = node.this
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.this
    for kind in (int, float):
        try:
            return sign * kind(node.this)
        except ValueError:
            continue
    return None
