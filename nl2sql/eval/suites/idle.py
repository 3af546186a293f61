"""Changes of a query that cannot show in its answer, so that no neighbour is made of them.

Rules of thumb over one SELECT, for what is common. Where one errs, a neighbour is missing or one is made that nothing
can kill: no verdict on a database rests on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlglot import expressions as exp

from nl2sql.eval.suites.scopes import Ref, Scope, and_parts

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
