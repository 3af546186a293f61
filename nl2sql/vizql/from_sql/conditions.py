"""The conditions of a SELECT as filters.

A condition on one field is the filter that says it exactly; a strict comparison is one only of whole numbers and of
days, where ``> 4`` is ``>= 5``. Every other condition, and a second one on the same field, is a filter on a formula
that must be true.

>>> as_set({"fieldCaption": "Town"}, ["Bern"], exclude=True, nulls=True)["values"]
['Bern', None]

Not covered: filters by TOP (``writing``), relative dates, and what formulas do not have.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from typing import Any

from sqlglot import exp

from nl2sql.vizql.filters import is_full_date
from nl2sql.vizql.from_sql.expressions import formula, liked
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.functions import result_type
from nl2sql.vizql.source import FieldMetadata

Json = dict[str, Any]
Sign = type[exp.Expr]
_TURNED: dict[Sign, Sign] = {  # a sign read from the right
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
}
_AGGREGATES: dict[Sign, str] = {exp.Sum: "SUM", exp.Avg: "AVG", exp.Min: "MIN", exp.Max: "MAX", exp.Count: "COUNT"}
_KINDS = {(True, True): "RANGE", (True, False): "MIN", (False, True): "MAX"}


def filters_of(select: SourceSelect) -> list[Json]:
    """The filters of WHERE and HAVING, in the SQL's order. Raises NotStructured."""
    made: list[Json] = []
    for clause in ("where", "having"):
        if (tree := select.tree.args.get(clause)) is not None:
            condition = tree.this.unnest()
            for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
                _add(made, part, select)
    return made


def aggregated(node: exp.Expr, select: SourceSelect) -> tuple[str, FieldMetadata] | None:
    """The function and field of an aggregate of a column; None for other expressions."""
    if type(node) not in _AGGREGATES or node.args.get("expressions"):
        return None
    if isinstance(node.this, exp.Star):
        return "COUNT", select.counted
    distinct = isinstance(node.this, exp.Distinct)
    of = node.this.expressions[0] if distinct else node.this
    if distinct and not (isinstance(node, exp.Count) and len(node.this.expressions) == 1):
        return None
    if not isinstance(of, exp.Column):
        return None
    return "COUNTD" if distinct else _AGGREGATES[type(node)], select.field(of)


def as_set(field: Json, values: Iterable[Any], *, exclude: bool = False, nulls: bool = False) -> Json:
    """A SET filter; with ``nulls`` NULL is among its values."""
    part: Json = {"field": field, "filterType": "SET", "values": [*values, *([None] if nulls else [])]}
    return part | ({"exclude": True} if exclude else {})


