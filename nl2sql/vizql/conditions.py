"""SET, MATCH, QUANTITATIVE and DATE filters as conditions over a value.

>>> from nl2sql.vizql.filters import SetFilter
>>> data = {"field": {"fieldCaption": "Region"}, "filterType": "SET", "values": ["West", None]}
>>> value = Value(exp.column("region"), "STRING")
>>> condition(SetFilter.model_validate(data), value, "sqlite", datetime.date(2024, 1, 1)).sql("sqlite")
"((region) IN ('West') OR region IS NULL)"

NULL passes SET where it is among the values, ``exclude`` where it is not, MATCH with ``exclude`` only, and the others
with ``includeNulls`` only. MATCH does not tell upper from lower case; SQLite knows only the letters of ASCII so. Not
covered: TOP and CONDITION, which group by themselves (``compile``).
"""

from __future__ import annotations

import datetime
from typing import Any

from sqlglot import exp

from nl2sql.vizql import scalars
from nl2sql.vizql.evaluation import contains, ends, starts
from nl2sql.vizql.filters import (
    MatchFilter,
    QuantitativeDateFilter,
    QuantitativeNumericalFilter,
    RelativeDateFilter,
    SetFilter,
)
from nl2sql.vizql.formula_tree import NotExecutable
from nl2sql.vizql.scalars import DATES, NUMBERS, UNKNOWN, Value, comparable, date_literal, literal

_TESTS = {"contains": contains, "startsWith": starts, "endsWith": ends}


def condition(part: Any, value: Value, dialect: str, today: datetime.date) -> exp.Expr:
    """The condition of a filter over the value of its field. Raises NotExecutable for a type that does not fit."""
    match part:
        case SetFilter():
            return _set(part, value, dialect)
        case MatchFilter():
            return _match(part, value, dialect)
        case QuantitativeNumericalFilter(min=low, max=high):
            _of(value, NUMBERS, part)
            ends_ = [None if end is None else literal(end, "REAL") for end in (low, high)]
            return _between(part, value.sql, ends_)
        case QuantitativeDateFilter(minDate=low, maxDate=high):
            _of(value, DATES, part)
            dates = [None if end is None else date_literal(end, dialect, moments=False) for end in (low, high)]
            return _between(part, scalars.day(value.sql.copy(), dialect), dates)
        case RelativeDateFilter():
            return _relative(part, value, dialect, today)
    raise NotExecutable(f"a {part.filterType} filter")


def _of(value: Value, kinds: tuple[str, ...], part: Any) -> None:
    if value.kind not in (*kinds, *UNKNOWN):
        raise NotExecutable(f"a {part.filterType} filter on a value of type {value.kind}")


def _set(part: SetFilter, value: Value, dialect: str) -> exp.Expr:
    moments = value.kind == "DATETIME"
    listed = [_listed(item, value.kind, dialect, moments) for item in part.values if item is not None]
    about, nulls = comparable(value, dialect, moments=moments), None in part.values
    is_in = exp.In(this=exp.paren(about.copy()), expressions=listed)  # a > b IN (...) is a > (b IN (...)) in DuckDB
    is_null = about.copy().is_(exp.null())
    if part.exclude:
        ways: list[exp.Expr] = [is_null.not_()] if nulls else []
        if listed:
            ways.append(is_in.not_() if nulls else exp.paren(exp.or_(is_null, is_in.not_())))
        return exp.paren(exp.and_(*ways))
    return exp.paren(exp.or_(*([is_in] if listed else []), *([is_null] if nulls else [])))


def _listed(item: Any, kind: str, dialect: str, moments: bool) -> exp.Expr:
    if kind in DATES and isinstance(item, str):
        return date_literal(item, dialect, moments=moments)
    return literal(item, kind)


def _match(part: MatchFilter, value: Value, dialect: str) -> exp.Expr:
    _of(value, ("STRING",), part)
    text_of = value.sql if dialect == "sqlite" else exp.cast(value.sql, "text")  # a UUID or a TIME has no LOWER
    tests = [
        test(exp.Lower(this=text_of.copy()), literal(lowered(text, dialect), "STRING"))
        for key, test in _TESTS.items()
        if (text := getattr(part, key)) is not None
    ]
    both = exp.paren(exp.and_(*tests))
    if not part.exclude:
        return both
    return exp.paren(exp.or_(value.sql.copy().is_(exp.null()), both.not_()))


def lowered(text: str, dialect: str) -> str:
    """A text as the dialect's LOWER makes it."""
    if dialect != "sqlite":
        return text.lower()
    return "".join(sign.lower() if sign.isascii() else sign for sign in text)


def _between(part: Any, about: exp.Expr, ends_: list[exp.Expr | None]) -> exp.Expr:
    kind = part.quantitativeFilterType
    if kind in ("ONLY_NULL", "ONLY_NON_NULL"):
        is_null = about.is_(exp.null())
        return is_null if kind == "ONLY_NULL" else is_null.not_()
    low, high = ends_
    tests: list[exp.Expr] = [] if low is None else [exp.GTE(this=about.copy(), expression=low)]
    tests += [] if high is None else [exp.LTE(this=about.copy(), expression=high)]
    return _or_null(exp.and_(*tests), about, part.includeNulls)


def _relative(part: RelativeDateFilter, value: Value, dialect: str, today: datetime.date) -> exp.Expr:
    _of(value, DATES, part)
    anchor = datetime.date.fromisoformat(part.anchorDate) if part.anchorDate else today
    first, after = scalars.period(part.periodType, part.dateRangeType, anchor, part.rangeN or 1)
    about = scalars.day(value.sql.copy(), dialect)
    low, high = (date_literal(str(end), dialect, moments=False) for end in (first, after))
    tests = exp.GTE(this=about.copy(), expression=low), exp.LT(this=about.copy(), expression=high)
    return _or_null(exp.and_(*tests), about, part.includeNulls)


def _or_null(test: exp.Expr, about: exp.Expr, nulls: bool | None) -> exp.Expr:
    return exp.paren(exp.or_(exp.paren(test), about.copy().is_(exp.null()))) if nulls else exp.paren(test)
