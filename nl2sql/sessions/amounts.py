"""The numbers, times and dates of a follow-up with their operators, each as a condition on one column.

>>> [(c.operator, c.text) for c in comparisons_of("no older than 30, above 80 and below 1,000", [])]
[('<=', '30'), ('>', '80'), ('<', '1000')]

>>> from nl2sql.sessions.reading import read_followup
>>> [june] = read_followup("and in June?").comparisons
>>> may = exp.Between(this=exp.column("d"), low=exp.Literal.string("2023-05-01"), high=exp.Literal.string("2023-05-31"))
>>> comparison_condition(june, exp.column("d"), "date", [may]).sql()
"d BETWEEN '2023-06-01' AND '2023-06-30'"
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from sqlglot import exp

from nl2sql.sessions.naming import edit_words
from nl2sql.sessions.periods import MONTHS
from nl2sql.sessions.wording import TO_TEN

_NUMBER = re.compile(r"(?<![\w.:/-])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?!(?!k\b)[\w:/]|[-.]\d)")
_WORD_NUMBER = re.compile(  # "at least one order" is about orders
    r"\b(?:more than|less than|fewer than|over|under|exactly|at most|at least (?!one\b)) ?"
    rf"(?P<number>one|{TO_TEN}|eleven|twelve)\b(?! (?:of|hundred|thousand|million))"
)
_TIME = re.compile(r"(?<![\w:])(?P<time>\d{1,2}:\d{2})(?![\w:])")
_DAY = re.compile(r"(?<![\w-])(?P<day>\d{4}-\d{2}-\d{2})(?![\w-])")
_DAY_BEFORE = r"(?:\b(?P<first>\d{1,2})(?:st|nd|rd|th)?(?: of)? )?"
_DAY_BEHIND = r"(?: (?P<last>\d{1,2})(?:st|nd|rd|th)?(?![\d:]))?"
_BEHIND_COLUMN = re.compile(  # "above floor 1"
    r"(.*\b(?:over|under|above|below|beyond|exceeding|more than|less than|fewer than) )[a-z_]+$"
)
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_OF_DAYS = {"older than": "<", "younger than": ">"}  # what is older has the lower year


@dataclass(frozen=True)
class Comparison:
    """A number, a time or a date of the sentence: its operator ("" for none written), its place, and its parts."""

    operator: str
    text: str
    start: int
    end: int
    kind: str  # number | year | month | day | time
    month: int = 0
    high: str = ""  # of "between A and B"


def comparisons_of(text: str, taken: Sequence[tuple[int, int]]) -> list[Comparison]:
    """Numbers, times, days, years and months of a text in lower case; what lies within ``taken`` is none of them."""
    found: list[Comparison] = []

    def free(start: int, end: int) -> bool:
        spans = [*taken, *((c.start, c.end) for c in found)]
        return all(end <= other[0] or other[1] <= start for other in spans)

    between = re.search(r"\b(?:between|from) (?P<low>\d[\d:,.-]*) (?:and|to) (?P<high>\d[\d:,.-]*\d|\d)", text)
    if between:
        low, high = (between[name].replace(",", "").rstrip(".") for name in ("low", "high"))
        found.append(Comparison("between", low, *between.span(), _kind_of(low), high=high))
    months = "|".join(MONTHS)
    for match in re.finditer(rf"{_DAY_BEFORE}\b(?P<month>{months}){_DAY_BEHIND}(?:,? (?P<year>\d{{4}}))?\b", text):
        if not free(*match.span()):
            continue
        if (
            match["month"] == "may"
            and not (match["year"] or match["first"] or match["last"])
            and not re.search(
                r"\b(?:in|of|during|for|about|and|to|since|before|after|until|till|between)(?: about)? may\b", text
            )
        ):
            continue
        number = MONTHS.index(match["month"]) + 1
        if day := match["first"] or match["last"]:
            iso = f"{match['year']}-{number:02}-{int(day):02}" if match["year"] else ""
            found.append(Comparison(_operator(text, *match.span()), iso, *match.span(), "day", number))
            continue
        found.append(Comparison(_operator(text, *match.span()), match["year"] or "", *match.span(), "month", number))
    for pattern in (_DAY, _TIME, _NUMBER):
        for match in pattern.finditer(text):
            if free(*match.span()):
                number_text = match[0].replace(",", "")
                kind = {_DAY: "day", _TIME: "time"}.get(pattern, _kind_of(number_text))
                found.append(Comparison(_operator(text, *match.span()), number_text, *match.span(), kind))
    for match in _WORD_NUMBER.finditer(text):
        at = match.span("number")
        if free(*at):
            value = str(edit_words()["numbers"].index(match["number"]))
            found.append(Comparison(_operator(text, *at), value, *at, "number"))
    return sorted(found, key=lambda comparison: comparison.start)


def _kind_of(text: str) -> str:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        return "day"
    if ":" in text:
        return "time"
    return "year" if re.fullmatch(r"(?:1[5-9]|20)\d\d", text) else "number"


def _operator(text: str, start: int, end: int) -> str:
    """The longest comparison that stands before the number or behind it; "" for none."""
    before = " ".join(re.findall(r"[\w']+", text[:start])[-6:])
    before = re.sub(r" (?:the year|year|the)$", "", before)
    after = " ".join(re.findall(r"\w+", text[end:])[:4])
    listed = edit_words()
    behind = [(len(w), sign) for sign, those in listed["behind"].items() for w in those if _starts(after, w)]
    if behind:
        return str(max(behind)[1])
    fits = [
        (len(word), str(sign), word)
        for sign, those in listed["comparisons"].items()
        for word in those
        if f" {before}".endswith(f" {word}")
    ]
    if not fits and (head := _BEHIND_COLUMN.search(before)):
        return _operator(head[1] + text[start:end], len(head[1]), len(head[1]) + end - start)
    if not fits:
        return ""
    _, sign, word = max(fits)
    if _kind_of(text[start:end]) in ("year", "day"):
        sign = _OF_DAYS.get(word, sign)
    denied = re.search(rf"(?:\b(?:no|not|never)|n't) {re.escape(word)}$", before)  # "no older than", "not after"
    return _OPPOSITE.get(sign, sign) if denied else sign


def _starts(after: str, cue: str) -> bool:
    """ "or more", also behind a unit: "20 points or more"."""
    tails = after, " ".join(after.split()[1:])
    said = next((tail[len(cue) :] for tail in tails if tail.startswith(cue)), None)
    return said is not None and not re.match(r" (?:than\b|\d)", said)  # "above 80 and below 100"


# ------------------------------------------------------------------- as the condition on one column
# A year or month keeps what is not said again of the days that the replaced conditions let through:
# "What about 2023?" behind April to June 2022 is April to June 2023. Not covered: days within
# functions (``strftime``) and patterns.

DATES = ("date", "datetime")
SIGNS: dict[str, type[exp.Binary]] = {">": exp.GT, ">=": exp.GTE, "<": exp.LT, "<=": exp.LTE, "=": exp.EQ}
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}
_DAY_OR_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](?P<time>.+))?")
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
    match = _DAY_OR_MOMENT.fullmatch(literals[0].this) if len(literals) == 1 else None
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
