"""Values in SQL: expressions with their type, level and tables; literals, dates by dialect, functions.

>>> value = constant("a", "STRING")
>>> value.sql.sql(), value.kind, value.level
("'a'", 'STRING', 'constant')
>>> of_date("WEEK", exp.column("d"), "duckdb").sql("duckdb")
'EXTRACT(WEEK FROM CAST(d AS DATE))'
>>> period("MONTHS", "LASTN", datetime.date(2024, 3, 15), 2)
(datetime.date(2024, 2, 1), datetime.date(2024, 4, 1))
>>> sorted(FUNCTIONS)[:4]
['ABS', 'CEILING', 'CONTAINS', 'ENDSWITH']

Not covered: what names mean (``scope``); functions of formulas past ``FUNCTIONS`` and the aggregates.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from sqlglot import exp, parse_one

from nl2sql.vizql.formula_tree import FormulaError, NotExecutable
from nl2sql.vizql.source import DATES, NUMBERS, UNKNOWN

# -------------------------------------------------------------------------------------------- dates
# Not covered: other dialects than SQLite and DuckDB; minutes and hours; fiscal years.

_OF_DATES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("dialects.yaml").read_text("utf-8"))
TRIED = tuple(_OF_DATES)  # the dialects that tests execute
_UNITS = {"DAYS": "DAY", "WEEKS": "WEEK", "MONTHS": "MONTH", "QUARTERS": "QUARTER", "YEARS": "YEAR"}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


@cache
def _template(name: str, dialect: str) -> exp.Expr:
    return parse_one(_OF_DATES[dialect][name], read=dialect)


def of_date(name: str, value: exp.Expr, dialect: str) -> exp.Expr:
    """A part of a date (``WEEK``), the first day of one (``TRUNC_WEEK``), its ``DAY_OF`` or ``MOMENT_OF``."""
    return _template(name, dialect).transform(lambda node: value.copy() if isinstance(node, exp.Column) else node)


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

COMPARED = {"=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
_BIGINT, _DOUBLE = exp.DataType.build("bigint"), exp.DataType.build("double")


@dataclass(frozen=True)
class Value:
    """An expression; ``level`` is row, aggregate or constant, ``tables`` are the logical tables it reads."""

    sql: exp.Expr
    kind: str
    level: str = "row"
    tables: frozenset[str] = frozenset()


def constant(value: Any, kind: str = "") -> Value:
    """A value that stands in a formula; a fraction is a float, since DuckDB keeps few decimals of another one."""
    kinds = {bool: "BOOLEAN", int: "INTEGER", float: "REAL", str: "STRING"}
    kind = kind or kinds.get(type(value), "UNKNOWN")
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
    return of_date("MOMENT_OF" if moments else "DAY_OF", value.sql, dialect) if value.kind in DATES else value.sql


def date_literal(text: str, dialect: str, *, moments: bool) -> exp.Expr:
    """A date of the query, as ``comparable`` writes dates."""
    moment = moment_of(text)
    if not moments and moment.time() != datetime.time():
        raise NotExecutable(f"the moment {text!r} for a DATE field")
    shown = exp.Literal.string(str(moment) if moments else str(moment.date()))
    return shown if dialect == "sqlite" else exp.cast(shown, "timestamp" if moments else "date")


def merged(sql: exp.Expr, kind: str, parts: Sequence[Value]) -> Value:
    """A value made of others. Raises FormulaError where rows and aggregates are mixed."""
    levels = {part.level for part in parts} - {"constant"}
    if len(levels) > 1:
        raise FormulaError("an expression that mixes rows and aggregates")
    tables = frozenset().union(*(part.tables for part in parts))
    return Value(sql, kind, levels.pop() if levels else "constant", tables)


def need(values: Sequence[Value], kinds: Sequence[str], what: str) -> None:
    """Raises FormulaError for a value of another type, where that is known."""
    for value in values:
        if value.kind not in (*kinds, *UNKNOWN):
            raise FormulaError(f"{what} of a value of type {value.kind}")


# -------------------------------------------------------------------------------- signs of formulas


def operation(sign: str, parts: list[Value], dialect: str) -> Value:
    """The value of a sign between, or before, others. Raises NotExecutable.

    A division is never one of whole numbers, and by zero gives NULL; ``+`` joins texts.
    """
    if sign in COMPARED:
        return _compared(sign, parts[0], parts[1], dialect)
    sqls = [_paren(part.sql) for part in parts]
    if sign in ("AND", "OR", "NOT"):
        need(parts, ("BOOLEAN",), sign)
        joined = {"AND": exp.And, "OR": exp.Or}
        sql = exp.Not(this=sqls[0]) if sign == "NOT" else joined[sign](this=sqls[0], expression=sqls[1])
        return merged(_paren(sql), "BOOLEAN", parts)  # NOT a IS NULL would be NOT (a IS NULL)
    if sign == "+" and any(part.kind == "STRING" for part in parts):
        need(parts, ("STRING",), sign)
        return merged(exp.DPipe(this=sqls[0], expression=sqls[1]), "STRING", parts)
    if any(part.kind in DATES for part in parts):
        raise NotExecutable(f"the sign {sign} beside a date")
    need(parts, NUMBERS, sign)
    return merged(*_arithmetic(sign, parts, sqls), parts)


def _compared(sign: str, left: Value, right: Value, dialect: str) -> Value:
    kinds = {left.kind, right.kind}
    alike = (set(NUMBERS), set(DATES), {"STRING"}, {"BOOLEAN"})
    if not (kinds & set(UNKNOWN) or any(kinds <= among for among in alike)):
        refused = NotExecutable if kinds & set(DATES) else FormulaError
        raise refused(f"the comparison {left.kind} {sign} {right.kind}")
    sides = [_paren(comparable(side, dialect, moments="DATETIME" in kinds)) for side in (left, right)]
    return merged(COMPARED[sign](this=sides[0], expression=sides[1]), "BOOLEAN", [left, right])


def _arithmetic(sign: str, parts: list[Value], sqls: list[exp.Expr]) -> tuple[exp.Expr, str]:
    whole = all(part.kind == "INTEGER" for part in parts)
    if len(parts) == 1:
        return exp.Neg(this=sqls[0]), parts[0].kind
    left, right = sqls
    if sign in ("+", "-", "*"):
        wide = exp.cast(left, _BIGINT, copy=False) if whole else left  # else DuckDB has 32 bits
        made = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul}[sign](this=wide, expression=right)
        return _paren(made), "INTEGER" if whole else "REAL"
    not_zero = exp.Nullif(this=right, expression=exp.Literal.number(0))
    if sign == "/":
        over, by = (exp.cast(sql, _DOUBLE, copy=False) for sql in (left, not_zero))
        return exp.Div(this=over, expression=by, typed=True, safe=True), "REAL"
    if sign == "%" and whole:
        return exp.Mod(this=left, expression=not_zero), "INTEGER"
    raise NotExecutable(f"the sign {sign} between {' and '.join(part.kind for part in parts)} in a formula")


def _paren(sql: exp.Expr) -> exp.Expr:
    """``sql`` in parentheses, and no copy of it: a long formula would copy itself at each of its signs."""
    return exp.Paren(this=sql)


# ---------------------------------------------------------------------------- functions of formulas


def choice(tests: Sequence[Value], results: Sequence[Value], otherwise: Value) -> Value:
    """IF and CASE; IF without ELSE gives NULL. Raises NotExecutable where the results are of different types."""
    need(tests, ("BOOLEAN",), "IF")
    kind = _common([*results, otherwise])
    case = exp.Case(this=None, ifs=[])
    for test, result in zip(tests, results, strict=True):
        case = case.when(test.sql, result.sql)
    return merged(case.else_(otherwise.sql), kind, [*tests, *results, otherwise])


def _common(values: Sequence[Value]) -> str:
    kinds = {value.kind for value in values} - set(UNKNOWN)
    if kinds == set(NUMBERS):
        return "REAL"
    if len(kinds) > 1:
        refused = NotExecutable if kinds & set(DATES) else FormulaError
        raise refused(f"an expression with values of the types {', '.join(sorted(kinds))}")
    return kinds.pop() if kinds else "UNKNOWN"


Maker = Callable[[list[Value]], Value]


def _plain(sql_name: str, kinds: Sequence[str], result: str | None = None) -> Maker:
    """A function of one argument that engines have under one name; without ``result``, of the argument's type."""

    def make(values: list[Value]) -> Value:
        need(values, kinds, sql_name)
        sql = exp.Anonymous(this=sql_name, expressions=[value.sql for value in values])
        return merged(sql, result or values[0].kind, values)

    return make


