"""The order that a gold asks for: whether it orders its rows, and by which columns of its result.

>>> order_keys("SELECT a, b FROM t ORDER BY b", ("a", "b"))
(1,)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nl2sql.interfaces import RunResult
from nl2sql.sql.parse import parse_query, past_limits, remember_short

QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
ORDER_BY = re.compile(r"\border\s+by\b", re.IGNORECASE)


@remember_short(8192)
def order_matters(sql: str, dialect: str = "sqlite") -> bool:
    """Whether the outermost query of ``sql`` has an ORDER BY (one in a subquery or a window does not count)."""
    if past_limits(sql):
        return False
    text = QUOTED.sub(" ", sql)
    if not ORDER_BY.search(text):
        return False
    if not text.lstrip().startswith("(") and not any(mark in text for mark in "'\"`["):
        return _orders_textually(text)  # the tree says the same, and takes a hundred times as long
    tree = _outermost(sql, dialect)
    return _orders_textually(sql) if tree is None else bool(tree.args.get("order"))


def order_keys(sql: str, columns: Sequence[str], dialect: str = "sqlite") -> tuple[int, ...] | None:
    """The places of the outermost ORDER BY's keys in the result; None where one of them is not in it.

    A key is found by number, by result name, or as the same expression in the SELECT list, whatever it is collated by.
    """
    keys = _order_keys(sql, tuple(columns), dialect)
    return None if keys is None else tuple(place for place, _ in keys)


@remember_short(8192)
def _order_keys(sql: str, columns: tuple[str, ...], dialect: str) -> tuple[tuple[int, str], ...] | None:
    """The keys' places, each with its COLLATE clause as it is written ("": none)."""
    tree = _outermost(sql, dialect)
    if tree is None or not tree.args.get("order"):
        return None
    selects = tree.selects
    stars = {(getattr(select, "table", "") or "").lower() for select in selects if select.is_star}
    if stars:
        selects = []  # their positions are not those of the result
    names = [column.lower() for column in columns]
    shown = [select.unalias().sql(dialect).lower() for select in selects]
    aliases = [select.alias.lower() for select in selects]
    places = []
    for ordered in tree.args["order"].expressions:
        key, collation = ordered.this, ""
        if isinstance(key, exp.Collate):
            key, collation = key.this, f" COLLATE {key.expression.sql(dialect)}"
        text = key.sql(dialect).lower()
        by_alias = isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases
        by_name = isinstance(key, exp.Column) and _may_be_named(key, stars) and names.count(key.name.lower()) == 1
        if isinstance(key, exp.Literal) and key.this.isdigit():
            place = int(key.this) - 1
        elif by_alias:  # as SQLite does: the first alias of that name, whatever columns have it as well
            place = aliases.index(key.name.lower())
        elif by_name:  # SQLite, too, looks among the names of the result first
            place = names.index(key.name.lower())
        elif text in shown:
            place = shown.index(text)
        else:
            return None
        if not 0 <= place < len(columns):
            return None
        places.append((place, collation))
    return tuple(places)


def _may_be_named(key: Any, stars: Collection[str]) -> bool:
    """Whether a name of the result may be this key's: not that of ``o.day`` beside ``c.*``, nor of a written column.

    ``stars``: the tables of the stars in the SELECT list, "" for the one of all tables.
    """
    return not key.table or "" in stars or key.table.lower() in stars


def gold_order(sql: str, result: RunResult) -> dict[str, Any]:
    """The arguments ``ordered`` and ``keys`` of ``results_match`` for a gold and its result."""
    ordered = order_matters(sql)
    return {"ordered": ordered, "keys": order_keys(sql, result.columns) if ordered else None}


@dataclass(frozen=True)
class Placed(RunResult):
    """A gold's result with the place of every row in its order, as the engine counts them: ties share one."""

    places: tuple[int, ...] = ()


def placed(sql: str, gold: RunResult, run: Callable[[str], RunResult], dialect: str = "sqlite") -> RunResult:
    """``gold`` with its rows' places, for keys that are equal to the engine and not to us: 'a' and 'A' under NOCASE.

    ``run`` executes a statement where ``sql`` gave ``gold``. The result itself where a key of the order is not shown,
    or where other rows come back.
    """
    keys = _order_keys(sql, tuple(gold.columns), dialect)
    if not keys:
        return gold
    names = ", ".join(f"c{number}" for number in range(len(gold.columns)))
    order = ", ".join(f"c{place}{collation}" for place, collation in keys)
    text = sql.rstrip("; \t\r\n")
    found = run(f"WITH gold({names}) AS (\n{text}\n) SELECT *, dense_rank() OVER (ORDER BY {order}) FROM gold")
    place_of = {row[:-1]: row[-1] for row in found.rows}
    if any(row not in place_of for row in gold.rows):
        return gold
    return Placed(**vars(gold), places=tuple(place_of[row] for row in gold.rows))


@remember_short(256)  # whole trees: what is read off them is kept above
def _outermost(sql: str, dialect: str) -> Any:
    tree: Any = parse_query(sql, dialect)
    while isinstance(tree, exp.Subquery) and not tree.args.get("order"):
        tree = tree.this
    return tree if isinstance(tree, exp.Query) else None


def _orders_textually(sql: str) -> bool:
    """For SQL that sqlglot cannot parse: ORDER BY outside brackets, strings and comments."""
    text = re.sub(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|\Z)", " ", sql, flags=re.DOTALL)
    shorter = re.sub(r"\([^()]*\)", " ", text)
    while shorter != text:
        text, shorter = shorter, re.sub(r"\([^()]*\)", " ", shorter)
    return ORDER_BY.search(text) is not None
