"""The features of a query, read off its syntax tree: the groups by which scores are broken down.

>>> features("SELECT name FROM customers ORDER BY city LIMIT 1")["ordering"]
'order+limit'

``features(gold)`` gives one value per key of ``FEATURES``. The whole statement counts, subqueries and the branches of
set operations included, except for ``ordering``, which is that of the outermost query. No schema is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from nl2sql.sql.bounds import remember_short
from nl2sql.sql.parse import parse_bounded

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

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
