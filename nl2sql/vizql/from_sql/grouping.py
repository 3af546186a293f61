"""Whether a query has the groups of its SQL, which may group by what it does not ask for.

A structured query is grouped by the dimensions that it shows. ``SELECT name, COUNT(*) ... GROUP BY id`` shows two
people of one name on two lines, and the query on one; for names that nobody shares, both say the same. The rows decide:

>>> from nl2sql.vizql.from_sql.reading import SourceSelect
>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}]})
>>> tree = exp.select("a", "COUNT(*)").from_("t").group_by("b")
>>> groups_alike(SourceSelect(tree, source, {}, frozenset()))
'SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM t GROUP BY b) AS g), \
(SELECT COUNT(*) FROM (SELECT 1 FROM t GROUP BY a) AS g), (SELECT COUNT(*) FROM (SELECT 1 FROM t GROUP BY b, a) AS g)'

Not covered: HAVING, which may leave out the groups that are not alike; aggregates and columns in one expression.
"""

from __future__ import annotations

from sqlglot import exp

from nl2sql.vizql.from_sql.reading import SourceSelect

_AFTER_GROUPS = ("distinct", "group", "having", "order", "limit", "offset")


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
