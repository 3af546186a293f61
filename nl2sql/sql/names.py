"""The names of a SELECT that resolve to nothing: a scope walk with SQLite's own rules of visibility.

``unresolved_names`` goes through the tree scope by scope: FROM sources with their aliases, CTEs (recursive ones too),
derived tables, correlated subqueries that see the scopes round them, USING and NATURAL JOIN, select aliases (SQLite
lets WHERE, GROUP BY, HAVING and ORDER BY use them), ``rowid``, VALUES, table-valued functions. Case does not matter.

A double-quoted name that resolves to nothing is a string to SQLite. That is how many people write values, so on the
value side (compared with a column, in a list, an argument of a function) it counts as a literal; standing alone in a
select list, in GROUP BY or ORDER BY, in an aggregate, or in a comparison without any column, it is a mistyped column.
Not covered: names inside statements that sqlglot cannot parse, and columns of sources whose columns are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from nl2sql.sql.text import Tree, span

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema

_ROWID = frozenset({"rowid", "oid", "_rowid_"})
_SYSTEM_TABLES = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_sequence", "dbstat"})
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.Like, exp.Glob, exp.Between, exp.In)

Columns = frozenset[str] | None  # lower-case names; None: not known, anything may be there


@dataclass(frozen=True)
class Problem:
    """A name that resolves to nothing. ``kind``: unknown_table, unknown_column or ambiguous_column.

    ``table`` is the real table that a column's prefix stands for (the prefix itself where it stands for none);
    ``tables`` are the real tables in scope.
    """

    kind: str
    name: str
    table: str = ""
    tables: tuple[str, ...] = ()
    double_quoted: bool = False


@dataclass
class _Source:
    name: str  # as columns are prefixed with it
    columns: Columns
    table: str = ""  # the schema's table behind it
    merged: frozenset[str] = frozenset()  # columns joined by USING or NATURAL: once, however many sources have them
    hidden_rowid: bool = False


@dataclass(frozen=True)
class _Scope:
    sources: list[_Source] = field(default_factory=list)
    aliases: frozenset[str] = frozenset()
    outer: _Scope | None = None
    ctes: Mapping[str, Columns] = field(default_factory=dict)


class _Walk:
    """One walk over one statement; collects problems in the order of the text."""

    def __init__(self, sql: str, schema: Schema) -> None:
        self.sql = sql
        self.tables = {
            table.name.lower(): (table.name, frozenset(column.name.lower() for column in table.columns))
            for table in schema.tables
        }
        self.problems: list[Problem] = []

    # ------------------------------------------------------------------------------------------- queries

    def query(self, node: Tree, around: _Scope) -> Columns:
        """Resolve a query expression in the scope around it; its output columns."""
        around = self._with(node, around)
        if isinstance(node, exp.Select):
            return self._select(node, around)
        if isinstance(node, exp.Values):
            return self._values(node, around)
        if isinstance(node, exp.Subquery):
            columns = visible = self.query(node.this, around)
        elif isinstance(node, exp.SetOperation):
            columns = self.query(node.left, around)
            visible = _union([columns, self.query(node.right, around)])
        else:
            return None
        tail = _Scope([_Source("", visible)], outer=around, ctes=around.ctes)
        for key in ("order", "limit", "offset"):
            if (clause := node.args.get(key)) is not None:
                self._expression(clause, tail)
        return columns

    def _with(self, node: Tree, around: _Scope) -> _Scope:
        clause = node.args.get("with_") or node.args.get("with")
        if clause is None:
            return around
        visible = dict(around.ctes)
        named = {cte.alias.lower(): _alias_columns(cte) for cte in clause.expressions}
        for cte in clause.expressions:
            name = cte.alias.lower()
            declared = named[name]
            # SQLite lets a CTE refer to any other of its WITH clause, itself included.
            itself = declared if declared is not None else _first_branch_names(cte.this)
            columns = self.query(cte.this, replace(around, ctes=named | visible | {name: itself}))
            visible[name] = declared if declared is not None else columns
        return replace(around, ctes=visible)

    def _values(self, node: exp.Values, around: _Scope) -> Columns:
        rows = node.expressions
        for row in rows:
            self._expression(row, _Scope(outer=around, ctes=around.ctes))
        width = len(rows[0].expressions) if rows and isinstance(rows[0], exp.Tuple) else 1
        declared = _alias_columns(node)
        return declared if declared is not None else frozenset(f"column{i + 1}" for i in range(width))

    def _select(self, node: exp.Select, around: _Scope) -> Columns:
        aliases = frozenset(item.alias.lower() for item in node.expressions if isinstance(item, exp.Alias))
        scope = _Scope(aliases=aliases, outer=around, ctes=around.ctes)
        clause = node.args.get("from_") or node.args.get("from")
        if clause is not None:
            self._source(clause.this, scope)
        joins: list[exp.Join] = node.args.get("joins") or []
        for join in joins:
            self._join(join, scope)
        for join in joins:
            self._condition(join, scope)
        items = replace(scope, aliases=frozenset())  # the select list does not see its own aliases
        for item in node.expressions:
            self._expression(item, items)
        own = replace(scope, outer=None)  # GROUP BY and ORDER BY may not refer to outer queries
        for key in ("where", "group", "having", "qualify", "windows", "order", "limit", "offset"):
            parts = node.args.get(key)
            for part in parts if isinstance(parts, list) else [] if parts is None else [parts]:
                self._expression(part, own if key in ("group", "order") else scope)
        return _output(node, scope)

    # ------------------------------------------------------------------------------------------- sources

    def _join(self, join: exp.Join, scope: _Scope) -> None:
        before = list(scope.sources)
        self._source(join.this, scope)
        added = scope.sources[len(before) :]
        using = frozenset(column.name.lower() for column in join.args.get("using") or [])
        if join.method and join.method.upper() == "NATURAL":
            left, right = (_union(source.columns for source in side) for side in (before, added))
            for source in added:
                known = left is not None and right is not None
                source.merged = left & right if known else source.columns or frozenset()  # type: ignore[operator]
            return
        for name in sorted(using):
            for side in (before, added):
                if all(source.columns is not None and name not in source.columns for source in side):
                    self._report("unknown_column", name, side[0].table or side[0].name if side else "", scope)
                    break
        for source in added:
            source.merged = using

    def _condition(self, join: exp.Join, scope: _Scope) -> None:
        if (condition := join.args.get("on")) is not None:
            self._expression(condition, scope)

    def _source(self, node: Tree, scope: _Scope) -> None:
        alias = node.alias_or_name
        if isinstance(node, exp.Table):
            self._table(node, alias, scope)
        elif isinstance(node, exp.Paren) or (
            isinstance(node, exp.Subquery) and isinstance(node.this, (exp.Table, exp.Join))
        ):
            self._source(node.this, scope)  # FROM (a JOIN b ON ...)
        elif isinstance(node, (exp.Subquery, exp.Query, exp.Values)):
            columns = self.query(node, scope.outer or _Scope())
            declared = _alias_columns(node)
            scope.sources.append(_Source(alias, declared if declared is not None else columns))
        else:  # a table-valued function, or something newer than this walk
            scope.sources.append(_Source(alias, None))
        for join in node.args.get("joins") or []:
            self._join(join, scope)
            self._condition(join, scope)

    def _table(self, node: exp.Table, alias: str, scope: _Scope) -> None:
        name = node.name
        if not isinstance(node.this, exp.Identifier):  # json_each(...), pragma_table_info(...)
            for argument in node.this.args.get("expressions") or []:
                self._expression(argument, scope)
            scope.sources.append(_Source(alias or node.this.name, None))
        elif name.lower() in scope.ctes and not node.db:
            scope.sources.append(_Source(alias, scope.ctes[name.lower()]))
        elif name.lower() in self.tables and node.db.lower() in ("", "main"):
            real, columns = self.tables[name.lower()]
            scope.sources.append(_Source(alias, columns, table=real, hidden_rowid=True))
        else:
            if name.lower() not in _SYSTEM_TABLES and not name.lower().startswith("pragma_"):
                self.problems.append(Problem("unknown_table", name))
            scope.sources.append(_Source(alias, None))

    # --------------------------------------------------------------------------------------- expressions

    def _expression(self, node: Tree, scope: _Scope) -> None:
        """Resolve the columns of an expression; subqueries open their own scope with this one round it."""
        if isinstance(node, exp.Query) and not isinstance(node, exp.Table):
            self.query(node, scope)
        elif isinstance(node, exp.Column):
            self._column(node, scope)
        elif not isinstance(node, exp.Dot):  # three or more parts: the database's own name in front
            for child in node.iter_expressions():
                self._expression(child, scope)

    def _column(self, node: exp.Column, scope: _Scope) -> None:
        star = isinstance(node.this, exp.Star)
        if not node.table:
            if not star:
                self._bare(node, scope)
            return
        wanted, name = node.table.lower(), node.name.lower()
        named = [source for level in _levels(scope) for source in level.sources if source.name.lower() == wanted]
        if not named:
            self._report("unknown_column", node.name or "*", node.table, scope)
        elif not star and not any(_has(source, name) for source in named):
            self._report("unknown_column", node.name, named[0].table or named[0].name, scope)

    def _bare(self, node: exp.Column, scope: _Scope) -> None:
        name = node.name.lower()
        for level in _levels(scope):
            owners = [source for source in level.sources if source.columns is not None and name in source.columns]
            certain = [source for source in owners if name not in source.merged]
            if len(certain) > 1 and not _is_alias_of_order(node, level):
                self._report("ambiguous_column", node.name, "", level)
                return
            if owners or name in level.aliases or any(_may_have(source, name) for source in level.sources):
                return
            if name in _ROWID and any(source.hidden_rowid for source in level.sources):
                return
        quoted = self._double_quoted(node)
        if quoted and _is_value(node, self._resolves(scope)):
            return
        self._report("unknown_column", node.name, "", scope, quoted)

    def _resolves(self, scope: _Scope) -> frozenset[str]:
        names: set[str] = set()
        for level in _levels(scope):
            names |= level.aliases
            for source in level.sources:
                names |= source.columns or frozenset()
        return frozenset(names)

    def _double_quoted(self, node: exp.Column) -> bool:
        where = span(node.this)
        return bool(node.this.args.get("quoted")) and (where is None or self.sql[where[0]] == '"')

    def _report(self, kind: str, name: str, table: str, scope: _Scope, quoted: bool = False) -> None:
        tables = dict.fromkeys(source.table for level in _levels(scope) for source in level.sources if source.table)
        self.problems.append(Problem(kind, name, table, tuple(tables), quoted))


def unresolved_names(sql: str, tree: Tree, schema: Schema) -> list[Problem]:
    """Every name of one statement that resolves to nothing, in the order of the walk.

    ``tree`` is the parse of ``sql``, with positions. Raises RecursionError for absurdly nested statements.
    """
    walk = _Walk(sql, schema)
    walk.query(tree, _Scope())
    return list(dict.fromkeys(walk.problems))


def _levels(scope: _Scope | None) -> Iterator[_Scope]:
    while scope is not None:
        yield scope
        scope = scope.outer


def _may_have(source: _Source, name: str) -> bool:
    """Whether its columns are not known, or some are expressions, whose text is their name: "count(*)"."""
    return source.columns is None or ("" in source.columns and re.search(r"[^\w\s]", name) is not None)


def _has(source: _Source, name: str) -> bool:
    return name in (source.columns or ()) or _may_have(source, name) or (name in _ROWID and source.hidden_rowid)


def _union(columns: Iterable[Columns]) -> Columns:
    known = list(columns)
    return None if None in known else frozenset[str]().union(*(names or () for names in known))


def _alias_columns(node: Tree) -> Columns:
    alias = node.args.get("alias")
    columns = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    return frozenset(column.name.lower() for column in columns) if columns else None


def _first_branch_names(query: Tree) -> Columns:
    """Output names of a recursive CTE's first branch, so that the other branch can refer to them."""
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.left if isinstance(query, exp.SetOperation) else query.this
    if not isinstance(query, exp.Select) or any(item.is_star for item in query.expressions):
        return None
    return frozenset(map(_name_of, query.expressions))


