"""The features of a query by which scores are grouped, and Spider's hardness, read off its syntax tree.

>>> features("SELECT name FROM customers ORDER BY city LIMIT 1")["ordering"]
'order+limit'

``features(gold)`` gives one value per key of ``FEATURES``. The whole statement counts, subqueries and the branches of
set operations included, except for ``ordering``, which is that of the outermost query. No schema is looked at.

>>> [hardness(f"SELECT name FROM shops {rest}") for rest in ("", "WHERE city = 1 ORDER BY name LIMIT 3")]
['easy', 'hard']
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from nl2sql.sql.parse import parse_bounded, remember_short

if TYPE_CHECKING:
    from sqlglot import expressions as exp
    from sqlglot.expressions import Expr


# ----------------------------------------------------------------------------------------- features

UNKNOWN = "unknown"  # the value of every feature of a text that cannot be parsed as a query

# Feature -> its values, in the order in which a table shows them.
FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "joins": ("0", "1", "2", "3+"),  # join operators (commas too), wherever they stand
        "nesting": ("0", "1", "2+"),  # depth of queries inside queries; a CTE or a subquery in FROM is one level
        "set_operation": ("none", "union", "intersect", "except", "several"),
        "grouping": ("none", "aggregate", "group", "having"),  # the richest one that occurs; a window is none
        "ordering": ("none", "order", "limit", "order+limit"),
    }
)


@remember_short(8192)
def _features(sql: str, dialect: str) -> tuple[tuple[str, str], ...]:
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        tree: Expr = parse_bounded(sql, dialect)
    except (SqlglotError, RecursionError):
        return tuple((name, UNKNOWN) for name in FEATURES)
    if not isinstance(tree, exp.Query):
        return tuple((name, UNKNOWN) for name in FEATURES)
    joins = len(list(tree.find_all(exp.Join)))
    depth = _depth(tree)
    values = {
        "joins": str(joins) if joins < 3 else "3+",
        "nesting": str(depth) if depth < 2 else "2+",
        "set_operation": _set_operation(tree),
        "grouping": _grouping(tree),
        "ordering": _ordering(tree),
    }
    return tuple(values.items())


def features(sql: str, dialect: str = "sqlite") -> dict[str, str]:
    """Feature -> value (see ``FEATURES``); ``unknown`` throughout for what sqlglot cannot parse as a query."""
    return dict(_features(sql, dialect))


def _depth(root: Expr) -> int:
    """The depth of queries that lie inside one another. The branches of a set operation stand beside each other."""
    from sqlglot import expressions as exp

    deepest, stack = 0, [(root, -1)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, exp.Query) and not isinstance(node, exp.Subquery):
            if not isinstance(_query_above(node), exp.SetOperation):
                depth += 1
            deepest = max(deepest, depth)
        stack += [(child, depth) for child in node.iter_expressions()]
    return deepest


def _query_above(node: Expr) -> Expr | None:
    """The parent, seen through brackets: ``(SELECT ...) UNION ...`` is a branch, not a subquery."""
    from sqlglot import expressions as exp

    above = node.parent
    while isinstance(above, exp.Subquery):
        above = above.parent
    return above


def _set_operation(tree: Expr) -> str:
    from sqlglot import expressions as exp

    kinds = {type(node).__name__.lower() for node in tree.find_all(exp.SetOperation)}
    return "none" if not kinds else kinds.pop() if len(kinds) == 1 else "several"


def _grouping(tree: Expr) -> str:
    from sqlglot import expressions as exp

    from nl2sql.sql.canonical import is_aggregate

    if tree.find(exp.Having):
        return "having"
    if tree.find(exp.Group):
        return "group"
    aggregates = (node for node in tree.find_all(exp.AggFunc) if not isinstance(node.parent, exp.Window))
    return "aggregate" if any(map(is_aggregate, aggregates)) else "none"


def _ordering(tree: Expr) -> str:
    from sqlglot import expressions as exp

    while isinstance(tree, exp.Subquery) and not (tree.args.get("order") or tree.args.get("limit")):
        tree = tree.this
    parts = [name for name in ("order", "limit") if tree.args.get(name)]
    return "+".join(parts) or "none"


# -------------------------------------------------------------------------------- Spider's hardness
# The counting rules are those of Spider's ``evaluation.py`` (``eval_hardness``), quirks included:
# only the leftmost SELECT of a set operation is counted, a subquery in FROM is not nesting, a
# negated condition counts as an aggregate, and so does every AND/OR of a HAVING clause.
#
# Two things Spider's grammar does not have are given a place: each common table expression, and
# each subquery in the SELECT list or in ORDER BY, counts as one nested query.

Hardness: TypeAlias = Literal["easy", "medium", "hard", "extra"]
LEVELS: tuple[Hardness, ...] = ("easy", "medium", "hard", "extra")


@remember_short(8192)
def hardness(sql: str, dialect: str = "sqlite") -> Hardness | None:
    """The level of one query, or None where it cannot be parsed as a query."""
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return None
    if not isinstance(tree, exp.Query):
        return None
    return _level(*component_counts(tree))


def component_counts(tree: exp.Query) -> tuple[int, int, int]:
    """(component1, component2, others) of a parsed query: the three counts behind the level."""
    from sqlglot import expressions as exp

    set_operations, nested_ctes = 0, len(tree.ctes)
    node: Expr = tree
    while not isinstance(node, exp.Select):
        if isinstance(node, exp.SetOperation):
            set_operations = 1  # a chain A UNION B UNION C nests to the right: one at the top
            node = node.this
        elif isinstance(node, exp.Subquery):
            node = node.this
        else:  # VALUES and the like: nothing to count
            return 0, set_operations, 0
    select = node
    where, group, order, having = (select.args.get(key) for key in ("where", "group", "order", "having"))
    joins = select.args.get("joins") or []
    where_conditions, where_ors = _conditions(where.this if where else None)
    having_conditions, having_ors = _conditions(having.this if having else None)
    join_conditions, join_ors = [], 0
    for join in joins:
        conditions, ors = _conditions(join.args.get("on"))
        join_conditions += conditions
        join_ors += ors
    conditions = join_conditions + where_conditions + having_conditions

    component1 = sum(bool(part) for part in (where, group, order, select.args.get("limit"))) + len(joins)
    component1 += where_ors + having_ors + join_ors
    component1 += sum(isinstance(_bare(condition), (exp.Like, exp.ILike)) for condition in conditions)

    in_select = [*select.expressions, *(order.expressions if order else [])]
    component2 = set_operations + nested_ctes
    component2 += sum(_subqueries(part) for part in [*conditions, *in_select])

    aggregates = sum(_has_aggregate(item) for item in in_select)
    aggregates += sum(_is_negated(condition) for condition in (*where_conditions, *having_conditions))
    aggregates += max(0, len(having_conditions) - 1)
    groups = len(group.expressions) if group else 0
    others = sum((aggregates > 1, len(select.expressions) > 1, len(where_conditions) > 1, groups > 1))
    return component1, component2, others


def _level(component1: int, component2: int, others: int) -> Hardness:
    if component2 == 0:
        if component1 <= 1 and others == 0:
            return "easy"
        if (others <= 2 and component1 <= 1) or (component1 <= 2 and others < 2):
            return "medium"
        if (others > 2 and component1 <= 2) or (2 < component1 <= 3 and others <= 2):
            return "hard"
    return "hard" if component1 <= 1 and others == 0 and component2 <= 1 else "extra"


def _conditions(root: Expr | None) -> tuple[list[Expr], int]:
    """The single conditions under a tree of AND, OR and brackets, and how many ORs join them."""
    from sqlglot import expressions as exp

    conditions: list[Expr] = []
    ors, stack = 0, [root] if root is not None else []
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Paren):
            stack.append(node.this)
        elif isinstance(node, (exp.And, exp.Or)):
            ors += isinstance(node, exp.Or)
            stack += [node.this, node.expression]
        else:
            conditions.append(node)
    return conditions, ors


def _is_negated(condition: Expr) -> bool:
    """NOT before a condition, or within it (NOT LIKE)."""
    from sqlglot import expressions as exp

    inner = condition.this if isinstance(condition, exp.Escape) else condition
    return isinstance(inner, exp.Not) or bool(inner.args.get("negate"))


def _bare(condition: Expr) -> Expr:
    from sqlglot import expressions as exp

    while isinstance(condition, (exp.Not, exp.Paren)):
        condition = condition.this
    return condition.this if isinstance(condition, exp.Escape) else condition


def _subqueries(root: Expr) -> int:
    """Queries inside an expression, not counting those inside another one."""
    from sqlglot import expressions as exp

    count, stack = 0, [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Query) and not isinstance(node, exp.Subquery):
            count += 1
        else:
            stack += list(node.iter_expressions())
    return count


def _has_aggregate(root: Expr) -> bool:
    """Whether an aggregate is used in the expression itself (not in a query inside it)."""
    from sqlglot import expressions as exp

    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.AggFunc):
            return True
        if not isinstance(node, exp.Query):
            stack += list(node.iter_expressions())
    return False
