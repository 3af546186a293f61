"""Expressions of a query written so that equal meaning gives equal text, with columns named by their tables.

>>> from sqlglot import parse_one
>>> tree = parse_one("SELECT c.city FROM customers AS c WHERE c.id > 5")
>>> Canonical(tree, None).text(tree.args["where"].this)
'LT(5,customers.id)'

A column is followed through derived tables, CTEs and result names to the base table, as far as the schema (or, without
one, a prefix or a FROM clause of one table) tells it. Used to compare two queries part by part (``facets``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from nl2sql.sql.same import read_double_quoted_values

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema


STAR = "*"
_FLIPPED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE}
_COMMUTATIVE = (exp.EQ, exp.NEQ, exp.And, exp.Add, exp.Mul)
MAX_DEPTH = 40  # of derived tables that a column is followed through


class Canonical:
    """One statement's names and expressions. ``merged``: column -> the one that stands for all that joins make equal
    to it (empty until it is set)."""

    def __init__(self, tree: exp.Query, schema: Schema | None) -> None:
        read_double_quoted_values(tree)
        self.tree = tree
        tables = schema.tables if schema else ()
        self.columns = {table.name.lower(): [column.name.lower() for column in table.columns] for table in tables}
        self.never_null = {
            f"{table.name}.{column.name}".lower()
            for table in tables
            for column in table.columns
            if column.not_null or (column.primary_key and column.type == "INTEGER")
        }
        self.ctes = {cte.alias.lower(): cte.this for cte in tree.find_all(exp.CTE)}
        self.merged: Mapping[str, str] = {}

    def tables(self) -> Iterator[exp.Table]:
        return (table for table in self.tree.find_all(exp.Table) if table.name.lower() not in self.ctes)

    def sources(self, select: exp.Select) -> dict[str, str | exp.Query]:
        """Name in scope -> base table, or the query behind it."""
        sources: dict[str, str | exp.Query] = {}
        first = select.args.get("from_")
        nodes = [first.this] if first else []
        nodes += [join.this for join in select.args.get("joins") or ()]
        for node in nodes:
            if isinstance(node, exp.Table):
                name = node.name.lower()
                sources[(node.alias or node.name).lower()] = self.ctes.get(name, name)
            elif isinstance(node, exp.Subquery):
                sources[node.alias.lower() or f"<{len(sources)}>"] = node.this
        return sources

    def column(self, column: exp.Column, depth: int = 0) -> str:
        """``table.column`` in lower case; ``.column`` where the table cannot be told."""
        name, prefix = column.name.lower(), column.table.lower()
        scope = column.find_ancestor(exp.Select, exp.SetOperation)
        while scope is not None:
            sources = self.sources(next(branches(scope)))
            if prefix:
                if prefix in sources:
                    return self._through(sources[prefix], name, depth)
            else:
                having = [source for source in sources.values() if self._has(source, name)]
                if having:
                    return self._through(having[0], name, depth)
                if len(sources) == 1 and not self.columns:
                    return self._through(next(iter(sources.values())), name, depth)
            scope = scope.find_ancestor(exp.Select)
        return f"{prefix}.{name}"

    def _has(self, source: str | exp.Query, name: str) -> bool:
        if isinstance(source, str):
            return name in self.columns.get(source, ())
        return any(item.alias_or_name.lower() == name or item.is_star for item in next(branches(source)).expressions)

    def _through(self, source: str | exp.Query, name: str, depth: int) -> str:
        """The column ``name`` of a source: of the base table, or whatever a derived table calls by that name."""
        if isinstance(source, str):
            return f"{source}.{name}"
        select = next(branches(source))
        for item in select.expressions:
            if item.alias_or_name.lower() == name and depth < MAX_DEPTH:
                return self.text(item, depth=depth + 1)
        inner = list(self.sources(select).values())
        owners = [behind for behind in inner if self._has(behind, name)] or inner
        return self._through(owners[0], name, depth + 1) if owners and depth < MAX_DEPTH else f".{name}"

    def text(self, node: object, *, bare: bool = False, depth: int = 0) -> str:
        """An expression written so that equal meaning gives equal text. ``bare``: aggregate functions left out."""
        if not isinstance(node, exp.Expr):
            return repr(node).lower()  # the name of a function that sqlglot does not know, a flag
        if isinstance(node, exp.Identifier):
            return node.name.lower()
        if isinstance(node, exp.Column):
            if isinstance(node.this, exp.Star):
                return STAR
            alias = self._alias(node)
            if alias is not None and depth < MAX_DEPTH:
                return self.text(alias, bare=bare, depth=depth + 1)
            name = self.column(node, depth)
            return self.merged.get(name, name)
        if isinstance(node, (exp.Paren, exp.Alias)):
            return self.text(node.this, bare=bare, depth=depth)
        if isinstance(node, exp.Query):
            return "(query)"
        if isinstance(node, exp.Literal):
            return node.sql(dialect="sqlite")
        if isinstance(node, exp.AggFunc) and is_aggregate(node):
            inner = self.counted(node) if isinstance(node, exp.Count) else self._arguments(node, depth)
            if bare:
                return "*" if isinstance(node, exp.Count) else inner
            return f"{type(node).__name__}({inner})"
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            left = self.text(node.this, depth=depth)
            return _or(f"EQ({_sorted(left, self.text(value, depth=depth))})" for value in node.expressions)
        if isinstance(node, exp.Or):
            return _or(self.text(part, depth=depth) for part in node.flatten())
        if isinstance(node, exp.Not) and isinstance(node.this, exp.EQ):
            return f"NEQ({_sorted(*(self.text(side, depth=depth) for side in (node.this.this, node.this.expression)))})"
        kind = _FLIPPED.get(type(node))
        if kind is not None:
            return f"{kind.__name__}({self.text(node.expression, depth=depth)},{self.text(node.this, depth=depth)})"
        if isinstance(node, _COMMUTATIVE):
            parts = (self.text(part, bare=bare, depth=depth) for part in (node.this, node.expression))
            return f"{type(node).__name__}({_sorted(*parts)})"
        parts = (
            self.text(part, bare=bare, depth=depth)
            for key, value in node.args.items()
            if value and key != "big_int"
            for part in (value if isinstance(value, list) else [value])
        )
        return f"{type(node).__name__}({','.join(parts)})"

    def _alias(self, column: exp.Column) -> exp.Expr | None:
        """The expression that a result name stands for, where one is used in ORDER BY, GROUP BY or HAVING."""
        if column.table:
            return None
        clause = column.find_ancestor(exp.Order, exp.Group, exp.Having, exp.Select)
        if clause is None or isinstance(clause, exp.Select) or not isinstance(clause.parent, exp.Query):
            return None
        name = column.name.lower()
        for item in next(branches(clause.parent)).expressions:
            shown = item.this if isinstance(item, exp.Alias) else None
            if shown is not None and item.alias.lower() == name:
                same = isinstance(shown, exp.Column) and shown.name.lower() == name and not shown.table
                return None if same else shown
        return None

    def _arguments(self, node: exp.AggFunc, depth: int) -> str:
        inner = node.this
        parts = inner.expressions if isinstance(inner, exp.Distinct) else [inner, *node.expressions]
        return ",".join(self.text(part, depth=depth) for part in parts if part is not None)

    def counted(self, node: exp.AggFunc) -> str:
        """``*`` for COUNT(*), and for COUNT of a column that is never NULL (or may never be, without a schema)."""
        inner = node.this
        if isinstance(inner, exp.Distinct):
            return ",".join(self.text(part) for part in inner.expressions)
        if isinstance(inner, exp.Column) and not inner.is_star:
            name = self.column(inner)
            return "*" if name in self.never_null or name.rpartition(".")[0] not in self.columns else name
        return "*" if isinstance(inner, (exp.Star, exp.Literal)) or inner is None else self.text(inner)

    def key(self, key: exp.Expr) -> str:
        """A key of GROUP BY or ORDER BY; a number is the column of the result at that place."""
        if isinstance(key, exp.Literal) and not key.is_string and key.this.isdigit():
            query = key.find_ancestor(exp.Query)
            items = next(branches(query)).expressions if query is not None else []
            place = int(key.this) - 1
            if 0 <= place < len(items):
                return self.text(items[place])
        return self.text(key)


def branches(tree: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs of a query from left to right: several for a set operation."""
    stack: list[exp.Expr] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Select):
            yield node
        elif isinstance(node, exp.SetOperation):
            stack += [node.expression, node.this]
        elif isinstance(node, (exp.Subquery, exp.Paren, exp.CTE)):
            stack.append(node.this)
        else:
            yield exp.Select()  # VALUES and the like show nothing that is known


def conjuncts(root: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that AND joins; BETWEEN gives its two bounds."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, exp.And):
            stack += [node.this, node.expression]
        elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
            for kind, bound in ((exp.GTE, "low"), (exp.LTE, "high")):
                part = kind(this=node.this.copy(), expression=node.args[bound].copy())
                part.parent = node.parent  # names resolve from where the condition stands
                yield part
        else:
            yield node


def is_aggregate(node: exp.Expr) -> bool:
    """SQLite's MIN and MAX of several arguments are plain functions."""
    return not (isinstance(node, (exp.Min, exp.Max)) and bool(node.expressions))


def _or(parts: Iterable[str]) -> str:
    texts = sorted(set(parts))
    return texts[0] if len(texts) == 1 else f"Or({','.join(texts)})"


def _sorted(*parts: str) -> str:
    return ",".join(sorted(parts))
