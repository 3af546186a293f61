"""An expression of SQL as a Tableau formula over captions.

>>> from sqlglot import parse_one
>>> formula(parse_one("ROUND(2 * 3.5, 1)"), None)
'ROUND(2 * 3.5, 1)'
>>> formula(parse_one("strftime('%s', 1)", read="sqlite"), None)
Traceback (most recent call last):
    ...
nl2sql.vizql.from_sql.reading.NotStructured: function STRFTIME

Brackets of the SQL stay: signs bind alike in both. Not covered: divisions of whole numbers, which a formula does not
have, and functions that formulas have under another meaning.
"""

from __future__ import annotations

from functools import cache

from sqlglot import exp

from nl2sql.vizql.conditions import lowered
from nl2sql.vizql.fields import DATE_PARTS
from nl2sql.vizql.filters import is_full_date
from nl2sql.vizql.formula_tree import bracketed
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.source import FieldMetadata

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
_CALLS: dict[type[exp.Expr], str] = {
    exp.Sum: "SUM",
    exp.Avg: "AVG",
    exp.Min: "MIN",
    exp.Max: "MAX",
    exp.Count: "COUNT",
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
        case exp.Round() if node.args.get("decimals") is not None:
            return f"ROUND({formula(node.this, select)}, {formula(node.args['decimals'], select)})"
        case exp.Round():
            return f"ROUND({formula(node.this, select)})"
        case exp.Coalesce(expressions=[other]):
            return f"IFNULL({formula(node.this, select)}, {formula(other, select)})"
    if isinstance(node, exp.Binary) and type(node) in _SIGNS:
        return _signed(node, select)
    if type(node) in _CALLS:
        return _call(node, select)
    raise NotStructured(f"function {_name(node)}")


def _signed(node: exp.Binary, select: SourceSelect) -> str:
    if isinstance(node, exp.Div) and is_whole(node.left, select) and is_whole(node.right, select):
        raise NotStructured("division of whole numbers")
    sides = [_beside(side, other, select) for side, other in ((node.left, node.right), (node.right, node.left))]
    return f"{sides[0]} {_SIGNS[type(node)]} {sides[1]}"


def _beside(side: exp.Expr, other: exp.Expr, select: SourceSelect) -> str:
    """One side of a sign; a text beside a date is a date."""
    dated = isinstance(other, exp.Column) and select.field(other).dataType in ("DATE", "DATETIME")
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
    return (part, field) if part and field is not None and field.dataType in ("DATE", "DATETIME") else None


@cache
def _parts_of_dates() -> dict[str, str]:
    from sqlglot import parse_one

    assert set(_PARTS_OF_DATES.values()) <= DATE_PARTS
    return {parse_one(text, read="sqlite").sql("sqlite"): part for text, part in _PARTS_OF_DATES.items()}
