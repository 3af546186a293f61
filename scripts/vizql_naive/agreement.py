"""Do the rows of a database agree with an answer, and which constructs does a query have?

>>> answer = Answer(["Sales"], [1], [0], [(0.25,), (None,)])
>>> difference(answer, [(0.3,), (None,)]), difference(answer, [(None,), (0.3,)])
('', 'row 1')

Rows are compared in the order by which the query sorts; among equals, and without sorting, in any order. Floats may be
apart by 1e-9 of their size. A rounded number is that of halves away from zero; where floats do not hold the half, the
number on the other side of it will do. Not covered: types; 1, 1.0 and true are the same.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vizql_naive.evaluation import Answer, near
from vizql_naive.formulas import rounded

Row = Sequence[Any]
_WORD = re.compile(r"\b(?:(IF|CASE|AND|OR|NOT|NULL)\b|([A-Z]+)\()|(<>|!=|<=|>=|[-+*/%=<>])|(\[Parameters\])")


def difference(answer: Answer, rows: Sequence[Row]) -> str:
    """Where the rows of a database differ from an answer; empty where they do not."""
    if len(rows) != len(answer.rows):
        return f"{len(rows)} rows, expected {len(answer.rows)}"
    for start, end in _ties(answer):
        left = list(rows[start:end])
        for expected in sorted(answer.rows[start:end], key=lambda row: _ways(answer, row)):
            i = next((i for i, row in enumerate(left) if _same(answer, expected, row)), None)
            if i is None:
                return f"row {start + 1}" if end == start + 1 else f"rows {start + 1} to {end}: {expected} is missing"
            left.pop(i)
    return ""


def _ties(answer: Answer) -> Iterator[tuple[int, int]]:
    """From where to where the rows are equals by what the query sorts by."""
    start = 0
    for i in range(1, len(answer.rows) + 1):
        if i == len(answer.rows) or not all(near(answer.rows[i - 1][k], answer.rows[i][k]) for k in answer.sorted_by):
            yield start, i
            start = i


def _ways(answer: Answer, expected: Row) -> int:
    """How many rows would do; those that only one would do for are looked for first."""
    pairs = [(item, decimals) for item, decimals in zip(expected, answer.decimals, strict=True) if decimals is not None]
    return math.prod(len(_rounded(item, decimals)) for item, decimals in pairs if isinstance(item, float))


def _same(answer: Answer, expected: Row, row: Row) -> bool:
    return len(expected) == len(row) and all(map(_same_value, expected, row, answer.decimals))


def _same_value(expected: Any, given: Any, decimals: int | None) -> bool:
    if expected is None or given is None:
        return expected is given
    if isinstance(expected, datetime.date):
        return _same_day(expected, given)
    if isinstance(given, decimal.Decimal):
        given = float(given)
    if decimals is None or not isinstance(expected, float):
        return near(expected, given)
    return any(near(number, given) for number in _rounded(expected, decimals))


def _rounded(number: float, decimals: int) -> set[float]:
    """What a number may be at so many decimals: of halves that floats do not hold, both neighbours."""
    there = rounded(number, decimals)
    if decimals > 15:
        return {there}
    scaled = abs(fractions.Fraction(number)) * 10**decimals
    off = abs(scaled % 1 - fractions.Fraction(1, 2))
    if off == 0 or off > 1e-9 * max(1, scaled):
        return {there}
    return {there, rounded(number * (1 - 1e-8), decimals), rounded(number * (1 + 1e-8), decimals)}


def _same_day(expected: datetime.date, given: Any) -> bool:
    given = datetime.datetime.fromisoformat(given) if isinstance(given, str) else given
    if isinstance(expected, datetime.datetime):
        return bool(expected == given)
    midnight = not isinstance(given, datetime.datetime) or given.time() == datetime.time()
    return midnight and (expected.year, expected.month, expected.day) == (given.year, given.month, given.day)


def constructs(request: dict[str, Any], measures: frozenset[str] = frozenset()) -> set[str]:
    """What a query is made of, by name; ``measures`` are the captions of measures."""
    query, options = request["query"], request.get("options", {})
    names = {f"option {key}" for key in options} | ({"parameters"} if "parameters" in query else set())
    for part in query["fields"]:
        names |= set(_about("field", part))
        names |= {"measure alone"} if set(part) == {"fieldCaption"} and part["fieldCaption"] in measures else set()
        names |= {key for key in ("sortPriority", "maxDecimalPlaces", "fieldAlias") if key in part}
        names |= {"sortDirection DESC"} if part.get("sortDirection") == "DESC" and "sortPriority" in part else set()
    for part in query.get("filters", []):
        names |= set(_about("filter", part["field"])) | set(_filter(part))
        for key in ("fieldToMeasure", "condition"):
            names |= set(_about(key, part[key])) if key in part else set()
    return names


def _about(where: str, part: dict[str, Any]) -> Iterator[str]:
    kinds = [key for key in ("calculation", "function", "binSize") if key in part]
    yield f"{where} with {kinds[0]}" if kinds else f"{where} alone"
    if "function" in part:
        yield f"function {part['function']}"
    yield from _formula(part.get("calculation", ""))


def _formula(text: str) -> Iterator[str]:
    without = re.sub(r"'[^']*'|\"[^\"]*\"|#[^#]*#|\[(?!Parameters\])[^]]*\]", "x", text)
    yield from (f"formula {''.join(match.groups(''))}" for match in _WORD.finditer(without))


def _filter(part: dict[str, Any]) -> Iterator[str]:
    kind = part["filterType"]
    more = (part.get(key, "") for key in ("quantitativeFilterType", "dateRangeType", "periodType", "direction"))
    yield " ".join(["filter", kind, *filter(None, more)]) if kind != "DATE" else f"filter DATE {part['dateRangeType']}"
    yield from ([f"period {part['periodType']}"] if "periodType" in part else [])
    yield from (f"filter {key}" for key in ("exclude", "includeNulls", "context") if part.get(key))
    yield from (f"match {key}" for key in ("startsWith", "contains", "endsWith") if key in part)
    yield from _formula(part.get("calculation", ""))
