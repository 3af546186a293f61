"""Right queries made wrong: one structure of the outermost query removed. The other side of measuring a gate.

>>> remove_structure("SELECT city, COUNT(*) FROM customers GROUP BY city", "group_by")
'SELECT city, COUNT(*) FROM customers'
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nl2sql.agents.checks.constraints.shape import is_aggregate_call, outer_selects
from nl2sql.sql.parse import parse_bounded

if TYPE_CHECKING:
    from sqlglot import exp

STRUCTURES = ("aggregate", "group_by", "order_limit", "distinct")


def remove_structure(sql: str, structure: str) -> str | None:
    """The query without one structure in its outermost SELECTs (all legs of a set operation).

    Args:
        sql: one SELECT in SQLite's dialect.
        structure: ``aggregate`` (``AGG(x)`` in the SELECT list becomes ``x``, ``COUNT(*)`` becomes ``*``),
            ``group_by`` (HAVING goes with it), ``order_limit`` (ORDER BY, LIMIT and OFFSET) or ``distinct``
            (SELECT DISTINCT and COUNT(DISTINCT ...)).

    Returns:
        The remaining query, or None where the structure is not there or the SQL cannot be parsed. The result
        need not execute (``COUNT(*) / 2`` leaves ``* / 2``).
    """
    from sqlglot.errors import SqlglotError

    try:
        tree = parse_bounded(sql)
    except SqlglotError:
        return None
    legs = list(outer_selects(tree))
    remove = {
        "aggregate": _remove_aggregates,
        "group_by": _remove_groups,
        "order_limit": _remove_order,
        "distinct": _remove_distinct,
    }[structure]
    return tree.sql(dialect="sqlite") if remove(tree, legs) else None


def _own(leg: exp.Select) -> Iterator[exp.Expr]:
    """Nodes of the SELECT list that belong to no subquery."""
    from sqlglot import exp

    for projection in list(leg.expressions):
        yield from [node for node in projection.walk() if node.find_ancestor(exp.Select) is leg]


def _remove_aggregates(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    from sqlglot import exp

    changed = False
    for leg in legs:
        for node in [n for n in _own(leg) if is_aggregate_call(n) and not isinstance(n.parent, exp.Window)]:
            changed = True
            inner = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
            if isinstance(inner, exp.Distinct):
                inner = inner.expressions[0]
            bare = inner.copy() if isinstance(inner, exp.Expr) else exp.Star()
            holder = node.parent
            if isinstance(holder, exp.Alias) and isinstance(bare, exp.Star):  # a star takes no alias
                holder.replace(bare)
            else:
                node.replace(bare)
    return changed


def _remove_groups(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    grouped = [leg for leg in legs if leg.args.get("group")]
    for leg in grouped:
        leg.set("group", None)
        leg.set("having", None)
    return bool(grouped)


def _remove_order(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    changed = False
    for node in [tree, *legs]:
        for part in ("order", "limit", "offset"):
            changed = changed or bool(node.args.get(part))
            node.set(part, None)
    return changed


def _remove_distinct(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    from sqlglot import exp

    changed = False
    for leg in legs:
        changed = changed or bool(leg.args.get("distinct"))
        leg.set("distinct", None)
        for node in [n for n in _own(leg) if isinstance(n, exp.Distinct)]:
            node.replace(node.expressions[0])
            changed = True
    return changed
