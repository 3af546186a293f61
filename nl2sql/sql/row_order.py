"""A proof by syntax, where it is easy, that the answer of a query does not depend on the physical order of rows.

>>> order_free("SELECT name FROM customers"), order_free("SELECT name FROM customers LIMIT 1")
(True, False)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nl2sql.sql.parse import parse_bounded, remember_short

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


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
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        tree: Any = parse_bounded(sql, dialect)
    except SqlglotError:
        return False
    if not isinstance(tree, exp.Query):
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
    from sqlglot import expressions as exp

    from nl2sql.sql.canonical import is_aggregate

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
    from sqlglot import expressions as exp

    return not isinstance(query.parent, (exp.From, exp.Join, exp.In, exp.Exists, exp.SetOperation, exp.Subquery))


def _single_row(query: Any) -> bool:
    from sqlglot import expressions as exp

    select = query.this
    return (
        isinstance(select, exp.Select)
        and not select.args.get("group")
        and len(select.selects) == 1
        and select.selects[0].find(exp.AggFunc) is not None
    )
