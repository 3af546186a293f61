"""The respects in which two queries differ: their syntax trees are compared facet by facet, writing habits taken away.

>>> sorted(differing("SELECT name FROM customers", "SELECT DISTINCT city FROM customers"))
['distinct', 'projection']

Taken away: case, aliases, the order of columns, tables and conditions, ``a > b`` for ``b < a``, BETWEEN for two bounds,
IN over values for OR, commas for JOIN, joins for IN over a query, which side of a join a column is taken from,
``COUNT(key)`` for ``COUNT(*)``, GROUP BY for DISTINCT where that is all it does. Columns are named by their table, also
through derived tables and CTEs, as far as the schema (or a prefix) tells it.

Not covered: which use of a table a column belongs to where the table is used twice; functions that mean the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

from sqlglot import exp

from nl2sql.sql.canonical import MAX_DEPTH, STAR, Canonical, branches, conjuncts, is_aggregate
from nl2sql.sql.parse import parse_query, remember_short

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema

Edge: TypeAlias = frozenset[str]  # the two columns of a join condition, and NOT_IN where rows must not match
NOT_IN = "not in"


@dataclass(frozen=True)
class Facets:
    """One query, facet by facet; every value compares with ``==``."""

    tables: frozenset[str]  # the base tables of the whole statement
    table_uses: Hashable  # how often each is used
    edges: frozenset[Edge]
    outer_joins: Hashable
    aggregates: Hashable  # aggregate functions by name, where they are selected or stand in HAVING
    grouped: bool
    group_uses: int  # how many queries inside the statement are grouped
    group_keys: frozenset[str]
    having: Hashable  # what HAVING compares; its operators and values are filters
    counted: Hashable  # the arguments of COUNT
    counted_distinct: Hashable
    filters: Hashable
    projection: Hashable
    order: Hashable
    limit: Hashable
    distinct: Hashable
    distinct_aggregates: Hashable
    set_operations: Hashable


def differing(gold_sql: str, predicted_sql: str, schema: Schema | None = None) -> frozenset[str] | None:
    """The names of the facets in which the two queries differ; None where one of them cannot be parsed."""
    trees = _parsed(gold_sql), _parsed(predicted_sql)
    if trees[0] is None or trees[1] is None:
        return None
    readers = [_Reader(tree.copy(), schema) for tree in trees if tree is not None]
    try:
        merged = _merged(edge for reader in readers for edge in reader.edges() if reader.inner)
        one_groups = len({reader.tree.find(exp.Group) is None for reader in readers}) == 2
        gold, predicted = (reader.facets(merged, groups_as_distinct=one_groups) for reader in readers)
    except RecursionError:
        return None
    names = {field.name for field in fields(Facets) if getattr(gold, field.name) != getattr(predicted, field.name)}
    if "distinct_aggregates" in names:
        names -= {"counted", "counted_distinct"}  # COUNT(DISTINCT a) for COUNT(a) or COUNT(*): one mistake
    if all(reader.shows_everything for reader in readers):
        names.discard("projection")  # other columns come from other tables only
    if not gold.order and gold.limit == predicted.limit == ():
        names.discard("order")  # nobody asked for an order: an additional one is no mistake
    return frozenset(names)


_parsed = remember_short(128)(parse_query)


def _merged(edges: Iterable[Edge]) -> dict[str, str]:
    """Column -> the first by name of those that joins make equal to it."""
    groups: dict[str, set[str]] = {}
    for edge in edges:
        if NOT_IN in edge or len({column.rpartition(".")[0] for column in edge}) < 2:
            continue  # parent and child rows of one table are joined, not equal
        together = set().union(*(groups.get(column, {column}) for column in edge))
        groups.update(dict.fromkeys(together, together))
    return {column: min(group) for column, group in groups.items()}


class _Reader:
    """Reads the facets off one tree."""

    def __init__(self, tree: exp.Query, schema: Schema | None) -> None:
        self.tree = tree
        self.names = Canonical(tree, schema)
        self.selects = list(tree.find_all(exp.Select))
        self.top = list(branches(tree))
        self.shows_everything = all(isinstance(item, exp.Star) for item in self.top[0].expressions)
        self.inner = not any(join.side for join in tree.find_all(exp.Join))

    def facets(self, merged: Mapping[str, str], *, groups_as_distinct: bool) -> Facets:
        """``groups_as_distinct``: a GROUP BY that only removes duplicates is read as the DISTINCT that it is."""
        conditions = [
            (place, part) for place, root in self._condition_roots() for part in conjuncts(root) if part is not None
        ]
        edges = self.edges()  # before merging: an edge is made of the columns as written
        self.names.merged = merged
        filters: Counter[str] = Counter()
        having: Counter[str] = Counter()
        for place, part in conditions:
            edge = self._edge(part)
            if edge is not None:
                filters.update({NOT_IN} & edge)
                continue
            if place == "having" and any(map(is_aggregate, part.find_all(exp.AggFunc))):
                having.update(self.names.text(side) for side in _operands(part))
                filters[_comparison(part)] += 1
            else:
                filters[self.names.text(part)] += 1
        tables = [table.name.lower() for table in self.names.tables()]
        plain_grouping = self._groups_to_make_distinct() if groups_as_distinct else set()
        groups = [s.args["group"] for s in self.selects if s.args.get("group") and id(s) not in plain_grouping]
        derived = [s for s in self.selects if isinstance(s.parent, exp.Subquery) and _is_source(s.parent)]
        aggregates = [node for node in self.tree.find_all(exp.AggFunc) if self._counts(node)]
        counts = [node for node in aggregates if isinstance(node, exp.Count)]
        return Facets(
            tables=frozenset(tables),
            table_uses=_bag(tables),
            edges=frozenset(edges),
            outer_joins=_bag(join.side for join in self.tree.find_all(exp.Join) if join.side),
            aggregates=_bag(type(node).__name__ for node in aggregates),
            grouped=bool(groups),
            group_uses=len(groups),
            group_keys=frozenset(self.names.key(key) for group in groups for key in group.expressions),
            having=_bag(having.elements()),
            counted=_bag(self.names.counted(node) for node in counts if not isinstance(node.this, exp.Distinct)),
            counted_distinct=_bag(self.names.counted(node) for node in counts if isinstance(node.this, exp.Distinct)),
            filters=_bag(filters.elements()),
            projection=(
                _bag(self._shown(self.top[0])),
                frozenset(item for select in self.top for item in self._shown(select)),
                _bag(item for select in self._compared() for item in self._shown(select)),
            ),
            order=_bag(self._orders()),
            limit=tuple(sorted(self._limits())),
            distinct=(
                tuple(bool(s.args.get("distinct")) or id(s) in plain_grouping for s in self.top),
                _bag(not node.args.get("distinct") for node in self.tree.find_all(exp.SetOperation)),
                sum(bool(s.args.get("distinct")) for s in derived),
            ),
            distinct_aggregates=sum(isinstance(node.this, exp.Distinct) for node in aggregates),
            set_operations=_bag(type(node).__name__ for node in self.tree.find_all(exp.SetOperation)),
        )

    # ----------------------------------------------------------------------------------------------- facets

    def _condition_roots(self) -> Iterator[tuple[str, exp.Expr]]:
        for select in self.selects:
            for place in ("where", "having"):
                if select.args.get(place):
                    yield place, select.args[place].this
            for join in select.args.get("joins") or ():
                if join.args.get("on"):
                    yield "on", join.args["on"]

    def edges(self) -> set[Edge]:
        """The pairs of columns by which rows are matched: in ON and WHERE, USING, IN over a query."""
        edges = {self._edge(part) for _, root in self._condition_roots() for part in conjuncts(root)}
        for join in self.tree.find_all(exp.Join):
            edges |= {frozenset({f"using.{name.name.lower()}"}) for name in join.args.get("using") or ()}
            if join.args.get("method"):
                edges.add(frozenset({f"using.{join.args['method']}"}))
        return {edge for edge in edges if edge is not None}

    def _edge(self, part: exp.Expr) -> Edge | None:
        if isinstance(part, exp.EQ) and isinstance(part.this, exp.Column) and isinstance(part.expression, exp.Column):
            left, right = self.names.column(part.this), self.names.column(part.expression)
            return frozenset({left, right}) if left != right or part.this.table != part.expression.table else None
        negated = isinstance(part, exp.Not)
        part = part.this if negated else part
        query = part.args.get("query") if isinstance(part, exp.In) else None
        if query is not None and isinstance(part.this, exp.Column):
            items = next(branches(query)).expressions
            if len(items) == 1 and isinstance(items[0].unalias(), exp.Column) and not items[0].is_star:
                both = {self.names.column(part.this), self.names.column(items[0].unalias())}
                return frozenset(both | {NOT_IN} if negated else both)
        return None

    def _counts(self, node: exp.AggFunc) -> bool:
        """Whether an aggregate is one of results: not in ORDER BY (that is order), not over a window."""
        return (
            is_aggregate(node)
            and not isinstance(node.parent, exp.Window)
            and not isinstance(node.find_ancestor(exp.Order, exp.Select), exp.Order)
        )

    def _shown(self, select: exp.Select) -> list[str]:
        return [text for item in select.expressions for text in self._items(select, item, 0)]

    def _items(self, select: exp.Select, item: exp.Expr, depth: int) -> Iterator[str]:
        """The texts of one item of a SELECT list: several for ``*`` and ``t.*``."""
        if not item.is_star or isinstance(item, exp.Count):
            yield self.names.text(item, bare=True)
            return
        prefix = item.table.lower() if isinstance(item, exp.Column) else ""
        for name, source in self.names.sources(select).items():
            if prefix and prefix != name:
                continue
            if isinstance(source, str):
                columns = [f"{source}.{column}" for column in self.names.columns.get(source, [STAR])]
                yield from (self.names.merged.get(column, column) for column in columns)
            elif depth < MAX_DEPTH:
                inner = next(branches(source))
                for part in inner.expressions:
                    yield from self._items(inner, part, depth + 1)

    def _compared(self) -> Iterator[exp.Select]:
        """Subqueries whose value is compared: what they select matters as what the result shows does."""
        for select in self.selects:
            outside = select.parent.parent if isinstance(select.parent, exp.Subquery) else None
            if isinstance(outside, exp.Binary) and not isinstance(outside, exp.SetOperation):
                yield select

    def _orders(self) -> Iterator[tuple[int, int, str, bool]]:
        for node in self.tree.find_all(exp.Order):
            if isinstance(node.parent, exp.Query):
                inner = int(node.parent is not self.tree)
                for place, key in enumerate(node.expressions):
                    yield inner, place, self.names.key(key.this), bool(key.args.get("desc"))

    def _limits(self) -> Iterator[tuple[int, str]]:
        for node in self.tree.find_all(exp.Limit, exp.Offset):
            if not (isinstance(node, exp.Offset) and node.expression.sql() == "0"):
                yield int(node.parent is not self.tree), f"{type(node).__name__} {node.expression.sql()}"

    def _groups_to_make_distinct(self) -> set[int]:
        """SELECTs whose GROUP BY does what DISTINCT would: it groups by all that is shown, and aggregates nothing."""
        groups = set()
        for select in self.selects:
            group = select.args.get("group")
            if group is None or select.args.get("having"):
                continue
            parts = [*select.expressions, select.args.get("order")]
            if any(part is not None and part.find(exp.AggFunc) for part in parts):
                continue
            if {self.names.key(key) for key in group.expressions} == {
                self.names.text(item) for item in select.expressions
            }:
                groups.add(id(select))
        return groups


def _is_source(node: exp.Subquery) -> bool:
    return isinstance(node.parent, (exp.From, exp.Join))


def _operands(part: exp.Expr) -> list[exp.Expr]:
    sides = [part.args.get("this"), part.args.get("expression")] if isinstance(part, exp.Binary) else [part]
    return [side for side in sides if side is not None and not _is_constant(side)]


def _comparison(part: exp.Expr) -> str:
    """A condition on an aggregate without what it compares: its operator and its values."""
    sides = [part.args.get("this"), part.args.get("expression")] if isinstance(part, exp.Binary) else [part]
    shown = [side.sql() if side is not None and _is_constant(side) else "?" for side in sides]
    if not isinstance(part, exp.Binary):
        shown += sorted(literal.sql() for literal in part.find_all(exp.Literal))
    return f"having {type(part).__name__} {shown}"


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.AggFunc, exp.Query, exp.Star) is None


def _bag(values: Iterable[Hashable]) -> frozenset[tuple[Hashable, int]]:
    return frozenset(Counter(values).items())
