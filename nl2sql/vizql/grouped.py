"""Rows grouped by keys, with their aggregates: ``g0, g1, ...`` and ``m0, m1, ...`` over ``g`` and ``a`` of the rows.

>>> from nl2sql.vizql.scalars import Value
>>> grouping = Grouping()
>>> total = grouping.aggregate("SUM", Value(exp.column("sales"), "REAL"), "SUM(Sales)")
>>> base = exp.select().from_("orders")
>>> grouped(base, [exp.column("region")], grouping, "sqlite").sql("sqlite")[:57]
'SELECT r.g0 AS g0, SUM(r.a0) AS m0 FROM (SELECT region AS'

SQLite has no MEDIAN, STDEV and VAR: they are made of window functions (deviations from the group's mean, so that large
numbers lose nothing). STDEV and VAR are those of a sample: NULL for one value. Not covered: other dialects than those
of ``days.TRIED`` for these three.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp, parse_one

from nl2sql.vizql.days import only_tried
from nl2sql.vizql.scope import Grouping

_PLAIN = {"SUM": exp.Sum, "AVG": exp.Avg, "COUNT": exp.Count, "MIN": exp.Min, "MAX": exp.Max}
_NAMED = {"MEDIAN": "MEDIAN", "STDEV": "STDDEV_SAMP", "VAR": "VAR_SAMP"}
_VAR = "SUM((r.a{i} - r.x{i}) * (r.a{i} - r.x{i})) / NULLIF(COUNT(r.a{i}) - 1, 0)"
_OF_WINDOWS = {  # SQLite: over x (the mean, or the place in the group) and n (how many)
    "MEDIAN": "AVG(CASE WHEN r.a{i} IS NOT NULL AND (2 * r.x{i} BETWEEN r.n{i} AND r.n{i} + 2) THEN r.a{i} END)",
    "VAR": _VAR,
    "STDEV": f"SQRT({_VAR})",
}


def grouped(base: exp.Select, keys: Sequence[exp.Expr], grouping: Grouping, dialect: str) -> exp.Select:
    """The rows of ``base`` (a FROM clause with its conditions) by ``keys``. Without keys, one row.

    Raises NotExecutable for MEDIAN, STDEV and VAR in a dialect where they were not tried.
    """
    names = [f"g{i}" for i in range(len(keys))]
    aggregates = list(grouping.aggregates.values())
    columns = [exp.alias_(key.copy(), name) for key, name in zip(keys, names, strict=True)]
    columns += [exp.alias_(argument.sql.copy(), f"a{i}") for i, (_, argument, _) in enumerate(aggregates)]
    rows = base.copy().select(*columns)
    windows = [w for i, (f, _, _) in enumerate(aggregates) if dialect == "sqlite" for w in _windows(i, f, names)]
    if windows:
        rows = exp.select("*", *windows).from_(rows.subquery("w"))
    made = [_aggregate(function, i, dialect) for i, (function, _, _) in enumerate(aggregates)]
    query = exp.select(*(exp.alias_(exp.column(name, table="r"), name) for name in names))
    query = query.select(*(exp.alias_(one, f"m{i}") for i, one in enumerate(made))).from_(rows.subquery("r"))
    return query.group_by(*(exp.column(name, table="r") for name in names)) if names else query


def _aggregate(function: str, i: int, dialect: str) -> exp.Expr:
    column = exp.column(f"a{i}", table="r")
    if function == "COUNTD":
        return exp.Count(this=exp.Distinct(expressions=[column]))
    if function in _PLAIN:
        return _PLAIN[function](this=column)
    only_tried(dialect, f"the function {function}")
    if dialect == "sqlite":
        return parse_one(_OF_WINDOWS[function].format(i=i), read="sqlite")
    return exp.Anonymous(this=_NAMED[function], expressions=[column])


def _windows(i: int, function: str, names: Sequence[str]) -> list[exp.Expr]:
    """What an aggregate needs to know of its group beside each row."""
    by = f"PARTITION BY {', '.join(names)}" if names else ""
    if function == "MEDIAN":
        nulls = f"PARTITION BY {', '.join([*names, f'a{i} IS NULL'])}"
        texts = [f"ROW_NUMBER() OVER ({nulls} ORDER BY a{i}) AS x{i}", f"COUNT(a{i}) OVER ({by}) AS n{i}"]
    elif function in ("VAR", "STDEV"):
        texts = [f"AVG(a{i}) OVER ({by}) AS x{i}"]
    else:
        texts = []
    return [parse_one(text, read="sqlite") for text in texts]
