"""A follow-up that says nothing but another time: "What about Q4?", "and in 2022?", "on Fridays?", "the year before?".

>>> period = period_of("What about Q4?")
>>> period.months, period.words
((10, 11, 12), 'Q4')
>>> said_again("Top 10 products in Q3", period)
'Top 10 products in Q4'
>>> period_of("What about Q4 in Norway?") is None
True

However the previous query writes its condition on a date (BETWEEN, ``>= ... <``, LIKE, strftime, EXTRACT, date_trunc, a
text of year and month), the database itself is asked which days satisfy it. Where these are the days of certain months,
weekdays and one year or any, the follow-up's period takes the place of its kind ("Q4" of the months, "2022" of the
year), and the condition is written anew. SQLite, DuckDB and PostgreSQL.

Not covered: single days and weeks, a span that ends in mid-month, conditions on two columns of time, fiscal years.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database
from nl2sql.sql.parse import parse_bounded

DIALECTS = ("sqlite", "duckdb", "postgres")
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
          "december")  # fmt: skip
# as strftime and EXTRACT count them
WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4, "last": 4}
ALL_MONTHS, ALL_WEEKDAYS = tuple(range(1, 13)), tuple(range(7))
_MONTH_NAMES = "|".join(name if len(name) < 5 else f"{name[:3]}(?:{name[3:]})?" for name in MONTHS)
_UNITS = {  # what a period says -> its words in a question
    "quarter": re.compile(rf"\b(?:q(?P<number>[1-4])|(?:the )?(?P<nth>{'|'.join(ORDINALS)}) quarter)\b", re.IGNORECASE),
    "month": re.compile(rf"\b(?P<name>{_MONTH_NAMES})\b", re.IGNORECASE),
    "year": re.compile(r"\b(?P<year>(?:19|20)\d\d)\b"),
    "weekday": re.compile(rf"\b(?P<day>{'|'.join(WEEKDAYS)})s?\b", re.IGNORECASE),
}
_SHIFT = re.compile(
    r"\b(?:(?:the )?(?P<after>next|following)|(?:the )?(?P<before>previous|preceding)) (?P<unit>month|quarter|year)\b"
    r"|\b(?:the|a|one) (?P<unit2>month|quarter|year) (?:(?P<after2>after|later)|(?P<before2>before|earlier))\b",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"\b(?:what|how|about|and|now|then|but|or|for|in|on|of|the|that|this|same|only|just|instead|though|please|during|"
    r"rather|actually|ok|okay|sorry|oops|no|i|meant|mean|make|it|show|me|thing|again|year|month|quarter)\b|[^\w\s]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Period:
    """Months (1-12), weekdays (0 is Sunday) and a year, each () or None where nothing is said; or a shift.

    shift: so many ``unit``s later. words: as the question says it. units: what is said.
    """

    months: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    year: int | None = None
    shift: int = 0
    unit: str = ""
    words: str = ""
    units: tuple[tuple[str, str], ...] = ()


def period_of(question: str) -> Period | None:
    """The period that ``question`` says, where it says nothing else."""
    rest, units, period = question, [], Period()
    if shift := _SHIFT.search(rest):
        unit = (shift["unit"] or shift["unit2"]).lower()
        step = 1 if shift["after"] or shift["after2"] else -1
        period, rest = replace(period, shift=step, unit=unit, words=shift[0]), rest.replace(shift[0], " ", 1)
        return period if not _FILLER.sub(" ", rest).strip() else None
    for unit, form in _UNITS.items():
        if match := form.search(rest):
            units.append((unit, match[0]))
            rest = rest[: match.start()] + " " + rest[match.end() :]
            period = replace(period, **_meant(unit, match))
    if not units or _FILLER.sub(" ", rest).strip() or {"quarter", "month"} <= {unit for unit, _ in units}:
        return None
    return replace(period, words=" ".join(text for _, text in units), units=tuple(units))


def _meant(unit: str, match: re.Match[str]) -> dict[str, Any]:
    if unit == "quarter":
        number = int(match["number"] or ORDINALS[match["nth"].lower()])
        return {"months": tuple(range(3 * number - 2, 3 * number + 1))}
    if unit == "month":
        return {"months": (1 + next(n for n, name in enumerate(MONTHS) if name.startswith(match["name"].lower())),)}
    if unit == "year":
        return {"year": int(match["year"])}
    return {"weekdays": (WEEKDAYS.index(match["day"].lower()),)}


def said_again(question: str, period: Period) -> str:
    """``question`` with the words of ``period`` in the place of its own, or behind it."""
    for unit, text in period.units:
        alike = ("quarter", "month") if unit in ("quarter", "month") else (unit,)
        form = next((form for form in map(_UNITS.get, alike) if form and len(form.findall(question)) == 1), None)
        behind = f"{'on' if unit == 'weekday' else 'in'} {text}"
        question = form.sub(text, question) if form else _behind(question, behind)
    return question if period.units else _behind(question, f"but {period.words}")


def _behind(question: str, words: str) -> str:
    body, mark = re.fullmatch(r"(.*?)([?.!]*)\s*", question, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{body} {words}{mark}"


def in_period(sql: str, period: Period, database: Database) -> str:
    """``sql`` with its condition on a date turned to ``period``; "" where it has none that can be.

    Raises nothing: a query that cannot be read, and a database that cannot tell, have none.
    """
    if database.dialect not in DIALECTS:
        return ""
    try:
        tree = parse_bounded(sql, database.dialect)
        spans = [span for where in tree.find_all(exp.Where) for span in _spans(where, database)]
        if len(spans) != 1 or (turned := spans[0].turned(period)) is None:
            return ""
        turned.write()
        return tree.sql(dialect=database.dialect)
    except (SqlglotError, Nl2SqlError, _NotInColumn):
        return ""


class _NotInColumn(Exception):
    """Why a column's form cannot hold a period."""


