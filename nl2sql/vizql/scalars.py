"""Values in SQL: dates by dialect, literals, and expressions with their type, level and tables.

>>> value = constant("a", "STRING")
>>> value.sql.sql(), value.kind, value.level
("'a'", 'STRING', 'constant')

Not covered: what names mean (``scope``), and formulas (``evaluation``).

>>> part("WEEK", exp.column("d"), "duckdb").sql("duckdb")
'EXTRACT(WEEK FROM CAST(d AS DATE))'
>>> period("MONTHS", "LASTN", datetime.date(2024, 3, 15), 2)
(datetime.date(2024, 2, 1), datetime.date(2024, 4, 1))
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nl2sql.vizql.formula_tree import NotExecutable

# -------------------------------------------------------------------------------------------- dates
# Weeks are those of ISO 8601: they begin on Monday, and week 1 has the year's first Thursday. In
# SQLite dates are ISO texts, which ``date()`` reads. Not covered: other dialects than SQLite and
# DuckDB; minutes and hours; fiscal years.

TRIED = ("sqlite", "duckdb")  # what tests execute (tests/vizql/test_compile.py)
_FORMATS = {"YEAR": "%Y", "MONTH": "%m", "DAY": "%d"}
_UNITS = {"DAYS": "DAY", "WEEKS": "WEEK", "MONTHS": "MONTH", "QUARTERS": "QUARTER", "YEARS": "YEAR"}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def only_tried(dialect: str, what: str) -> None:
    """Raises NotExecutable for a dialect in which ``what`` was never compared with anything."""
    if dialect not in TRIED:
        raise NotExecutable(f"{what} in dialect {dialect}")


def day(value: exp.Expr, dialect: str) -> exp.Expr:
    """The day of a date or a moment."""
    if dialect == "sqlite":
        return exp.Anonymous(this="DATE", expressions=[value])
    return exp.cast(value, "date")


def moment(value: exp.Expr, dialect: str) -> exp.Expr:
    """A date or a moment as a moment, to the second."""
    if dialect == "sqlite":
        return exp.Anonymous(this="DATETIME", expressions=[value])
    second = exp.Literal.string("second")
    return exp.Anonymous(this="DATE_TRUNC", expressions=[second, exp.cast(value, "timestamp")])


def part(name: str, value: exp.Expr, dialect: str) -> exp.Expr:
    """YEAR, QUARTER, MONTH, WEEK or DAY of a date, as a whole number."""
    only_tried(dialect, f"the date part {name}")
    if dialect != "sqlite":
        return exp.Extract(this=exp.var(name), expression=exp.cast(value, "date"))
    if name == "QUARTER":
        return _whole(_number("%m", value) + 2, 3)
    if name == "WEEK":  # the week of its Thursday
        thursday = _date(value, "-3 days", "weekday 4")
        return _whole(_number("%j", thursday) - 1, 7) + 1
    return _number(_FORMATS[name], value)


def truncated(name: str, value: exp.Expr, dialect: str) -> exp.Expr:
    """The first day of the YEAR, QUARTER, MONTH or WEEK of a date, or its DAY."""
    only_tried(dialect, f"the date truncation TRUNC_{name}")
    if dialect != "sqlite":
        cut = exp.DateTrunc(this=exp.cast(value, "date"), unit=exp.Literal.string(name))
        return exp.cast(cut, "date")
    if name == "DAY":
        return day(value, dialect)
    if name == "WEEK":
        return _date(value, "weekday 0", "-6 days")
    if name == "QUARTER":
        back = exp.Mod(this=exp.paren(_number("%m", value) - 1), expression=exp.Literal.number(3))
        months = exp.DPipe(this=exp.paren(-exp.paren(back)), expression=exp.Literal.string(" months"))
        start = _date(value, "start of month")
        return exp.Anonymous(this="DATE", expressions=[start, exp.paren(months)])
    return _date(value, f"start of {name.lower()}")


def _number(form: str, value: exp.Expr) -> exp.Expr:
    text = exp.Anonymous(this="STRFTIME", expressions=[exp.Literal.string(form), value.copy()])
    return exp.cast(text, "int")


def _whole(value: exp.Expr, by: int) -> exp.Expr:
    return exp.Div(this=exp.paren(value), expression=exp.Literal.number(by), typed=True, safe=True)


def _date(value: exp.Expr, *changes: str) -> exp.Expr:
    return exp.Anonymous(this="DATE", expressions=[value.copy(), *map(exp.Literal.string, changes)])


def period(unit: str, kind: str, anchor: datetime.date, n: int) -> tuple[datetime.date, datetime.date]:
    """The days that a relative filter means, as the first one and the one after the last.

    CURRENT is the period with the anchor in it, LAST the one before, NEXT the one after. LASTN are n periods up to the
    current one, NEXTN n periods from the current one on. TODATE goes from its start to the anchor, which is in it.
    Raises NotExecutable for minutes and hours, and for days that the calendar does not have.
    """
    if unit not in _UNITS:
        raise NotExecutable(f"a DATE filter by {unit}")
    name = _UNITS[unit]
    first, last = {"LAST": (-1, -1), "NEXT": (1, 1), "LASTN": (1 - n, 0), "NEXTN": (0, n - 1)}.get(kind, (0, 0))
    try:
        start = _moved(_start(name, anchor), name, first)
        after = anchor + datetime.timedelta(1) if kind == "TODATE" else _moved(_start(name, anchor), name, last + 1)
    except (ValueError, OverflowError):
        raise NotExecutable("a DATE filter on days that the calendar does not have") from None
    return start, after


def _start(name: str, date: datetime.date) -> datetime.date:
    if name in _MONTHS:
        size = _MONTHS[name]
        return date.replace(month=(date.month - 1) // size * size + 1, day=1)
    return date - datetime.timedelta(date.weekday()) if name == "WEEK" else date


def _moved(start: datetime.date, name: str, periods: int) -> datetime.date:
    if name not in _MONTHS:
        return start + datetime.timedelta(periods * (7 if name == "WEEK" else 1))
    months = start.year * 12 + start.month - 1 + periods * _MONTHS[name]
    return datetime.date(months // 12, months % 12 + 1, 1)


# ------------------------------------------------------------------------------------------- values

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
    return (moment if moments else day)(value.sql, dialect)


def date_literal(text: str, dialect: str, *, moments: bool) -> exp.Expr:
    """A date of the query, as ``comparable`` writes dates."""
    moment = moment_of(text)
    if not moments and moment.time() != datetime.time():
        raise NotExecutable(f"the moment {text!r} for a DATE field")
    shown = str(moment) if moments else str(moment.date())
    if dialect == "sqlite":
        return exp.Literal.string(shown)
    return exp.cast(exp.Literal.string(shown), "timestamp" if moments else "date")
