"""The tree that every mutation changes for a moment: what its columns mean, and which changes cannot show.

A mutation changes the tree in place, writes it down (``emit``), and puts it back (``put``, ``setting``).

>>> constant_value(exp.Neg(this=exp.Literal.number(3)))
-3

>>> [part.sql() for part in and_parts(exp.condition("a = 1 AND (b = 2 OR c)"))]
['a = 1', 'b = 2 OR c']
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp

from nl2sql.eval.suites.source import SourceDatabase, TableSource

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


# ----------------------------------------------------------- changes that cannot show in the answer
# Rules of thumb over one SELECT, for what is common. Where one errs, a neighbour is missing or one
# is made that nothing can kill: no verdict on a database rests on them.

AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
REJECTING = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like, exp.In, exp.Between)


def never_null(scope: Scope, ref: Ref) -> bool:
    """No row that passes the conditions has NULL in this column."""
    return ref in _tested(scope) or not null_before_conditions(scope, ref)


def null_before_conditions(scope: Scope, ref: Ref) -> bool:
    """The column may hold NULL, by the schema or by an outer join."""
    return ref[0] in _filled(scope) or scope.table(ref).nullable[ref[1]]


def nulls_ignored(scope: Scope, ref: Ref) -> bool:
    """The one row that is shown holds aggregates of this column alone."""
    items = [item.unalias() for item in scope.select.expressions]
    if scope.select.args.get("group") or scope.select.args.get("having"):
        return False
    return all(isinstance(item, AGGREGATES) and scope.ref(_argument(item)) == ref for item in items)


def one_row(scope: Scope) -> bool:
    """At most one row: aggregates without GROUP BY, or a whole key is fixed."""
    select = scope.select
    if select.args.get("group"):
        return False
    nodes = [node for item in select.expressions for node in item.find_all(*AGGREGATES)]
    plain = any(
        node.find_ancestor(exp.Select) is select
        and node.find_ancestor(exp.Window) is None
        and not node.args.get("expressions")  # MAX(a, b) is no aggregate
        for node in nodes
    )
    return plain or _holds_key(scope, fixed(scope))


def distinct_is_idle(scope: Scope) -> bool:
    """The rows differ already, or nobody sees whether they do."""
    select = scope.select
    if one_row(scope) or _duplicates_unseen(select):
        return True
    items = [item.unalias() for item in select.expressions]
    group = select.args.get("group")
    if group:
        texts = {item.sql("sqlite").lower() for item in items}
        names = {item.alias.lower() for item in select.expressions if item.alias}
        return all(key.sql("sqlite").lower() in texts | names for key in group.expressions)
    everything = any(isinstance(item, exp.Star) for item in items)
    return _holds_key(scope, scope.refs() if everything else _refs(scope, items))


def counted_once(scope: Scope, node: exp.Expr) -> bool:
    """No value of the column that is counted occurs twice within a group."""
    group = scope.select.args.get("group")
    return _holds_key(scope, _refs(scope, [node, *(group.expressions if group else ())]))


def outer_join_is_idle(scope: Scope, join: exp.Join, side: str) -> bool:
    """INNER and ``side`` JOIN give the same: every row has a partner, or a condition drops those without."""
    first = scope.select.args["from_"].this.alias_or_name.lower()
    lonely = first if side == "RIGHT" else join.this.alias_or_name.lower()
    if any(ref[0] == lonely for ref in _tested(scope, besides=join)):
        return True
    condition = join.args["on"]
    if not isinstance(condition, exp.EQ):
        return False
    left, right = scope.ref(condition.this), scope.ref(condition.expression)
    return _refers(scope, left, right, lonely) or _refers(scope, right, left, lonely)


def key_is_idle(scope: Scope, keys: Sequence[exp.Expr], ref: Ref) -> bool:
    """Grouping by ``keys`` and by ``keys`` with this column is the same: they hold a key of its table."""
    known = set(_refs(scope, keys))
    known |= {b for pair in _equated(scope) for a, b in (pair, pair[::-1]) if a in known}
    return ref in known or _holds(scope, ref[0], known)


def equated(scope: Scope, left: Ref, right: Ref) -> bool:
    """A join or a condition says that the two columns are equal."""
    return any({left, right} == set(pair) for pair in _equated(scope))


def fixed(scope: Scope) -> set[Ref]:
    """Columns that WHERE equates with a constant."""
    parts = and_parts(scope.select.args["where"].this if scope.select.args.get("where") else None)
    equal = [part for part in parts if isinstance(part, exp.EQ) and isinstance(part.expression, exp.Literal)]
    return set(_refs(scope, [part.this for part in equal]))


def _argument(node: exp.Expr) -> Any:
    inner = node.this
    return inner.expressions[0] if isinstance(inner, exp.Distinct) and inner.expressions else inner


def _refs(scope: Scope, nodes: Iterable[Any]) -> list[Ref]:
    return [ref for node in nodes if (ref := scope.ref(node))]


def _held(scope: Scope, besides: exp.Join | None = None) -> Iterator[exp.Expr]:
    """Conditions that every row passes: of WHERE and of the inner joins, but for one join."""
    select = scope.select
    yield from and_parts(select.args["where"].this if select.args.get("where") else None)
    for join in select.args.get("joins") or []:
        if not join.side and join is not besides:
            yield from and_parts(join.args.get("on"))


def _tested(scope: Scope, besides: exp.Join | None = None) -> set[Ref]:
    """Columns whose NULL fails a condition."""
    return {ref for part in _held(scope, besides) for ref in _failing(scope, part)}


def _failing(scope: Scope, part: exp.Expr) -> set[Ref]:
    """Columns whose NULL fails this condition."""
    if isinstance(part, exp.Paren):
        return _failing(scope, part.this)
    if isinstance(part, exp.Or):
        return _failing(scope, part.this) & _failing(scope, part.expression)
    inner = part.this if isinstance(part, exp.Not) else part
    if isinstance(inner, REJECTING) or (isinstance(inner, exp.Is) and inner is not part):
        return set(_refs(scope, [inner.this, inner.args.get("expression")]))
    return set()


def _equated(scope: Scope) -> list[tuple[Ref, Ref]]:
    sides = [(scope.ref(part.this), scope.ref(part.expression)) for part in _held(scope) if isinstance(part, exp.EQ)]
    return [(left, right) for left, right in sides if left and right]


def _filled(scope: Scope) -> set[str]:
    """Aliases whose rows an outer join may fill with NULLs."""
    aliases: set[str] = set()
    source = scope.select.args.get("from_")
    seen = {source.this.alias_or_name.lower()} if source else set()
    for join in scope.select.args.get("joins") or []:
        side, alias = (join.side or "").upper(), join.this.alias_or_name.lower()
        aliases |= {alias} if side in ("LEFT", "FULL") else set()
        aliases |= seen if side in ("RIGHT", "FULL") else set()
        seen.add(alias)
    return aliases


def _holds_key(scope: Scope, refs: Iterable[Ref]) -> bool:
    """The only table's columns ``refs`` tell its rows apart."""
    return len(scope.sources) == 1 and _holds(scope, next(iter(scope.sources)), set(refs))


