"""Golds that run and do not answer: what they would give without a slip, found by running them without it.

>>> [reason.split(":")[0] for reason, *_ in without_slips("SELECT name FROM t ORDER BY size LIMIT 1")]
['NULL stands first', 'numbers stand as text']
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nl2sql.sql.parse import parse_bounded

NULLS = "NULL stands first: ORDER BY with LIMIT takes rows without a value (add IS NOT NULL, or NULLS LAST)"
TEXTS = "numbers stand as text: '9' is more than '10' in what is sorted, compared, or the largest (CAST them)"
TODAY = "the answer depends on today's date"
NUMBER = (  # an expression, written otherwise where it is the text of a whole or decimal number
    "CASE WHEN typeof({0}) = 'text' AND trim({0}, '+-.') <> '' AND NOT ltrim({0}, '+-') GLOB '*[^0-9.]*' "
    "AND NOT {0} LIKE '%.%.%' THEN {1} ELSE {0} END"
)
CLOCK = frozenset(("date", "time", "datetime", "julianday", "unixepoch"))  # of now where they are given nothing


def depends_on_today(sql: str) -> bool:
    """Whether a query reads the clock. False where it cannot be parsed."""
    from sqlglot import expressions as exp

    tree = _tree(sql)
    return tree is not None and any(
        isinstance(node, exp.CurrentDate | exp.CurrentTime | exp.CurrentTimestamp)
        or (isinstance(node, exp.Literal) and node.is_string and node.this.lower() == "now")
        or (isinstance(node, exp.Func) and not any(node.iter_expressions()) and _name(node) in CLOCK)
        for node in tree.walk()
    )


def without_slips(sql: str) -> Iterator[tuple[str, str, str]]:
    """(what would be wrong, the query without it, the query beside it) for every slip that ``sql`` may have."""
    from sqlglot import expressions as exp

    tree = _tree(sql)
    if tree is None:
        return
    if any(order.parent.args.get("limit") for order in tree.find_all(exp.Order)):
        copy = tree.copy()
        for ordered in copy.find_all(exp.Ordered):
            ordered.set("nulls_first", False)
        yield NULLS, copy.sql("sqlite"), sql
    text, number = _sides_as(tree, "{0}"), _sides_as(tree, "CAST({0} AS NUMERIC)")
    if text != number:
        yield TEXTS, number, text


def _sides_as(tree: Any, written: str) -> str:
    """The query with each text that is a number, where it is sorted, compared or the largest, ``written`` so."""
    from sqlglot import expressions as exp

    copy = tree.copy()
    for node in list(copy.find_all(exp.Ordered, exp.Max, exp.Min, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)):
        for key in ("this", "expression", "low", "high"):
            side = node.args.get(key)
            constant = isinstance(side, exp.Literal) and side.is_string and not isinstance(node, exp.Ordered)
            if isinstance(side, exp.Column) or constant:
                text = side.sql("sqlite")
                side.replace(parse_bounded(NUMBER.format(text, written.format(text)), "sqlite"))
    return str(copy.sql("sqlite"))


def _tree(sql: str) -> Any:
    from sqlglot.errors import SqlglotError

    try:
        return parse_bounded(sql, "sqlite")
    except (SqlglotError, RecursionError):
        return None


def _name(function: Any) -> str:
    return str(function.name or function.key).lower()
