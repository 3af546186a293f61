"""A SQL gold as the structured queries that a Tableau user may write for it, the plainest first.

A query alone is plainer than a request with options, and fewer filters are plainer than more. Which of them has the
SQL's rows is for ``proof`` to say.

>>> field = {"fieldCaption": "Sales", "function": "SUM", "sortDirection": "DESC", "sortPriority": 1}
>>> _top([{"fieldCaption": "Region"}, field], 3)["fieldToMeasure"]
{'fieldCaption': 'Sales', 'function': 'SUM'}

Not covered: ORDER BY of what is not asked for; table calculations; bins wider than one whole number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from nl2sql.vizql.fields import DATE_PARTS
from nl2sql.vizql.functions import ON_DIMENSIONS, result_type
from nl2sql.vizql.infer import caption_of
from nl2sql.vizql.source import FieldMetadata
from vizql_golds.filters import Json, aggregated, filters_of, not_null
from vizql_golds.formulas import date_part, formula
from vizql_golds.gold import Gold, LeftOut

_LIMITS = ("TOP", "rowLimit")


def candidates(gold: Gold) -> Iterator[Json]:
    """The queries, or drafts of requests, for a gold. Raises LeftOut where there is none."""
    filters = filters_of(gold)
    inner = [part for part in _inner_joins(gold) if part["field"] not in [other["field"] for other in filters]]
    limits = _LIMITS if gold.select.args.get("limit") is not None else ("",)
    rows = not _is_grouped(gold) and gold.select.args.get("distinct") is None
    for raw in (False, True) if rows else (False,):
        fields = _fields(gold, raw=raw)
        for used in [filters, [*filters, *inner]] if inner else [filters]:
            for limit in limits:
                yield from _document(gold, fields, used, raw=raw, limit=limit)


def _document(gold: Gold, fields: list[Json], filters: list[Json], *, raw: bool, limit: str) -> Iterator[Json]:
    options: Json = {"disaggregate": True} if raw else {}
    if limit == "TOP":
        top = None if raw else _top(fields, _how_many(gold))
        if top is None:
            return
        filters = [*({**part, "context": True} if _on_rows(part) else part for part in filters), top]
    elif limit == "rowLimit":
        options["rowLimit"] = _how_many(gold)
    query = {"fields": fields} | ({"filters": filters} if filters else {})
    yield {"query": query, "options": options} if options else query


# ------------------------------------------------------------------------------------------------------- fields


def _fields(gold: Gold, *, raw: bool) -> list[Json]:
    fields = [_field(item, gold, raw) for item in gold.select.expressions]
    for i, item in enumerate(fields, 1):
        if "calculation" in item:
            item["fieldCaption"] = _new_caption(item["fieldCaption"] or f"Calculation {i}", gold)
    order = gold.select.args.get("order")
    for i, key in enumerate(order.expressions if order is not None else (), 1):
        field = fields[_place(key.this, gold)]
        if "sortPriority" not in field:
            field |= {"sortDirection": "DESC" if key.args.get("desc") else "ASC", "sortPriority": i}
    return fields


def _field(item: exp.Expr, gold: Gold, raw: bool) -> Json:
    node = item.unalias().unnest()
    if isinstance(node, exp.Column):
        return _column(gold.field(node), gold, raw)
    if not list(node.find_all(exp.Column)) and not list(node.find_all(exp.AggFunc)):
        raise LeftOut("a column of one value")
    if (part := date_part(node, gold)) is not None:
        return {"fieldCaption": part[1].fieldCaption, "function": part[0]}
    if (rounded := _rounded(node, gold)) is not None:
        return rounded
    if (made := _aggregate(node, gold)) is not None:
        return made
    return {"fieldCaption": caption_of(item.alias) if item.alias else "", "calculation": formula(node, gold)}


def _column(known: FieldMetadata, gold: Gold, raw: bool) -> Json:
    """A column as it is; by a measure of whole numbers a result is grouped in bins of one."""
    field: Json = {"fieldCaption": known.fieldCaption}
    if known.fieldRole != "MEASURE" or raw:
        return field
    if not _is_grouped(gold) and gold.select.args.get("distinct") is None:
        return field | {"function": known.defaultAggregation}
    if known.dataType != "INTEGER":
        raise LeftOut("grouped by a measure that is no whole number")
    return field | {"binSize": 1}


def _aggregate(node: exp.Expr, gold: Gold) -> Json | None:
    of = aggregated(node, gold)
    if of is None or (of[1].fieldRole == "DIMENSION" and of[0] not in ON_DIMENSIONS - DATE_PARTS):
        return None
    return {"fieldCaption": of[1].fieldCaption, "function": of[0]}


def _rounded(node: exp.Expr, gold: Gold) -> Json | None:
    """ROUND of an aggregate is its number of decimals, where it has any."""
    if not isinstance(node, exp.Round):
        return None
    made, of = _aggregate(node.this.unnest(), gold), aggregated(node.this.unnest(), gold)
    if made is None or of is None or result_type(of[0], of[1].dataType) != "REAL":
        return None
    decimals = node.args.get("decimals")
    return made | {"maxDecimalPlaces": int(decimals.this) if decimals is not None else 0}


def _new_caption(caption: str, gold: Gold) -> str:
    return caption if gold.source.field_any_case(caption) is None else f"{caption} (calculated)"


def _is_grouped(gold: Gold) -> bool:
    if gold.select.args.get("group") is not None:
        return True
    return any(item.find(exp.AggFunc) is not None for item in gold.select.expressions)


# ----------------------------------------------------------------------------------------------- order and limit


def _place(key: exp.Expr, gold: Gold) -> int:
    """Which of the SELECT's columns a key of ORDER BY is."""
    items = gold.select.expressions
    aliases = [item.alias.lower() for item in items]
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(items):
        return int(key.this) - 1
    if isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases:
        return aliases.index(key.name.lower())
    for i, item in enumerate(items):
        if item.unalias() == key or _same_column(item.unalias(), key, gold):
            return i
    raise LeftOut("ORDER BY of what is not asked for")