def _name_of(item: Tree) -> str:
    """The name of a column of a result, in lower case; "" for an expression, which SQLite calls by its text."""
    if item.alias:
        return item.alias.lower()
    while isinstance(item, (exp.Paren, exp.Collate)):
        item = item.this
    return item.name.lower() if isinstance(item, exp.Column) else ""


def _output(node: exp.Select, scope: _Scope) -> Columns:
    names: set[str] = set()
    for item in node.expressions:
        if not item.is_star:
            names.add(_name_of(item))
            continue
        prefix = item.table.lower() if isinstance(item, exp.Column) else ""
        for source in scope.sources:
            if prefix and source.name.lower() != prefix:
                continue
            if source.columns is None:
                return None
            names |= source.columns
    return frozenset(names)


def _is_alias_of_order(node: exp.Column, level: _Scope) -> bool:
    """ORDER BY, unlike GROUP BY, prefers a select alias to the sources' columns."""
    return node.name.lower() in level.aliases and node.find_ancestor(exp.Order) is not None


def _is_value(node: exp.Column, known: frozenset[str]) -> bool:
    """Whether an unresolved double-quoted name stands where a value is meant."""
    parent = node.parent
    child: Tree = node
    while isinstance(parent, (exp.Paren, exp.Collate, exp.Tuple, exp.Distinct)):
        child, parent = parent, parent.parent
    if isinstance(parent, (exp.Select, exp.Group, exp.Ordered, exp.Order)):
        return False
    if isinstance(parent, exp.Alias):
        return False
    if isinstance(parent, exp.AggFunc):
        return child is parent.args.get("separator")  # GROUP_CONCAT(name, ", ")
    if isinstance(parent, _COMPARISONS):
        others = [other for other in parent.iter_expressions() if other is not child]
        return any(_reads_something(other, known) for other in others)
    return True


def _reads_something(node: Tree, known: frozenset[str]) -> bool:
    """Whether an operand depends on rows: a column that resolves, an aggregate, or a subquery."""
    for part in node.walk():
        if isinstance(part, exp.Column) and (part.table or part.name.lower() in known):
            return True
        if isinstance(part, (exp.Query, exp.AggFunc)):
            return True
    return False
