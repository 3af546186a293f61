"""SQL as structured queries: what a SELECT asks, over the fields of a data source, the plainest first.

>>> from nl2sql.vizql.source import DataSource
>>> table = {"logicalTableId": "sales", "caption": "Sales", "table": "sales"}
>>> fields = [{"fieldCaption": "Region", "fieldName": "region", "logicalTableId": "sales"}]
>>> source = DataSource.model_validate({"fields": fields, "logicalTables": [table]})
>>> structured("SELECT DISTINCT region FROM sales WHERE region <> 'West'", source).candidates[0]["fields"]
[{'fieldCaption': 'Region'}]
>>> structured("SELECT 1 UNION SELECT 2", source)
Translation(candidates=(), reason='set operation', groups='')

A candidate says in its language what the SQL says; its rows may differ where the data source joins or groups in another
way. Who needs the same rows compares them. A query alone is plainer than a request with options, and fewer filters are
plainer than more.

A structured query is grouped by the dimensions that it shows. ``SELECT name, COUNT(*) ... GROUP BY id`` shows two
people of one name on two lines, and the query on one; for names that nobody shares, both say the same.
``Translation.groups`` asks the rows.

Not covered: HAVING, which may leave out the groups that are not alike; aggregates and columns in one expression; ORDER
BY of what is not asked for; table calculations; bins wider than one whole number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nl2sql.sql.parse import SLIPS
from nl2sql.vizql.from_sql.conditions import Json, aggregated, date_part, filters_of, formula, not_null
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect, naming_fields, nullable_captions, read_select
from nl2sql.vizql.infer import caption_of
from nl2sql.vizql.query import DATE_PARTS
from nl2sql.vizql.source import ON_DIMENSIONS, DataSource, FieldMetadata, result_type

__all__ = ["Translation", "nullable_captions", "structured"]


_LIMITS = ("TOP", "rowLimit")


def documents(select: SourceSelect) -> Iterator[Json]:
    """The queries, or drafts of requests, for a SELECT. Raises NotStructured where there is none, or no further one."""
    asked = filters_of(select)
    limits = _LIMITS if select.tree.args.get("limit") is not None else ("",)
    rows = not _is_grouped(select) and select.tree.args.get("distinct") is None
    for raw in (False, True) if rows else (False,):
        fields = _fields(select, raw=raw)
        naming = naming_fields(select, [*fields, *(part["field"] for part in asked)])
        filters = _further(asked, [not_null(field) for field in naming])
        joined = {field.fieldCaption: field for pair in select.joins for field in pair}
        nothing = [not_null(field) for caption, field in joined.items() if caption in select.nullable]
        inner = _further(filters, nothing)[len(filters) :]  # rows that refer to nothing
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
    """Which of the SELECT's columns a key of ORDER BY is; an alias comes before a column of its name."""
    names = [_name(item.unalias(), select) for item in select.tree.expressions]
    meant = _name(_meant(key, select, alias_first=True), select)
    if meant not in names:
        raise NotStructured("ORDER BY of what is not asked for")
    return names.index(meant)


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


_AFTER_GROUPS = ("distinct", "group", "having", "order", "limit", "offset")


@dataclass(frozen=True)
class Translation:
    """The structured queries for a SELECT, the plainest first, and why there is none, or no further one.

    groups: SQL of one row, whose numbers are equal where the queries have the SELECT's groups; "" where they have.
    """

    candidates: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    groups: str = ""


def structured(
    sql: str, source: DataSource, dialect: str = "sqlite", nullable: frozenset[str] | None = None
) -> Translation:
    """The structured queries for any text that is meant as SQL. Raises nothing.

    nullable: the captions of the fields that may be NULL (``nullable_captions``); without it, those of all that are no
    keys. It decides what NOT IN and an inner join leave out. Not covered: what ``reading`` and ``writing`` name.
    """
    candidates: list[dict[str, Any]] = []
    groups = reason = ""
    try:
        select = read_select(sql, source, dialect, nullable)
        groups = groups_alike(select)
        for document in documents(select):
            candidates.append(document)
    except NotStructured as excluded:
        reason = str(excluded)
    except (*SLIPS, ArithmeticError) as slip:  # of sqlglot, on a tree that no sound text has
        reason = f"not read: {type(slip).__name__}"
    return Translation(tuple(candidates), reason, groups if candidates else "")


# -------------------------------------------------------------------------------------- are its groups the query's?


def groups_alike(select: SourceSelect) -> str:
    """SQL for one row of three numbers, equal where both group alike: groups by the keys, by what is shown, by both.

    It is empty where nothing is grouped, and where both are grouped by the same columns.
    """
    items = [item.unalias() for item in select.tree.expressions]
    shown = [item for item in items if item.find(exp.AggFunc) is None]
    group = select.tree.args.get("group")
    if group is None and len(shown) == len(items):
        return ""
    keys = [_meant(key, select) for key in group.expressions] if group is not None else []
    if {_name(key, select) for key in keys} == {_name(item, select) for item in shown}:
        return ""
    return exp.select(*(_count(by, select) for by in (keys, shown, [*keys, *shown]))).sql(dialect=select.dialect)


def _meant(key: exp.Expr, select: SourceSelect, *, alias_first: bool = False) -> exp.Expr:
    """The column or expression that a key of GROUP BY or ORDER BY, a place or an alias, stands for."""
    items = select.tree.expressions
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(items):
        return items[int(key.this) - 1].unalias()
    if isinstance(key, exp.Column) and not key.table and (alias_first or select.field_or_none(key) is None):
        return next((item.unalias() for item in items if item.alias.lower() == key.name.lower()), key)
    return key


def _name(node: exp.Expr, select: SourceSelect) -> str:
    node = node.unnest()
    field = select.field_or_none(node) if isinstance(node, exp.Column) else None
    return field.fieldCaption if field is not None else node.sql().lower()


def _count(by: list[exp.Expr], select: SourceSelect) -> exp.Expr:
    """The number of groups; without a key, all rows are one."""
    if not by:
        return exp.Literal.number(1)
    rows = select.tree.copy()
    for clause in _AFTER_GROUPS:
        rows.set(clause, None)
    rows.set("expressions", [exp.Literal.number(1)])
    groups = rows.group_by(*(key.copy() for key in by)).subquery("g")
    return exp.select(exp.Count(this=exp.Star())).from_(groups).subquery()