def _holds(scope: Scope, alias: str, refs: set[Ref]) -> bool:
    table = scope.sources[alias]
    keys = table.unique if table is not None else ()
    return any(all((alias, c) in refs and never_null(scope, (alias, c)) for c in key) for key in keys)


def _refers(scope: Scope, child: Ref | None, parent: Ref | None, lonely: str) -> bool:
    """A foreign key that is never NULL, and the column of ``lonely`` that it refers to."""
    if child is None or parent is None or parent[0] != lonely or null_before_conditions(scope, child):
        return False
    wanted = ((child[1],), scope.table(parent).name, (parent[1],))
    return any((key.columns, key.parent, key.parent_columns) == wanted for key in scope.table(child).foreign_keys)


def _duplicates_unseen(select: exp.Select) -> bool:
    """Inside IN or EXISTS, or an operand of a set operation that drops duplicates."""
    above: exp.Expr | None = select.parent
    if select.args.get("limit"):
        return False
    if isinstance(above, (exp.Union, exp.Intersect, exp.Except)):
        return bool(above.args.get("distinct"))
    above = above.parent if isinstance(above, exp.Subquery) else above
    return isinstance(above, (exp.In, exp.Exists))


# ------------------------------------------------------------------------- the tree and its SELECTs

PER_SITE = 4  # columns tried in place of one column, values in place of one constant
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
SET_OPERATIONS = (exp.Union, exp.Intersect, exp.Except)

