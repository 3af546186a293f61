"""Values in SQL: expressions with their type, their level, and the tables they come from; literals; dates compared.

>>> value = constant("a", "STRING")
>>> value.sql.sql(), value.kind, value.level
("'a'", 'STRING', 'constant')

Not covered: what names mean (``scope``), and formulas (``evaluation``).
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nl2sql.vizql import days
from nl2sql.vizql.formula_tree import NotExecutable

NUMBERS, DATES = ("INTEGER", "REAL"), ("DATE", "DATETIME")
UNKNOWN = ("UNKNOWN", "UNSPECIFIED")


@dataclass(frozen=True)
class Value:
    """An expression; ``level`` is row, aggregate or constant, ``tables`` are the logical tables it reads."""

    sql: exp.Expr
    kind: str
    level: str = "row"
    tables: frozenset[str] = frozenset()


def constant(value: Any, kind: str) -> Value:
    """A value that stands in a formula; a fraction is a float, since DuckDB keeps few decimals of another one."""
    sql = literal(value, kind)
    return Value(exp.cast(sql, "double") if isinstance(value, float) else sql, kind, "constant")


def literal(value: Any, kind: str) -> exp.Expr:
    """A value as SQL, of a type. Raises NotExecutable where it is of another type."""
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        if kind not in ("BOOLEAN", *UNKNOWN):
            raise NotExecutable(f"the value {value} for a {kind} field")
        return exp.true() if value else exp.false()
    if isinstance(value, int | float):
        if not abs(value) <= sys.float_info.max:  # and NaN
            raise NotExecutable("a number past all limits")
        if kind not in (*NUMBERS, *UNKNOWN):
            raise NotExecutable(f"the value {value} for a {kind} field")
        return exp.Literal.number(str(value))
    if not isinstance(value, str) or kind in (*NUMBERS, "BOOLEAN") or "\0" in value:
        raise NotExecutable(f"the value {value!r} for a {kind} field")
    return exp.Literal.string(value)


def moment_of(text: str) -> datetime.datetime:
    """The moment that a text of RFC 3339 says, without a time zone. Raises NotExecutable for another text."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise NotExecutable(f"the date {text!r}") from None
    if moment.tzinfo is not None or moment.microsecond:
        raise NotExecutable(f"the date {text!r} with a time zone or parts of a second")
    return moment


def comparable(value: Value, dialect: str, *, moments: bool) -> exp.Expr:
    """A value as it is compared: dates as days, or as moments where the other side is one."""
    if value.kind not in DATES:
        return value.sql
    return (days.moment if moments else days.day)(value.sql, dialect)


def date_literal(text: str, dialect: str, *, moments: bool) -> exp.Expr:
    """A date of the query, as ``comparable`` writes dates."""
    moment = moment_of(text)
    if not moments and moment.time() != datetime.time():
        raise NotExecutable(f"the moment {text!r} for a DATE field")
    shown = str(moment) if moments else str(moment.date())
    if dialect == "sqlite":
        return exp.Literal.string(shown)
    return exp.cast(exp.Literal.string(shown), "timestamp" if moments else "date")
