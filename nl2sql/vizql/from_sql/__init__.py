"""SQL as structured queries: what a SELECT asks, written over the fields of a data source.

>>> from nl2sql.vizql.source import DataSource
>>> table = {"logicalTableId": "sales", "caption": "Sales", "table": "sales"}
>>> fields = [{"fieldCaption": "Region", "fieldName": "region", "logicalTableId": "sales"}]
>>> source = DataSource.model_validate({"fields": fields, "logicalTables": [table]})
>>> structured("SELECT DISTINCT region FROM sales WHERE region <> 'West'", source).candidates[0]["fields"]
[{'fieldCaption': 'Region'}]
>>> structured("SELECT 1 UNION SELECT 2", source)
Translation(candidates=(), reason='set operation', groups='')

A candidate says in its language what the SQL says; its rows may differ where the data source joins or groups in another
way (``documents`` in ``writing`` names them). Who needs the same rows compares them.

A structured query is grouped by the dimensions that it shows. ``SELECT name, COUNT(*) ... GROUP BY id`` shows two
people of one name on two lines, and the query on one; for names that nobody shares, both say the same.
``Translation.groups`` asks the rows. Not covered: HAVING, which may leave out the groups that are not alike; aggregates
and columns in one expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nl2sql.sql.parse import SLIPS
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect, nullable_captions, read_select
from nl2sql.vizql.from_sql.writing import documents
from nl2sql.vizql.source import DataSource

__all__ = ["Translation", "nullable_captions", "structured"]
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
    except NotStructured as left_out:
        reason = str(left_out)
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


def _meant(key: exp.Expr, select: SourceSelect) -> exp.Expr:
    """A key of GROUP BY: the column or expression that a place or an alias stands for."""
    items = select.tree.expressions
    if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.this) <= len(items):
        return items[int(key.this) - 1].unalias()
    if isinstance(key, exp.Column) and select.field_or_none(key) is None:
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