@dataclass(frozen=True)
class _Span:
    """The days that the ``conditions`` of a WHERE on one ``column`` let through.

    form: how the column holds a day: ``%Y-%m-%d`` (text), ``%Y-%m`` (text), ``%Y`` (text or number), "" for a date.
    """

    where: exp.Where
    column: exp.Column
    conditions: tuple[exp.Expr, ...]
    form: str
    dialect: str
    year: int | None
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    def turned(self, period: Period) -> _Span | None:
        if period.shift:
            return self._shifted(period)
        year = self.year if period.year is None else period.year
        return replace(self, year=year, months=period.months or self.months, weekdays=period.weekdays or self.weekdays)

    def _shifted(self, period: Period) -> _Span | None:
        if period.unit == "year":
            return replace(self, year=self.year + period.shift) if self.year is not None else None
        width = {"month": 1, "quarter": 3}[period.unit]
        if self.year is None or len(self.months) != width or not _is_run(self.months):
            return None
        at = 12 * self.year + self.months[0] - 1 + width * period.shift
        return replace(self, year=at // 12, months=tuple(range(at % 12 + 1, at % 12 + 1 + width)))

    def write(self) -> None:
        others = [each for each in _conjuncts(self.where.this) if not any(each is c for c in self.conditions)]
        self.where.set("this", exp.and_(*(each.copy() for each in others), *self._written()))

    def _written(self) -> list[exp.Expr]:
        whole = self.year is not None and _is_run(self.months) and self.weekdays == ALL_WEEKDAYS
        if self.form == "%Y":
            if not whole or self.months != ALL_MONTHS:
                raise _NotInColumn("a column of years holds no months")
            literal = exp.Literal.string if self.column.meta.get("text") else exp.Literal.number
            return [exp.EQ(this=self.column.copy(), expression=literal(self.year))]
        if whole:
            first, behind = date(self.year or 0, self.months[0], 1), 12 * (self.year or 0) + self.months[-1]
            ends = (self._day(first), self._day(date(behind // 12, behind % 12 + 1, 1)))
            return [
                exp.GTE(this=self.column.copy(), expression=ends[0]),
                exp.LT(this=self.column.copy(), expression=ends[1]),
            ]
        if self.form == "%Y-%m":
            raise _NotInColumn("months of any year")
        parts: list[tuple[str, str, tuple[int, ...]]] = [
            ("YEAR", "%Y", (self.year,) if self.year is not None else ()),
            ("MONTH", "%m", self.months if self.months != ALL_MONTHS else ()),
            ("DOW", "%w", self.weekdays if self.weekdays != ALL_WEEKDAYS else ()),
        ]
        return [self._part(unit, code, values) for unit, code, values in parts if values]

    def _part(self, unit: str, code: str, values: Sequence[int]) -> exp.Expr:
        column = self.column.sql(dialect=self.dialect)
        if self.dialect == "sqlite":
            part = f"CAST(strftime('{code}', {column}) AS INTEGER)"
        else:
            part = f"EXTRACT({unit} FROM {f'CAST({column} AS DATE)' if self.form else column})"
        listed = ", ".join(map(str, values))
        text = f"{part} = {listed}" if len(values) == 1 else f"{part} IN ({listed})"
        return parse_bounded(f"SELECT 1 WHERE {text}", self.dialect).args["where"].this

    def _day(self, day: date) -> exp.Expr:
        text = exp.Literal.string(day.strftime(self.form or "%Y-%m-%d"))
        return text if self.form else exp.cast(text, "DATE")


def _is_run(months: Sequence[int]) -> bool:
    return list(months) == list(range(months[0], months[-1] + 1))


def _conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    while isinstance(condition, exp.Paren) and isinstance(condition.this, exp.And):
        condition = condition.this
    if isinstance(condition, exp.And):
        return [*_conjuncts(condition.left), *_conjuncts(condition.right)]
    return [condition]


def _spans(where: exp.Where, database: Database) -> list[_Span]:
    """The spans of time that the conditions of ``where`` set, one per column that does."""
    groups: dict[str, list[exp.Expr]] = {}
    for condition in _conjuncts(where.this):
        columns = {column.sql() for column in condition.find_all(exp.Column)}
        if len(columns) == 1 and not condition.find(exp.Select):
            groups.setdefault(columns.pop(), []).append(condition)
    return [span for conditions in groups.values() if (span := _span(where, conditions, database))]


def _span(where: exp.Where, conditions: Sequence[exp.Expr], database: Database) -> _Span | None:
    column = next(conditions[0].find_all(exp.Column))
    form = _form_of(column, where, database)
    if form is None:
        return None
    named = sorted({int(y) for c in conditions for y in re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", c.sql())}) or [2020]
    if named[-1] - named[0] > 5:
        return None
    years = range(named[0] - 1, named[-1] + 2)  # a year on each side shows a span that does not end
    first, last = date(years[0], 1, 1), date(years[-1], 12, 31)
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    let = _satisfying(conditions, days, form, database)
    seen = {day.year for day in let}, {day.month for day in let}, {day.isoweekday() % 7 for day in let}
    wanted = {day for day in days if day.year in seen[0] and day.month in seen[1] and day.isoweekday() % 7 in seen[2]}
    if not let or len(let) == len(days) or let != wanted or len(seen[0]) not in (1, len(years)):
        return None
    year = min(seen[0]) if len(seen[0]) == 1 else None
    months, weekdays = (tuple(sorted(part)) for part in seen[1:])
    return _Span(where, column, tuple(conditions), form, database.dialect, year, months, weekdays)


def _satisfying(conditions: Sequence[exp.Expr], days: Collection[date], form: str, database: Database) -> set[date]:
    """The days that ``conditions`` let through, in the column's place."""
    cell: exp.Expr = exp.column("held", table="days")
    cell = cell if form else exp.cast(cell, "DATE")
    asked = exp.and_(*(condition.copy() for condition in conditions))
    for column in list(asked.find_all(exp.Column)):
        column.replace(cell.copy())
    number = form == "%Y" and not next(conditions[0].find_all(exp.Column)).meta.get("text")
    quote = "" if number else "'"
    rows = ", ".join(f"('{day}', {quote}{day.strftime(form or '%Y-%m-%d')}{quote})" for day in days)
    sql = f"WITH days(day, held) AS (VALUES {rows}) SELECT day FROM days WHERE {asked.sql(dialect=database.dialect)}"
    result = database.run(sql, timeout_s=10.0, max_rows=len(days) + 1)
    return {date.fromisoformat(str(row[0])) for row in result.rows} if result.success else set()


def _form_of(column: exp.Column, where: exp.Where, database: Database) -> str | None:
    """How the column holds days (``_Span.form``), by its type or one of its cells; None where it holds none."""
    select = where.parent_select
    tables = {t.alias_or_name.lower(): t.name for t in select.find_all(exp.Table)} if select else {}
    names = [tables.get(column.table.lower())] if column.table else list(tables.values())
    schema = database.schema()
    in_query = [table for name in names if name and (table := schema.table(name))]
    found = next(((t, c) for t in in_query for c in t.columns if c.name.lower() == column.name.lower()), None)
    if found is None:
        return None
    if database.dialect != "sqlite" and re.match(r"date|timestamp", found[1].type, re.IGNORECASE):
        return ""
    of, name = (exp.to_identifier(part.name, quoted=True).sql(database.dialect) for part in found)
    result = database.run(f"SELECT {name} FROM {of} WHERE {name} IS NOT NULL LIMIT 1", timeout_s=10.0, max_rows=1)
    cell = result.rows[0][0] if result.success and result.rows else None
    column.meta["text"] = isinstance(cell, str)
    for form, shape in (("%Y", r"(19|20)\d\d"), ("%Y-%m", r"\d{4}-\d\d"), ("%Y-%m-%d", r"\d{4}-\d\d-\d\d\b.*")):
        if re.fullmatch(shape, str(cell)) and isinstance(cell, (str, int)):
            return form
    return None
