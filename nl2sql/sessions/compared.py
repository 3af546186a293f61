"""A number, a time or a date of a follow-up as the condition on one column.

>>> from nl2sql.sessions.reading import read_followup
>>> [june] = read_followup("and in June?").comparisons
>>> may = exp.Between(this=exp.column("d"), low=exp.Literal.string("2023-05-01"), high=exp.Literal.string("2023-05-31"))
>>> comparison_condition(june, exp.column("d"), "date", [may]).sql()
"d BETWEEN '2023-06-01' AND '2023-06-30'"

A year or month keeps what is not said again of the days that the replaced conditions let through: "What about 2023?"
behind April to June 2022 is April to June 2023. Not covered: days within functions (``strftime``) and patterns.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta

from sqlglot import exp

from nl2sql.sessions.amounts import Comparison
from nl2sql.sessions.naming import Kinds, Named, edit_words
from nl2sql.sessions.statement import Statement, parts_of
from nl2sql.sql.words import words

DATES = ("date", "datetime")
SIGNS: dict[str, type[exp.Binary]] = {">": exp.GT, ">=": exp.GTE, "<": exp.LT, "<=": exp.LTE, "=": exp.EQ}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](?P<time>.+))?")
_CHEAPER = re.compile(r"\b(?:cheaper|dearer|pricier|more expensive|less expensive) than\s*(?:\S{1,3}\s*)?$")
PRICE = frozenset(["price", "cost", "amount", "value"])
_MONEY = re.compile(r"\s*(?:[$€£]|(?:(?:dollar|euro|pound|buck)s?|usd|eur|gbp)\b)")
_PAID = PRICE | {"salary", "wage", "income", "budget", "balance", "revenue", "fee", "msrp"}
_SCALES = {"thousand": 10**3, "k": 10**3, "million": 10**6, "billion": 10**9}
_SCALE = re.compile(rf"\s*(?P<word>{'|'.join(_SCALES)})\b")
_ONE_DAY = timedelta(days=1)
_DAY_END = "23:59:59"


def kinds_for(comparison: Comparison) -> list[tuple[str, ...]]:
    """The kinds of columns that a number or date is compared with, the likelier first."""
    kinds: dict[str, list[tuple[str, ...]]] = {
        "number": [("number",)],
        "year": [("date", "datetime", "year"), ("number",)],
        "month": [DATES],
        "day": [DATES],
        "time": [("time", "datetime")],
    }
    return kinds[comparison.kind]


def is_of_a_price(before: str) -> bool:
    """Does the text before a number say that it is a price: "cheaper than "?"""
    return bool(_CHEAPER.search(before))


def price_of(statement: Statement, kinds: Kinds) -> Named | None:
    """The first number of the tables that are read which is called a price."""
    return next(iter(_numbers_called(PRICE, statement, kinds)), None)


def _numbers_called(names: Iterable[str], statement: Statement, kinds: Kinds) -> list[Named]:
    """The columns of numbers, of the tables that are read, whose name has one of the words."""
    every = [(table.name, column.name) for table in statement.sources().values() for column in table.columns]
    return [Named(t, c) for t, c in every if kinds[t.lower(), c.lower()] == "number" and {*names} & {*words(c)}]


def dimension(text: str, comparison: Comparison, statement: Statement, kinds: Kinds) -> Named | None:
    """The number that "and higher than 100?" is about: a height, whatever else was compared."""
    before = text[: comparison.start].rstrip()
    for said, names in edit_words()["comparatives"].items():
        if re.search(rf"\b(?:{said})$", before):
            fits = _numbers_called(names, statement, kinds)
            return fits[0] if len(fits) == 1 else None
    return None


def money(text: str, comparison: Comparison, statement: Statement, kinds: Kinds) -> list[Named]:
    """The numbers of the tables that are read which may be money, where "500 dollars" is said; else none."""
    if not (_MONEY.match(text, comparison.end) or text[: comparison.start].rstrip().endswith(("$", "€", "£"))):
        return []
    return _numbers_called(_PAID, statement, kinds)


def scaled(comparison: Comparison, text: str, column: str = "") -> Comparison:
    """ "under 20 million" as a number; as it stands where the column is in millions itself. "5 minutes" in the unit of
    the column.

    >>> scaled(Comparison("<", "20", 6, 8, "number"), "under 20 million", "passengers").text
    '20000000'
    >>> scaled(Comparison(">", "5", 5, 6, "number"), "over 5 minutes", "duration_sec").text
    '300'
    """
    if factor := _unit_factor(text[comparison.end :], column):
        low, high = (f"{float(n) * factor:.15g}" if n else n for n in (comparison.text, comparison.high))
        return replace(comparison, text=low, high=high)
    said = _SCALE.match(text, comparison.end)
    if not said or comparison.kind not in ("number", "year") or said["word"] in {w.rstrip("s") for w in words(column)}:
        return comparison
    low, high = (f"{float(n) * _SCALES[said['word']]:.15g}" if n else n for n in (comparison.text, comparison.high))
    return replace(comparison, text=low, high=high)


def _unit_factor(behind: str, column: str) -> float:
    """By what a number with a unit is multiplied for a column in another; 0 for no unit, or the same.

    Raises LookupError for hours and days of a column that names no unit.
    """
    if not column or not (said := re.match(r" ?(?P<unit>[a-z]+)", behind)):
        return 0
    for kind, units in edit_words()["measures"].items():
        sizes = {word: size for size, names in units.items() for word in names}
        if size := sizes.get(said["unit"]):
            own = next((sizes[word] for word in reversed(words(column)) if word in sizes), None)
            if own is None and kind == "time" and size > 60 and "time" not in words(column):
                raise LookupError(f"the unit of {column}")
            return float(size / own) if own and own != size else 0
    return 0


def bound_groups(statement: Statement, comparison: Comparison, *, beside: bool = False) -> bool:
    """ "only those with more than 50" of groups: by the last figure of each. Whether the statement has such groups.

    beside: another bound of that figure stays, "more than 50 and less than 90".
    """
    measures = statement.aggregates() if statement.grouped else []
    if not measures or comparison.kind not in ("number", "year"):
        return False
    measure = measures[-1].unalias()
    condition = comparison_condition(replace(comparison, kind="number"), measure.copy(), "number", [])
    having = statement.tree.args.get("having")
    others = parts_of(having.this) if having else []
    kept = [other.copy() for other in others if beside or measure not in list(other.find_all(type(measure)))]
    statement.tree.set("having", exp.Having(this=exp.and_(*kept, condition)))
    return True


def contradict(condition: exp.Expr, comparison: Comparison) -> bool:
    """Can no number be on both sides: above 100 and below 20?"""
    literal = condition.expression if isinstance(condition, exp.Binary) else None
    if not isinstance(literal, exp.Literal) or literal.is_string or comparison.kind not in ("number", "year"):
        return False
    known, new = float(literal.this), float(comparison.text)
    return known >= new if comparison.operator.startswith("<") else known <= new


def comparison_condition(
    comparison: Comparison, column: exp.Expr, kind: str, existing: Sequence[exp.Expr]
) -> exp.Expr | None:
    """The comparison in the form of the column's kind; None where they do not go together.

    existing: the conditions in whose place it will stand.
    """
    sign = comparison.operator or _sign_of(existing) or "="
    if sign == "between":
        low, high = (_literal(text, kind) for text in (comparison.text, comparison.high))
        if kind in DATES and comparison.kind == "year":
            low, high = exp.Literal.string(f"{comparison.text}-01-01"), exp.Literal.string(f"{comparison.high}-12-31")
        if kind == "datetime" and comparison.kind in ("year", "day"):
            high = exp.Literal.string(f"{high.name} {_DAY_END}")
        return exp.Between(this=column, low=low, high=high)
    if kind in DATES and comparison.kind in ("year", "month"):
        span = _span(comparison, existing, sign)
        return _within(column, sign, span, kind) if span else None
    if kind == "datetime" and comparison.kind == "day":
        try:
            day = date.fromisoformat(comparison.text)
        except ValueError:  # no day of the calendar
            return None
        return _within(column, sign, (day, day), kind)
    if kind == "datetime" and comparison.kind == "time":
        return None  # of any day
    return SIGNS[sign](this=column, expression=_literal(comparison.text, kind))


def _literal(text: str, kind: str) -> exp.Expr:
    if kind in ("number", "year", "flag"):
        return exp.Literal.number(text)
    return exp.Literal.string(text.zfill(5) if kind == "time" else text)


def _sign_of(existing: Sequence[exp.Expr]) -> str:
    """The sign of the condition that is replaced, so that a bare number keeps it."""
    kinds = {type(condition) for condition in existing}
    return next((sign for sign, made in SIGNS.items() if kinds == {made}), "")


def excludes(condition: exp.Expr) -> bool:
    """Does it leave values of its column out: ``<>``, ``NOT =``, ``NOT IN``, ``NOT BETWEEN``, ``NOT LIKE``?"""
    kinds = (exp.EQ, exp.In, exp.Between, exp.Like)
    return isinstance(condition, exp.NEQ) or (
        isinstance(condition, exp.Not) and isinstance(condition.this.unnest(), kinds)
    )


def excluding(condition: exp.Expr) -> exp.Expr:
    """The condition that is true where ``condition`` is not."""
    if isinstance(condition, exp.EQ):
        return exp.NEQ(this=condition.this, expression=condition.expression)
    return exp.Not(this=exp.paren(condition) if isinstance(condition, exp.Connector) else condition)


# ------------------------------------------------------------------------------------------------------- dates


def _span(comparison: Comparison, existing: Sequence[exp.Expr], sign: str) -> tuple[date, date] | None:
    """First and last day of the year or month; what is not said is as in the conditions that are replaced."""
    first, last = covered_days(existing)
    known = first or last
    year = int(comparison.text) if comparison.text else known.year if known else 0
    if not year:
        return None
    if comparison.kind == "month":
        return date(year, comparison.month, 1), _month_end(year, comparison.month)
    if sign == "=" and first and last and first.year == last.year:
        return _in_year(first, year), _month_end(year, last.month) if _ends_month(last) else _in_year(last, year)
    return date(year, 1, 1), date(year, 12, 31)


def covered_days(conditions: Sequence[exp.Expr]) -> tuple[date | None, date | None]:
    """The first and the last day that conditions on one date let through; None for an end that is open.

    >>> year = exp.condition("d >= '2022-01-01' AND d < '2023-01-01'")
    >>> [str(day) for day in covered_days(list(year.flatten()))]
    ['2022-01-01', '2022-12-31']
    """
    ends = [end for condition in conditions for end in _ends(condition)]
    firsts = [day for is_first, day in ends if is_first]
    lasts = [day for is_first, day in ends if not is_first]
    return max(firsts, default=None), min(lasts, default=None)


def _ends(condition: exp.Expr) -> Iterator[tuple[bool, date]]:
    """(is it the first one, the day) for each end of the days that one condition lets through, or leaves out."""
    condition = condition.this.unnest() if isinstance(condition, exp.Not) else condition
    if isinstance(condition, exp.Between):
        yield from _end(exp.GTE, condition.args["low"])
        yield from _end(exp.LTE, condition.args["high"])
    elif isinstance(condition, exp.In):
        days = sorted(day for value in condition.expressions for _, day in _end(exp.GTE, value))
        yield from [(True, days[0]), (False, days[-1])] if days else []
    elif isinstance(condition, exp.Binary):
        kind: type[exp.Expr] = type(condition)
        value = condition.expression
        if not condition.this.find(exp.Column):  # '2022-01-01' <= d
            kind, value = _MIRRORED.get(kind, kind), condition.this
        yield from _end(kind, value)


def _end(kind: type[exp.Expr], value: exp.Expr) -> Iterator[tuple[bool, date]]:
    """Of ``d < value`` the day before: ``< '2023-01-01'`` ends with 2022."""
    literals = list(value.find_all(exp.Literal))
    match = _DAY.fullmatch(literals[0].this) if len(literals) == 1 else None
    if match is None:
        return
    try:
        day = date.fromisoformat(match[1])
        if kind is exp.GT:
            yield True, day + _ONE_DAY
        if kind is exp.LT:
            yield False, day if re.search(r"[1-9]", match["time"] or "") else day - _ONE_DAY
    except (ValueError, OverflowError):  # no day of the calendar
        return
    if kind in (exp.GTE, exp.EQ, exp.NEQ):
        yield True, day
    if kind in (exp.LTE, exp.EQ, exp.NEQ):
        yield False, day


def _month_end(year: int, month: int) -> date:
    return date(year, month, calendar.monthrange(year, month)[1])


def _ends_month(day: date) -> bool:
    return day == _month_end(day.year, day.month)


def _in_year(day: date, year: int) -> date:
    """The same day of another year; the 28th for a 29 February that it lacks."""
    return min(date(year, day.month, 1) + timedelta(days=day.day - 1), _month_end(year, day.month))


def _within(column: exp.Expr, sign: str, span: tuple[date, date], kind: str) -> exp.Expr:
    first, last = (exp.Literal.string(day.isoformat()) for day in span)
    if kind == "datetime":
        last = exp.Literal.string(f"{span[1]} {_DAY_END}")
    if sign == "=":
        return exp.Between(this=column, low=first, high=last)
    return SIGNS[sign](this=column, expression=last if sign in (">", "<=") else first)
