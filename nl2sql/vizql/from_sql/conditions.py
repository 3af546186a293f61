"""The expressions and conditions of a SELECT as Tableau formulas over captions and as filters.

A condition on one field is the filter that says it exactly; a strict comparison is one only of whole numbers and of
days, where ``> 4`` is ``>= 5``. Every other condition, and a second one on the same field, is a filter on a formula
that must be true.

>>> formula(parse_one("ROUND(2 * 3.5, 1)"), None)
'ROUND(2 * 3.5, 1)'
>>> formula(parse_one("strftime('%s', 1)", read="sqlite"), None)
Traceback (most recent call last):
    ...
nl2sql.vizql.from_sql.reading.NotStructured: function STRFTIME

Brackets of the SQL stay: signs bind alike in both. Not covered: relative dates, divisions of whole numbers, which a
formula does not have, and functions that formulas have under another meaning.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlglot import exp, parse_one

from nl2sql.vizql.compile import lowered
from nl2sql.vizql.formula_tree import NotExecutable, bracketed
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.query import is_full_date
from nl2sql.vizql.source import DATES, NUMBERS, FieldMetadata, result_type
from nl2sql.vizql.values import period

# -------------------------------------------------------------------------- expressions as formulas

_SIGNS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "+",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "AND",
    exp.Or: "OR",
}
_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Min: "MIN",
    exp.Max: "MAX",
    exp.Count: "COUNT",
}
_CALLS = _AGGREGATES | {
    exp.Abs: "ABS",
    exp.Upper: "UPPER",
    exp.Lower: "LOWER",
    exp.Length: "LEN",
    exp.Trim: "TRIM",
}
_MATCHES = {"contains": "CONTAINS", "startsWith": "STARTSWITH", "endsWith": "ENDSWITH"}
_PARTS_OF_DATES = {  # how SQL for SQLite takes parts of a date d, as whole numbers
    "CAST(STRFTIME('%Y', d) AS INTEGER)": "YEAR",
    "CAST(SUBSTR(d, 1, 4) AS INTEGER)": "YEAR",
    "CAST(STRFTIME('%m', d) AS INTEGER)": "MONTH",
    "CAST(SUBSTR(d, 6, 2) AS INTEGER)": "MONTH",
    "(CAST(SUBSTR(d, 6, 2) AS INTEGER) + 2) / 3": "QUARTER",
}


def formula(node: exp.Expr, select: SourceSelect) -> str:
    """The formula of an expression. Raises NotStructured for what formulas do not have, or have otherwise."""
    if (part := date_part(node, select)) is not None:
        return f"{part[0]}({bracketed(part[1].fieldCaption)})"
    match node:
        case exp.Column():
            return bracketed(select.field(node).fieldCaption)
        case exp.Literal():
            return _text(node.this) if node.is_string else node.this
        case exp.Paren():
            return f"({formula(node.this, select)})"
        case exp.Neg():
            return f"-{formula(node.this, select)}"
        case exp.Is(expression=exp.Null()):
            return f"ISNULL({formula(node.this, select)})"
        case exp.Not():
            return f"NOT ({formula(node.this, select)})"
        case exp.And() | exp.Or():
            return f" {_SIGNS[type(node)]} ".join(formula(part, select) for part in node.flatten(unnest=False))
        case exp.In() if node.expressions:
            ways = [exp.EQ(this=node.this, expression=value) for value in node.expressions]
            return "(" + " OR ".join(formula(way, select) for way in ways) + ")"
        case exp.Between():
            low = exp.GTE(this=node.this, expression=node.args["low"])
            high = exp.LTE(this=node.this, expression=node.args["high"])
            return f"({formula(low, select)} AND {formula(high, select)})"
        case exp.Like():
            kind, text = liked(node)
            about = formula(node.this, select)
            if select.like_ignores_case:
                about, text = f"LOWER({about})", lowered(text, select.dialect)
            return f"{_MATCHES[kind]}({about}, {_text(text)})"
        case exp.Case():
            return _choice(node, select)
        case exp.Round():
            parts = [node.this, *filter(None, [node.args.get("decimals")])]
            return f"ROUND({', '.join(formula(part, select) for part in parts)})"
        case exp.Coalesce(expressions=[other]):
            return f"IFNULL({formula(node.this, select)}, {formula(other, select)})"
    if isinstance(node, exp.Binary) and type(node) in _SIGNS:
        return _signed(node, select)
    if type(node) in _CALLS:
        return _call(node, select)
    raise NotStructured(f"function {_name(node)}")


def _signed(node: exp.Binary, select: SourceSelect) -> str:
    left, right = node.left, node.right
    if isinstance(node, exp.Div) and is_whole(left, select) and is_whole(right, select):
        raise NotStructured("division of whole numbers")
    return f"{_beside(left, right, select)} {_SIGNS[type(node)]} {_beside(right, left, select)}"


def _beside(side: exp.Expr, other: exp.Expr, select: SourceSelect) -> str:
    """One side of a sign; a text beside a date is a date."""
    dated = isinstance(other, exp.Column) and select.field(other).dataType in DATES
    if not (dated and isinstance(side, exp.Literal)):
        return formula(side, select)
    if not is_full_date(side.this):
        raise NotStructured("a date compared with a part of a date")
    return f"#{side.this}#"


def _call(node: exp.Expr, select: SourceSelect) -> str:
    argument = node.this
    if node.args.get("expressions"):
        raise NotStructured(f"function {_name(node)}")
    if isinstance(argument, exp.Star):
        return f"COUNT({bracketed(select.counted.fieldCaption)})"
    if isinstance(argument, exp.Distinct):
        if not isinstance(node, exp.Count) or len(argument.expressions) > 1:
            raise NotStructured("DISTINCT inside another function than COUNT")
        return f"COUNTD({formula(argument.expressions[0], select)})"
    if isinstance(argument, exp.Predicate):
        raise NotStructured("a condition as a number")
    return f"{_CALLS[type(node)]}({formula(argument, select)})"


def _choice(node: exp.Case, select: SourceSelect) -> str:
    words = []
    for i, way in enumerate(node.args["ifs"]):
        test = way.this if node.this is None else exp.EQ(this=node.this, expression=way.this)
        words += ["ELSEIF" if i else "IF", formula(test, select), "THEN", formula(way.args["true"], select)]
    default = node.args.get("default")
    return " ".join([*words, *(["ELSE", formula(default, select)] if default is not None else []), "END"])


def _text(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper()
    if isinstance(node, exp.Cast):
        return "CAST"
    return node.sql("sqlite").partition("(")[0].upper().strip()


def is_whole(node: exp.Expr, select: SourceSelect) -> bool:
    """Does SQLite have a whole number here?"""
    match node:
        case exp.Literal():
            return bool(node.is_int)
        case exp.Column():
            return select.field(node).dataType == "INTEGER"
        case exp.Count():
            return True
        case exp.Paren() | exp.Neg() | exp.Sum() | exp.Min() | exp.Max() | exp.Abs():
            return is_whole(node.this, select)
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            return is_whole(node.left, select) and is_whole(node.right, select)
        case exp.Case():
            results = [way.args["true"] for way in node.args["ifs"]]
            return all(is_whole(result, select) for result in results)
    return isinstance(node, exp.Cast)


def liked(node: exp.Like) -> tuple[str, str]:
    """What a LIKE asks of a text: that it contains, begins or ends with another. Raises NotStructured for others."""
    pattern = node.expression.this if isinstance(node.expression, exp.Literal) else ""
    text = pattern.strip("%")
    ends = pattern.startswith("%"), pattern.endswith("%")
    kinds = {(True, True): "contains", (False, True): "startsWith", (True, False): "endsWith"}
    if not text or "%" in text or "_" in text or ends not in kinds:
        raise NotStructured("a pattern that is no part of a text")
    return kinds[ends], text


def date_part(node: exp.Expr, select: SourceSelect) -> tuple[str, FieldMetadata] | None:
    """The part of a date that an expression takes, and the date; None where it takes none."""
    columns = list(node.find_all(exp.Column)) if isinstance(node, exp.Cast | exp.Div) else []
    if len(columns) != 1:
        return None
    named = node.transform(lambda part: exp.column("d") if isinstance(part, exp.Column) else part)
    part = _parts_of_dates().get(named.sql("sqlite"))
    field = select.field(columns[0]) if part else None
    return (part, field) if part and field is not None and field.dataType in DATES else None


@cache
def _parts_of_dates() -> dict[str, str]:
    return {parse_one(text, read="sqlite").sql("sqlite"): part for text, part in _PARTS_OF_DATES.items()}


# ---------------------------------------------------------------------------- conditions as filters

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
    if known.dataType in NUMBERS:
        return {"field": field, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": kind}
    if known.dataType in DATES:
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
    days = _days(node.expression.this) if known.dataType in DATES else None
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
        _, after = period("YEARS" if len(start) == 4 else "MONTHS", "CURRENT", first, 1)
    except (ValueError, NotExecutable):
        return None
    return {"minDate": str(first), "maxDate": str(after - datetime.timedelta(1))}


def _compared(about: exp.Expr, ends: tuple[tuple[Sign, exp.Expr], ...], select: SourceSelect) -> Json | None:
    """A comparison of a field, or of an aggregate of one, with values: a SET, or the ends of a range."""
    if not all(isinstance(value, exp.Literal | exp.Neg) for _, value in ends):
        return None
    of = (None, select.field(about)) if isinstance(about, exp.Column) else aggregated(about, select)
    if of is None:
        return None
    function, known = of
    field = {"fieldCaption": known.fieldCaption} | ({"function": function} if function else {})
    [(sign, first), *_] = ends
    if sign in (exp.EQ, exp.NEQ) and function is None:
        return _listed(known, [_value(first)], select, exclude=sign is exp.NEQ)
    kind = result_type(function, known.dataType)
    if kind in NUMBERS or (kind == "DATE" and function is None):
        return _range(field, ends, kind)
    return None


def _range(field: Json, ends: Iterable[tuple[Sign, exp.Expr]], kind: str) -> Json | None:
    low, high, said = ("minDate", "maxDate", "DATE") if kind == "DATE" else ("min", "max", "NUMERICAL")
    limits: Json = {}
    for sign, value in ends:
        step = int(sign is exp.GT) - int(sign is exp.LT)
        end = _day(value, step) if kind == "DATE" else _number(value, step, whole=kind == "INTEGER")
        if end is None or sign is exp.NEQ:
            return None
        limits |= {low: end} if sign in (exp.GT, exp.GTE, exp.EQ) else {}
        limits |= {high: end} if sign in (exp.LT, exp.LTE, exp.EQ) else {}
    kinds = {(True, True): "RANGE", (True, False): "MIN", (False, True): "MAX"}
    told = {"filterType": f"QUANTITATIVE_{said}", "quantitativeFilterType": kinds[low in limits, high in limits]}
    return {"field": field, **told, **limits}


def _number(value: exp.Expr, step: int, *, whole: bool) -> float | None:
    number = _value(value)
    if isinstance(number, str) or (step and not (whole and isinstance(number, int))):
        return None
    return number + step


def _day(value: exp.Expr, step: int) -> str:
    text = str(_value(value))
    if not is_full_date(text):
        raise NotStructured("a date compared with a part of a date")
    try:
        return str(datetime.date.fromisoformat(text) + datetime.timedelta(step))
    except OverflowError:
        raise NotStructured("a day past the calendar's end") from None


def _value(node: exp.Expr) -> Any:
    if isinstance(node, exp.Neg) and node.this.is_number:
        return -_value(node.this)
    if not isinstance(node, exp.Literal):
        raise NotStructured("a list of something else than values")
    if node.is_string or node.is_int:
        return node.this if node.is_string else int(node.this)
    try:
        number = float(node.this)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise NotStructured("a number past all limits")
    return number