def _same_column(one: exp.Expr, other: exp.Expr, gold: Gold) -> bool:
    if not (isinstance(one, exp.Column) and isinstance(other, exp.Column)):
        return False
    return gold.field(one) is gold.field(other)


def _how_many(gold: Gold) -> int:
    limit = gold.select.args["limit"].expression
    if gold.select.args.get("offset") is not None or not isinstance(limit, exp.Literal):
        raise LeftOut("OFFSET")
    return int(limit.this)


def _top(fields: list[Json], count: int) -> Json | None:
    """A TOP filter: the values of the one dimension by the function that comes first in the order."""
    first = next((field for field in fields if field.get("sortPriority") == 1), {})
    dimensions = [field for field in fields if not {"function", "calculation", "binSize"} & set(field)]
    if len(dimensions) != 1 or first.get("function", "YEAR") in DATE_PARTS:
        return None
    part = {
        "field": {"fieldCaption": dimensions[0]["fieldCaption"]},
        "filterType": "TOP",
        "howMany": count,
        "fieldToMeasure": {"fieldCaption": first["fieldCaption"], "function": first["function"]},
    }
    return part | ({"direction": "BOTTOM"} if first["sortDirection"] == "ASC" else {})


def _on_rows(part: dict[str, Any]) -> bool:
    return "function" not in part["field"]


# --------------------------------------------------------------------------------------------------------- joins


def _inner_joins(gold: Gold) -> list[Json]:
    """A query keeps rows that refer to nothing, SQL's inner join does not: the filters that leave them out."""
    pairs = [field for pair in gold.joins for field in pair]
    return [not_null(field) for field in pairs if field.fieldCaption in gold.nullable]