NULLS, TIES, REPEATS = ("NULLs",), ("ties",), ("repeats",)  # ... NULLs, values that occur twice, rows that nearly do


@dataclass(frozen=True)
class Neighbour:
    kind: str
    sql: str
    touches: tuple[str, int, Any] | None = None  # table, column and what of it tells the two apart: a constant or ...


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

    def emit(self, kind: str, touches: tuple[str, int, Any] | None = None) -> None:
        sql = self.text()
        self.neighbours.setdefault(sql, Neighbour(kind, sql, touches))

    def swap(
        self,
        kind: str,
        node: exp.Expr,
        new: exp.Expr,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        with put(node, new):
            self.emit(kind, touches)

    def touch(self, scope: Scope, ref: Ref | None, what: Any) -> tuple[str, int, Any] | None:
        return (scope.table(ref).name, ref[1], what) if ref else None

    def nodes(self, *kinds: type[Any]) -> list[Any]:
        return list(self.holder.find_all(*kinds))

    def scope_of(self, node: exp.Expr) -> Scope | None:
        select = node.find_ancestor(exp.Select)
        return self.scopes.get(id(select)) if select else None

    def with_condition(
        self,
        kind: str,
        scope: Scope,
        condition: exp.Expr,
        touches: tuple[str, int, Any] | None = None,
    ) -> None:
        select = scope.select
        where = select.args.get("where")
        if where is None:
            with setting(select, "where", exp.Where(this=condition)):
                self.emit(kind, touches)
        else:
            old = where.this
            left = exp.Paren(this=old.copy()) if isinstance(old, exp.Or) else old.copy()
            with setting(where, "this", exp.And(this=left, expression=condition)):
                self.emit(kind, touches)

    def some_refs(self, scope: Scope, count: int) -> list[Ref]:
        refs = list(scope.refs())
        return self.rng.sample(refs, min(count, len(refs)))


@contextmanager
def put(node: exp.Expr, new: exp.Expr) -> Iterator[None]:
    """``new`` in the place of ``node`` for a while."""
    node.replace(new)
    try:
        yield
    finally:
        new.replace(node)


@contextmanager
def setting(node: exp.Expr, key: str, value: Any) -> Iterator[None]:
    """Another value of one argument of ``node`` for a while."""
    old = node.args.get(key)
    node.set(key, value)
    try:
        yield
    finally:
        node.set(key, old)


def in_on(node: exp.Expr) -> bool:
    join = node.find_ancestor(exp.Join, exp.Select)
    return isinstance(join, exp.Join)


def within(node: exp.Expr, ancestor: exp.Expr) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if above is ancestor:
            return True
        above = above.parent
    return False


def condition_of(node: exp.Expr) -> exp.Expr | None:
    return node.find_ancestor(*COMPARISONS, exp.Select)


def own_values(scope: Scope, ref: Ref) -> list[Any]:
    """Values of the column in the original that are of its type and can be written as a constant."""
    table = scope.table(ref)
    kind = (int, float) if table.numeric[ref[1]] else str
    values = dict.fromkeys(row[ref[1]] for row in table.rows[:60] if isinstance(row[ref[1]], kind))
    return [v for v in values if not isinstance(v, str) or (0 < len(v) < 60 and v.isprintable())]


def same_value(value: Any, text: str) -> bool:
    try:
        return str(value) == text or (not isinstance(value, str) and float(value) == float(text))
    except ValueError:
        return False


def number(value: float) -> exp.Expr:
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
