"""A SELECT as the structured queries that a Tableau user may write for it, the plainest first.

A query alone is plainer than a request with options, and fewer filters are plainer than more. Which of them has the
SQL's rows is not known here.

>>> field = {"fieldCaption": "Sales", "function": "SUM", "sortDirection": "DESC", "sortPriority": 1}
>>> _top([{"fieldCaption": "Region"}, field], 3)["fieldToMeasure"]
{'fieldCaption': 'Sales', 'function': 'SUM'}

Not covered: ORDER BY of what is not asked for; GROUP BY, since a query is grouped by its dimensions (``grouping``);
table calculations; bins wider than one whole number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from nl2sql.vizql.fields import DATE_PARTS
from nl2sql.vizql.from_sql.conditions import Json, aggregated, filters_of
from nl2sql.vizql.from_sql.expressions import date_part, formula
from nl2sql.vizql.from_sql.joins import naming_filters, nothing_referred_to
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.functions import ON_DIMENSIONS, result_type
from nl2sql.vizql.infer import caption_of
from nl2sql.vizql.source import FieldMetadata

_LIMITS = ("TOP", "rowLimit")


def documents(select: SourceSelect) -> Iterator[Json]:
    """The queries, or drafts of requests, for a SELECT. Raises NotStructured where there is none, or no further one."""
    asked = filters_of(select)
    limits = _LIMITS if select.tree.args.get("limit") is not None else ("",)
    rows = not _is_grouped(select) and select.tree.args.get("distinct") is None
    for raw in (False, True) if rows else (False,):
        fields = _fields(select, raw=raw)
        filters = _further(asked, naming_filters(select, [*fields, *(part["field"] for part in asked)]))
        inner = _further(filters, nothing_referred_to(select))[len(filters) :]
        for used in [filters, [*filters, *inner]] if inner else [filters]:
            for limit in limits:
                yield from _document(select, fields, used, raw=raw, limit=limit)


def _further(filters: list[Json], others: list[Json]) -> list[Json]:
    """The filters, and those of the others that are about another field."""
    fields = [part["field"] for part in filters]
    return [*filters, *(part for part in others if part["field"] not in fields)]


def _document(
    select: SourceSelect, fields: list[Json], filters: list[Json], *, raw: bool, limit: str
) -> Iterator[Json]:
    options: Json = {"disaggregate": True} if raw else {}
    if limit == "TOP":
        top = None if raw else _top(fields, _how_many(select))
        if top is None:
            return
        filters = [*({**part, "context": True} if _on_rows(part) else part for part in filters), top]
    elif limit == "rowLimit":
        options["rowLimit"] = _how_many(select)
    query = {"fields": fields} | ({"filters": filters} if filters else {})
    yield {"query": query, "options": options} if options else query


# ------------------------------------------------------------------------------------------------------- fields


def _fields(select: SourceSelect, *, raw: bool) -> list[Json]:
    fields = [_field(item, select, raw) for item in select.tree.expressions]
    for i, item in enumerate(fields, 1):
        if "calculation" in item:
            item["fieldCaption"] = _new_caption(item["fieldCaption"] or f"Calculation {i}", select)
    order = select.tree.args.get("order")
    for i, key in enumerate(order.expressions if order is not None else (), 1):
        field = fields[_place(key.this, select)]
        if "sortPriority" not in field:
            field |= {"sortDirection": "DESC" if key.args.get("desc") else "ASC", "sortPriority": i}
    return fields


def _field(item: exp.Expr, select: SourceSelect, raw: bool) -> Json:
    node = item.unalias().unnest()
    if isinstance(node, exp.Column):
        return _column(select.field(node), select, raw)
    if not list(node.find_all(exp.Column)) and not list(node.find_all(exp.AggFunc)):
        raise NotStructured("a column of one value")
    if (part := date_part(node, select)) is not None:
        return {"fieldCaption": part[1].fieldCaption, "function": part[0]}
    if (rounded := _rounded(node, select)) is not None:
        return rounded
    if (made := _aggregate(node, select)) is not None:
        return made
    return {"fieldCaption": caption_of(item.alias) if item.alias else "", "calculation": formula(node, select)}


def _column(known: FieldMetadata, select: SourceSelect, raw: bool) -> Json:
    """A column as it is; by a measure of whole numbers a result is grouped in bins of one."""
    field: Json = {"fieldCaption": known.fieldCaption}
    if known.fieldRole != "MEASURE" or raw:
        return field
    if not _is_grouped(select) and select.tree.args.get("distinct") is None:
        return field | {"function": known.defaultAggregation}
    if known.dataType != "INTEGER":
        raise NotStructured("grouped by a measure that is no whole number")
    return field | {"binSize": 1}


def _aggregate(node: exp.Expr, select: SourceSelect) -> Json | None:
    of = aggregated(node, select)
    if of is None or (of[1].fieldRole == "DIMENSION" and of[0] not in ON_DIMENSIONS - DATE_PARTS):
        return None
    return {"fieldCaption": of[1].fieldCaption, "function": of[0]}


def _rounded(node: exp.Expr, select: SourceSelect) -> Json | None:
    """ROUND of an aggregate is its number of decimals, where it has any."""
    if not isinstance(node, exp.Round):
        return None
    made, of = _aggregate(node.this.unnest(), select), aggregated(node.this.unnest(), select)
    if made is None or of is None or result_type(of[0], of[1].dataType) != "REAL":
        return None
    decimals = node.args.get("decimals") or exp.Literal.number(0)
    if not (isinstance(decimals, exp.Literal) and decimals.is_int):
        return None
    return made | {"maxDecimalPlaces": int(decimals.this)}


def _new_caption(caption: str, select: SourceSelect) -> str:
    return caption if select.source.field_any_case(caption) is None else f"{caption} (calculated)"


def _is_grouped(select: SourceSelect) -> bool:
    if select.tree.args.get("group") is not None:
        return True
    return any(item.find(exp.AggFunc) is not None for item in select.tree.expressions)


# ----------------------------------------------------------------------------------------------- order and limit


def _place(key: exp.Expr, select: SourceSelect) -> int:
    """Which of the SELECT's columns a key of ORDER BY is."""
    items = select.tree.expressions
    aliases = [item.alias.lower() for item in items]
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(items):
        return int(key.this) - 1
    if isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases:
        return aliases.index(key.name.lower())
    for i, item in enumerate(items):
        if item.unalias() == key or _same_column(item.unalias(), key, select):
            return i
    raise NotStructured("ORDER BY of what is not asked for")


def _same_column(one: exp.Expr, other: exp.Expr, select: SourceSelect) -> bool:
    if not (isinstance(one, exp.Column) and isinstance(other, exp.Column)):
        return False
    return select.field(one) is select.field(other)


def _how_many(select: SourceSelect) -> int:
    limit = select.tree.args["limit"].expression
    if select.tree.args.get("offset") is not None or not (isinstance(limit, exp.Literal) and limit.is_int):
        raise NotStructured("OFFSET")
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
