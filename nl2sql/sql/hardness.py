"""Spider's hardness of a query (easy, medium, hard, extra), read off its SQL with sqlglot.

>>> [hardness(f"SELECT name FROM shops {rest}") for rest in ("", "WHERE city = 1 ORDER BY name LIMIT 3")]
['easy', 'hard']

The counting rules are those of Spider's ``evaluation.py`` (``eval_hardness``), quirks included: only the leftmost
SELECT of a set operation is counted, a subquery in FROM is not nesting, a negated condition counts as an
aggregate, and so does every AND/OR of a HAVING clause.

Two things Spider's grammar does not have are given a place: each common table expression, and each subquery in
the SELECT list or in ORDER BY, counts as one nested query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from nl2sql.sql.bounds import remember_short
from nl2sql.sql.parse import parse_bounded

if TYPE_CHECKING:
    from sqlglot import expressions as exp
    from sqlglot.expressions import Expr

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