def _text_test(place: Callable[[exp.Expr, exp.Expr], exp.Expr]) -> Maker:
    def make(values: list[Value]) -> Value:
        need(values, _TEXT, "a comparison of texts")
        return merged(place(values[0].sql, values[1].sql), "BOOLEAN", values)

    return make


def _contains(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    return exp.GT(this=exp.StrPosition(this=text, substr=part), expression=exp.Literal.number(0))


def _starts(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    head = exp.Substring(this=text, start=exp.Literal.number(1), length=exp.Length(this=part.copy()))
    return exp.EQ(this=head, expression=part)


def _ends(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Whether a text ends with another; one that is longer is no end."""
    size, of = exp.Length(this=text.copy()), exp.Length(this=part.copy())
    start = exp.Add(this=exp.Sub(this=size.copy(), expression=of.copy()), expression=exp.Literal.number(1))
    tail = exp.EQ(this=exp.Substring(this=text, start=start), expression=part)
    return exp.paren(exp.and_(exp.GTE(this=size, expression=of), tail))


def _if_null(values: list[Value]) -> Value:
    sql = exp.Coalesce(this=values[0].sql, expressions=[values[1].sql])
    return merged(sql, _common(values), values)


def _zero(values: list[Value]) -> Value:
    need(values, NUMBERS, "ZN")
    return _if_null([values[0], constant(0)])


def _is_null(values: list[Value]) -> Value:
    return merged(exp.paren(values[0].sql.is_(exp.null())), "BOOLEAN", values)


def _iif(values: list[Value]) -> Value:
    """Unlike IF, which takes its ELSE then, IIF is NULL where nothing is known of its condition."""
    test, then, otherwise = values
    need([test], ("BOOLEAN",), "IIF")
    is_false = Value(exp.Not(this=exp.paren(test.sql)), "BOOLEAN", test.level, test.tables)
    return choice([test, is_false], [then, otherwise], constant(None))


def _round(values: list[Value]) -> Value:
    need(values, NUMBERS, "ROUND")
    if len(values) == 2 and not (isinstance(values[1].sql, exp.Literal) and values[1].sql.is_int):
        raise NotExecutable("ROUND to a number of decimals that is not written out, or below 0")
    sql = exp.Round(this=values[0].sql, decimals=values[1].sql if len(values) == 2 else None)
    return merged(sql, values[0].kind, values)


_TEXT = ("STRING",)
TEXT_TESTS = {"contains": _contains, "startsWith": _starts, "endsWith": _ends}  # as MATCH filters name them
FUNCTIONS: dict[str, tuple[Sequence[int], Maker]] = {  # name: how many arguments, and what is made of them
    "ABS": ((1,), _plain("ABS", NUMBERS)),
    "CEILING": ((1,), _plain("CEIL", NUMBERS, "INTEGER")),
    "FLOOR": ((1,), _plain("FLOOR", NUMBERS, "INTEGER")),
    "ROUND": ((1, 2), _round),
    "LEN": ((1,), _plain("LENGTH", _TEXT, "INTEGER")),
    **{name: ((1,), _plain(name, _TEXT)) for name in ("UPPER", "LOWER", "TRIM")},
    **{name.upper(): ((2,), _text_test(test)) for name, test in TEXT_TESTS.items()},
    "IFNULL": ((2,), _if_null),
    "ISNULL": ((1,), _is_null),
    "ZN": ((1,), _zero),
    "IIF": ((3,), _iif),
}
