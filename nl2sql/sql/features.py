"""What is read off a query's syntax tree: the features by which scores are grouped, Spider's hardness, and a proof,
where it is easy, that its answer does not depend on the physical order of rows.

>>> features("SELECT name FROM customers ORDER BY city LIMIT 1")["ordering"]
'order+limit'

``features(gold)`` gives one value per key of ``FEATURES``. The whole statement counts, subqueries and the branches of
set operations included, except for ``ordering``, which is that of the outermost query. No schema is looked at.

>>> [hardness(f"SELECT name FROM shops {rest}") for rest in ("", "WHERE city = 1 ORDER BY name LIMIT 3")]
['easy', 'hard']

>>> order_free("SELECT name FROM customers"), order_free("SELECT name FROM customers LIMIT 1")
(True, False)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from sqlglot import exp
from sqlglot.expressions import Expr

from nl2sql.sql.canonical import is_aggregate
from nl2sql.sql.parse import parse_query, remember_short

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
    tree = parse_query(sql, dialect)
    if tree is None:
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
    above = node.parent
    while isinstance(above, exp.Subquery):
        above = above.parent
    return above


def _set_operation(tree: Expr) -> str:
    kinds = {type(node).__name__.lower() for node in tree.find_all(exp.SetOperation)}
    return "none" if not kinds else kinds.pop() if len(kinds) == 1 else "several"


def _grouping(tree: Expr) -> str:
    if tree.find(exp.Having):
        return "having"
    if tree.find(exp.Group):
        return "group"
    aggregates = (node for node in tree.find_all(exp.AggFunc) if not isinstance(node.parent, exp.Window))
    return "aggregate" if any(map(is_aggregate, aggregates)) else "none"


def _ordering(tree: Expr) -> str:
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
    tree = parse_query(sql, dialect)
    return None if tree is None else _level(*component_counts(tree))


def component_counts(tree: exp.Query) -> tuple[int, int, int]:
    """(component1, component2, others) of a parsed query: the three counts behind the level."""
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
    if root is None:
        return [], 0
    nodes = list(root.walk(prune=lambda node: not isinstance(node, (exp.Paren, exp.And, exp.Or))))
    conditions = [node for node in nodes if not isinstance(node, (exp.Paren, exp.And, exp.Or))]
    return conditions, sum(isinstance(node, exp.Or) for node in nodes)


def _is_negated(condition: Expr) -> bool:
    """NOT before a condition, or within it (NOT LIKE)."""
    inner = condition.this if isinstance(condition, exp.Escape) else condition
    return isinstance(inner, exp.Not) or bool(inner.args.get("negate"))


def _bare(condition: Expr) -> Expr:
    while isinstance(condition, (exp.Not, exp.Paren)):
        condition = condition.this
    return condition.this if isinstance(condition, exp.Escape) else condition


def _subqueries(root: Expr) -> int:
    """Queries inside an expression, not counting those inside another one."""

    def is_query(node: Expr) -> bool:
        return isinstance(node, exp.Query) and not isinstance(node, exp.Subquery)

    return sum(map(is_query, root.walk(prune=is_query)))


def _has_aggregate(root: Expr) -> bool:
    """Whether an aggregate is used in the expression itself (not in a query inside it)."""
    inside = root.walk(prune=lambda node: isinstance(node, exp.Query))
    return any(isinstance(node, exp.AggFunc) for node in inside)


# ------------------------------------------------------------------------------- is it free of the order of rows?

AGGREGATES = re.compile(
    r"\s*select\s+(?:(?:count|sum|avg|min|max)\s*\((?:(?!\bcollate\b)[^(),])*\)\s*(?:,\s*|(?=\bfrom\b)))+from\b",
    re.IGNORECASE,
)
SOUND = ("Count", "Sum", "Avg", "Min", "Max")  # aggregates that are the same in any order of their values
PLAIN_CHARS = 1000  # longer texts are always parsed
# Whatever lets the physical order in has one of these words, or calls something (plain aggregates alone do not).
SUSPECT = re.compile(
    r"\b(?:limit|offset|fetch|over|window|group|order|having|collate|rowid|oid|_rowid_)\b|\(\s*(?:select|with|values)\b"
    r"|[\w\"`\]](?<!\bin)(?<!\band)(?<!\bor)(?<!\bnot)(?<!\bwhere)(?<!\bon)\s*\(",
    re.IGNORECASE,
)


@remember_short(8192)
def order_free(sql: str, dialect: str = "sqlite") -> bool:
    """True only where the multiset of result rows (and, with an outermost ORDER BY, their order but for ties whose
    keys the result shows) is the same in whatever order the rows of the tables lie. False says nothing.

    What lets the physical order in: LIMIT, windows, aggregates other than ``SOUND``, functions we do not know, a column
    beside an aggregate that is no key of the GROUP BY, a scalar subquery of several rows, sort keys that are not shown,
    and COLLATE, which takes 'a' and 'A' for one and shows the first. Not seen: a collation of the column itself.
    """
    head = AGGREGATES.match(sql)
    plain = len(sql) <= PLAIN_CHARS and (head or sql.lstrip()[:6].lower() == "select")
    if plain and not SUSPECT.search(sql, head.end() if head else 0):
        return True  # as the tree would say, at a hundredth of the cost
    tree: Any = parse_query(sql, dialect)
    if tree is None:
        return False
    suspects = (exp.Limit, exp.Offset, exp.Fetch, exp.Window, exp.Anonymous, exp.Collate, exp.Rand)
    if next(tree.find_all(*suspects), None) is not None:
        return False
    if any(type(call).__name__ not in SOUND for call in tree.find_all(exp.AggFunc)):
        return False
    if any(column.name.lower() in ("rowid", "oid", "_rowid_") for column in tree.find_all(exp.Column)):
        return False
    if not all(_grouped_soundly(select) for select in tree.find_all(exp.Select)):
        return False
    if not all(_single_row(query) for query in tree.find_all(exp.Subquery) if _is_scalar(query)):
        return False
    order = tree.args.get("order")
    if order is None:
        return True
    shown = {text.lower() for item in tree.selects for text in (item.unalias().sql(dialect), item.alias_or_name)}
    return all(
        key.this.sql(dialect).lower() in shown or (isinstance(key.this, exp.Literal) and key.this.is_int)
        for key in order.expressions
    )


def _grouped_soundly(select: Any) -> bool:
    """Whether a query that groups shows and tests only its keys and aggregates."""
    group, having = select.args.get("group"), select.args.get("having")
    parts = [*select.selects, *([having] if having else [])]
    aggregates = (each for part in parts for each in part.find_all(exp.AggFunc) if is_aggregate(each))
    if not group and not having and next(aggregates, None) is None:
        return True
    keys = {key.sql("sqlite").lower() for key in (group.expressions if group else ())}
    for part in parts:
        for column in part.find_all(exp.Column, exp.Star):
            inside = column.find_ancestor(exp.AggFunc, exp.Select)
            while isinstance(inside, exp.AggFunc) and not is_aggregate(inside):
                inside = inside.find_ancestor(exp.AggFunc, exp.Select)
            if isinstance(inside, exp.AggFunc):
                continue
            if inside is not select or column.sql("sqlite").lower() not in keys:
                return False
    return True


def _is_scalar(query: Expr) -> bool:
    return not isinstance(query.parent, (exp.From, exp.Join, exp.In, exp.Exists, exp.SetOperation, exp.Subquery))


def _single_row(query: Any) -> bool:
    select = query.this
    return (
        isinstance(select, exp.Select)
        and not select.args.get("group")
        and len(select.selects) == 1
        and select.selects[0].find(exp.AggFunc) is not None
    )