def not_null(known: FieldMetadata, *, only_null: bool = False) -> Json:
    """The filter that leaves out NULL, or all but NULL, of a field."""
    field = {"fieldCaption": known.fieldCaption}
    kind = "ONLY_NULL" if only_null else "ONLY_NON_NULL"
    if known.dataType in ("INTEGER", "REAL"):
        return {"field": field, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": kind}
    if known.dataType in ("DATE", "DATETIME"):
        return {"field": field, "filterType": "QUANTITATIVE_DATE", "quantitativeFilterType": kind}
    return as_set(field, [None], exclude=not only_null)


def _add(made: list[Json], condition: exp.Expr, select: SourceSelect) -> None:
    """One more filter; the two ends of one range become one, any other second filter of a field a formula."""
    part = _direct(condition.unnest(), select)
    before = [other for other in made if part is not None and other["field"] == part["field"]]
    if part is not None and not before:
        made.append(part)
    elif part is None or not _ranged(before[0], part):
        field = {"calculation": formula(condition.unnest(), select)}
        made.append(as_set(field, [True]))


def _ranged(one: Json, other: Json) -> bool:
    """Makes a RANGE of a MIN and a MAX filter of one field, in place; False where they are others."""
    kinds = {one.get("quantitativeFilterType"), other.get("quantitativeFilterType")}
    if kinds != {"MIN", "MAX"} or one["filterType"] != other["filterType"]:
        return False
    one |= {**other, "quantitativeFilterType": "RANGE"}
    return True


def _direct(node: exp.Expr, select: SourceSelect) -> Json | None:
    """The filter on one field that says a condition exactly; None where there is none."""
    inverted = isinstance(node, exp.Not)
    inner = node.this.unnest() if isinstance(node, exp.Not) else node
    if isinstance(inner, exp.Is) and isinstance(inner.this, exp.Column) and isinstance(inner.expression, exp.Null):
        return not_null(select.field(inner.this), only_null=not inverted)
    if isinstance(inner, exp.In) and isinstance(inner.this, exp.Column):
        known = select.field(inner.this)
        if not inner.expressions:
            raise NotStructured("a list of something else than values")
        return _listed(known, [_value(item) for item in inner.expressions], select, exclude=inverted)
    if inverted:
        return None
    if isinstance(node, exp.Like) and isinstance(node.this, exp.Column):
        return _matched(node, select.field(node.this), select)
    if isinstance(node, exp.Between):
        return _compared(node.this, ((exp.GTE, node.args["low"]), (exp.LTE, node.args["high"])), select)
    if not isinstance(node, exp.Binary) or type(node) not in _TURNED:
        return None
    if isinstance(node.left, exp.Literal):
        return _compared(node.right, ((_TURNED[type(node)], node.left),), select)
    return _compared(node.left, ((type(node), node.right),), select)


def _listed(known: FieldMetadata, values: list[Any], select: SourceSelect, *, exclude: bool) -> Json:
    """SQL's NOT IN leaves NULL out, a SET filter with ``exclude`` does only where NULL is listed."""
    nulls = exclude and known.fieldCaption in select.nullable
    return as_set({"fieldCaption": known.fieldCaption}, values, exclude=exclude, nulls=nulls)


def _matched(node: exp.Like, known: FieldMetadata, select: SourceSelect) -> Json | None:
    field = {"fieldCaption": known.fieldCaption}
    if known.dataType == "STRING":
        if not select.like_ignores_case:
            return None
        kind, text = liked(node)
        return {"field": field, "filterType": "MATCH", kind: text}
    days = _days(node.expression.this) if known.dataType in ("DATE", "DATETIME") else None
    if days is None:
        raise NotStructured("a pattern of something else than a text")
    return {"field": field, "filterType": "QUANTITATIVE_DATE", "quantitativeFilterType": "RANGE"} | days


def _days(pattern: str) -> Json | None:
    """The days of a year or a month that a pattern such as ``2024-05-%`` leaves."""
    start = pattern.removesuffix("%").rstrip("-")
    if not pattern.endswith("-%") or len(start) not in (4, 7):
        return None
    try:
        first = datetime.date.fromisoformat(start + "-01-01"[len(start) - 4 :])
        later = first + datetime.timedelta(366 if len(start) == 4 else 31)
    except (ValueError, OverflowError):
        return None
    after = later.replace(month=1, day=1) if len(start) == 4 else later.replace(day=1)
    return {"minDate": str(first), "maxDate": str(after - datetime.timedelta(1))}


def _compared(about: exp.Expr, ends: tuple[tuple[Sign, exp.Expr], ...], select: SourceSelect) -> Json | None:
    """A comparison of a field, or of an aggregate of one, with values: a SET, or the ends of a range."""
    if not all(isinstance(value, exp.Literal | exp.Neg) for _, value in ends):
        return None
    function, known = _about(about, select)
    if known is None:
        return None
    field = {"fieldCaption": known.fieldCaption} | ({"function": function} if function else {})
    [(sign, first), *_] = ends
    if sign in (exp.EQ, exp.NEQ) and function is None:
        return _listed(known, [_value(first)], select, exclude=sign is exp.NEQ)
    kind = result_type(function, known.dataType)
    if kind in ("INTEGER", "REAL"):
        return _numbers(field, ends, whole=kind == "INTEGER")
    return _dates(field, ends) if kind == "DATE" and function is None else None


def _about(about: exp.Expr, select: SourceSelect) -> tuple[str | None, FieldMetadata | None]:
    if isinstance(about, exp.Column):
        return None, select.field(about)
    return aggregated(about, select) or (None, None)


def _numbers(field: Json, ends: Iterable[tuple[Sign, exp.Expr]], *, whole: bool) -> Json | None:
    limits: Json = {}
    for sign, value in ends:
        number = _value(value)
        if isinstance(number, str) or sign is exp.NEQ:
            return None
        if sign in (exp.GT, exp.LT):
            if not (whole and isinstance(number, int)):
                return None
            number += 1 if sign is exp.GT else -1
        limits |= {"min": number} if sign in (exp.GT, exp.GTE, exp.EQ) else {}
        limits |= {"max": number} if sign in (exp.LT, exp.LTE, exp.EQ) else {}
    kind = _KINDS["min" in limits, "max" in limits]
    return {"field": field, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": kind} | limits


def _dates(field: Json, ends: Iterable[tuple[Sign, exp.Expr]]) -> Json | None:
    limits: Json = {}
    for sign, value in ends:
        text = str(_value(value))
        if not is_full_date(text):
            raise NotStructured("a date compared with a part of a date")
        step = int(sign is exp.GT) - int(sign is exp.LT)
        try:
            date = str(datetime.date.fromisoformat(text) + datetime.timedelta(step))
        except OverflowError:
            raise NotStructured("a day past the calendar's end") from None
        limits |= {"minDate" if sign in (exp.GT, exp.GTE) else "maxDate": date}
    kind = _KINDS["minDate" in limits, "maxDate" in limits]
    return {"field": field, "filterType": "QUANTITATIVE_DATE", "quantitativeFilterType": kind} | limits


def _value(node: exp.Expr) -> Any:
    if isinstance(node, exp.Neg) and node.this.is_number:
        return -_value(node.this)
    if not isinstance(node, exp.Literal):
        raise NotStructured("a list of something else than values")
    return node.this if node.is_string else int(node.this) if node.is_int else _real(node.this)


def _real(digits: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise NotStructured("a number past all limits")
    return number
