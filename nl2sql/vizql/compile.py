"""A structured query as one SELECT over the tables of its data source.

>>> from nl2sql.vizql.source import DataSource
>>> fields = [{"fieldCaption": "Region", "fieldName": "region", "logicalTableId": "o", "dataType": "STRING"}]
>>> source = DataSource.model_validate(
...     {"fields": fields, "logicalTables": [{"logicalTableId": "o", "caption": "orders"}]}
... )
>>> query = Query.model_validate({"fields": [{"fieldCaption": "Region"}]})
>>> compiled(query, source, "sqlite").sql
'SELECT s.g0 AS "Region" FROM (SELECT r.g0 AS g0 FROM (SELECT t0."region" AS g0 FROM "orders" AS t0) AS r \
GROUP BY r.g0) AS s'

Grouped rows have the keys ``g0, g1, ...`` and the aggregates ``m0, m1, ...``, over ``g`` and ``a`` of the rows. SQLite
has no MEDIAN, STDEV and VAR: they are made of window functions (deviations from the group's mean, so that large numbers
lose nothing). STDEV and VAR are those of a sample: NULL for one value.

The caller executes it through ``Database.run``. The semantics are in ``docs/vizql.md``. Not covered: whether the query
is valid (``validator``). What is valid and not executed here is named in ``not_executable``; then ``sql`` is empty.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sqlglot import exp, parse_one

from nl2sql.config import VizqlConfig
from nl2sql.vizql.evaluation import condition
from nl2sql.vizql.fields import BinField, DimensionField, TableCalcField
from nl2sql.vizql.filters import ConditionFilter, SetFilter, TopNFilter
from nl2sql.vizql.formula_tree import NotExecutable
from nl2sql.vizql.query import Query, Request
from nl2sql.vizql.scalars import NUMBERS, TRIED, UNKNOWN, Value, comparable, date_literal, literal, only_tried
from nl2sql.vizql.scope import Grouping, Joined, Scope, joined
from nl2sql.vizql.source import DataSource

T = TypeVar("T")
MOST_DECIMALS = 30  # SQLite's; DuckDB refuses more than 32 bits of them
_COMPARED = {"=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
_ONCE_OR_MORE = frozenset({"MIN", "MAX", "COUNTD"})  # the same over a row that comes more than once


@dataclass(frozen=True)
class CompiledQuery:
    """The SQL, the captions of its columns as the service names them, and why it has none."""

    sql: str
    columns: tuple[str, ...]
    not_executable: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Picked:
    """A TOP or CONDITION filter: the values of a dimension that are left, by a grouping of their own."""

    part: Any
    dimension: Value
    grouping: Grouping
    measure: Value


@dataclass
class _Plan:
    """All that a query asks for, before the tables are joined."""

    scope: Scope
    today: datetime.date
    grouping: Grouping = field(default_factory=Grouping)
    columns: list[tuple[Any, str, Value]] = field(default_factory=list)  # the query's field, its caption, its value
    rows: list[tuple[exp.Expr, bool]] = field(default_factory=list)  # conditions on rows; in the context?
    groups: list[exp.Expr] = field(default_factory=list)  # conditions on aggregates
    picked: list[_Picked] = field(default_factory=list)

    @property
    def raw(self) -> bool:
        return self.scope.request.disaggregate


def compiled(
    query: Query | Request,
    source: DataSource,
    dialect: str,
    *,
    settings: VizqlConfig | None = None,
    today: datetime.date | None = None,
) -> CompiledQuery:
    """The SQL of a valid query in a sqlglot dialect.

    settings: with ``vizql.strict`` no measure gets its default function. today: what relative dates without an anchor
    are about; without it, the day on which this is called. Raises nothing for what is not executed here.
    """
    request = query if isinstance(query, Request) else Request(query=query)
    if dialect not in TRIED:
        return CompiledQuery("", (), (f"queries are not executed on {dialect} here; only on {' and '.join(TRIED)}",))
    plan = _Plan(Scope(request, source, dialect), today or datetime.date.today())
    strict = bool(settings and settings.strict)
    reasons: list[str] = []
    for part in request.query.fields:
        _tried(partial(_add_field, plan, part, strict), f"field '{part.fieldCaption}'", reasons)
    for i, asked in enumerate(request.query.filters or []):
        _tried(partial(_add_filter, plan, asked), f"filter {i + 1} ({asked.filterType})", reasons)
    captions = tuple(caption for _, caption, _ in plan.columns)
    sql = _tried(partial(_text, plan, reasons), "", reasons) if not reasons else None
    if sql is None or reasons:
        return CompiledQuery("", captions, tuple(dict.fromkeys(reasons)))
    return CompiledQuery(sql, captions)


def _tried(make: Callable[[], T], where: str, reasons: list[str]) -> T | None:
    try:
        return make()
    except NotExecutable as reason:
        said = str(reason)
    except RecursionError:  # calculations that name long calculations
        said = "formulas nested too deeply"
    reasons.append(f"{where}: {said}" if where else said)
    return None


# ---------------------------------------------------------------------------------------------- fields and filters


def _add_field(plan: _Plan, part: Any, strict: bool) -> None:
    if isinstance(part, TableCalcField):
        raise NotExecutable(f"the table calculation {part.tableCalculation.tableCalcType}")
    function = _function(plan, part, strict)
    if function is None or isinstance(part, BinField):
        value = plan.scope.read(part, plan.grouping)
    else:
        known = plan.scope.known(part.fieldCaption)
        argument = plan.scope.field(known, plan.grouping, aliased=False)
        value = plan.scope.applied(function, argument, plan.grouping, known.fieldCaption)
    if isinstance(part, BinField):
        value = _bin(value, part.binSize)
    if plan.raw and value.level == "aggregate":
        raise NotExecutable("an aggregate beside disaggregate")
    written = getattr(part, "function", None) or function
    caption = f"{written}({part.fieldCaption})" if written else part.fieldCaption
    plan.columns.append((part, part.fieldAlias or caption, value))


def _function(plan: _Plan, part: Any, strict: bool) -> str | None:
    """The function of a field; a measure without one has its default, where the result is grouped."""
    written = getattr(part, "function", None)
    if written is not None or not isinstance(part, DimensionField) or plan.raw:
        return written if written != "AGG" else None
    known = plan.scope.known(part.fieldCaption)
    if known.fieldRole != "MEASURE" or known.is_aggregate or known.columnClass == "TABLE_CALCULATION":
        return None
    if strict:
        raise NotExecutable("a measure without a function (vizql.strict is on)")
    usable = known.defaultAggregation not in ("NONE", "UNSPECIFIED", "")
    return known.defaultAggregation if usable else "SUM"


def _bin(value: Value, size: float) -> Value:
    """The lower end of the bin that a number is in; bins begin at 0."""
    if value.kind not in (*NUMBERS, *UNKNOWN):
        raise NotExecutable(f"a bin of a value of type {value.kind}")
    if value.level == "aggregate":
        raise NotExecutable("a bin of an aggregate")
    wide = literal(size, "REAL")
    of = exp.Div(this=exp.cast(value.sql, "double"), expression=wide, typed=True, safe=True)
    sql = exp.Mul(this=exp.Anonymous(this="FLOOR", expressions=[of]), expression=wide.copy())
    return Value(sql, "REAL", value.level, value.tables)


def _add_filter(plan: _Plan, part: Any) -> None:
    if isinstance(part, TopNFilter | ConditionFilter):
        plan.picked.append(_pick(plan, part))
        return
    value = plan.scope.read(part.field, plan.grouping)
    if isinstance(part, SetFilter):
        part = _as_shown(plan, part)
    test = condition(part, value, plan.scope.dialect, plan.today)
    if value.level != "aggregate":
        plan.rows.append((test, bool(part.context)))
    elif plan.raw or part.context:
        raise NotExecutable(f"a filter on an aggregate {'beside disaggregate' if plan.raw else 'with context'}")
    else:
        plan.groups.append(test)


def _as_shown(plan: _Plan, part: SetFilter) -> SetFilter:
    """A SET filter may name members of the database; the field is compared as it is shown."""
    if set(part.field.model_fields_set) != {"fieldCaption"}:
        return part
    aliases = plan.scope.known(part.field.fieldCaption).aliases  # type: ignore[union-attr]
    shown = {alias.get("member"): alias.get("value") for alias in aliases}
    return part.model_copy(update={"values": [shown.get(value, value) for value in part.values]}) if shown else part


def _pick(plan: _Plan, part: TopNFilter | ConditionFilter) -> _Picked:
    scope, own = plan.scope, Grouping()
    dimension = scope.read(part.field, own)
    if dimension.level == "aggregate":
        raise NotExecutable("an aggregate as its field")
    if isinstance(part, TopNFilter):
        measure = scope.read(part.fieldToMeasure, own)
    elif part.condition is not None:
        measure = _compared(scope, part.condition, own)
    else:
        measure = scope.formula(part.calculation or "", own)
        if measure.kind != "BOOLEAN":
            raise NotExecutable(f"a calculation of type {measure.kind} as a condition")
    if measure.level != "aggregate":
        raise NotExecutable("a measure or condition that does not aggregate")
    return _Picked(part, dimension, own, measure)


def _compared(scope: Scope, asked: Any, own: Grouping) -> Value:
    value = scope.read(asked, own)
    moments = value.kind == "DATETIME"
    if value.kind in ("DATE", "DATETIME"):
        right = date_literal(str(asked.value), scope.dialect, moments=moments)
    else:
        right = literal(asked.value, value.kind)
    sql = _COMPARED[asked.comparison](this=comparable(value, scope.dialect, moments=moments), expression=right)
    return Value(sql, "BOOLEAN", value.level, value.tables)


# ------------------------------------------------------------------------------------------------------ the statement


def _text(plan: _Plan, reasons: list[str]) -> str | None:
    tree = _statement(plan, reasons)
    return None if tree is None else tree.sql(dialect=plan.scope.dialect)


def _statement(plan: _Plan, reasons: list[str]) -> exp.Select | None:
    tables = joined(plan.scope.aliases, plan.scope.source)
    for grouping in (plan.grouping, *(picked.grouping for picked in plan.picked)):
        reasons += _fanned_out(grouping, tables.first)
    if reasons:
        return None
    base = _filtered(plan, tables, [*range(len(plan.picked))], [test for test, _ in plan.rows])
    keys = [value for _, _, value in plan.columns if value.level != "aggregate"]
    if plan.raw:
        inner = base.select(*(exp.alias_(value.sql.copy(), f"g{i}") for i, value in enumerate(keys)))
    else:
        inner = grouped(base, [value.sql for value in keys], plan.grouping, plan.scope.dialect)
    outer = exp.select(*_shown(plan)).from_(inner.subquery("s"))
    if plan.groups:
        outer = outer.where(*(test.copy() for test in plan.groups))
    return _limited(_ordered(plan, outer), plan)


def _fanned_out(grouping: Grouping, first: str) -> Iterator[str]:
    """The aggregates that would count a row of another table once for each row of the first one."""
    for function, argument, label in grouping.aggregates.values():
        if function not in _ONCE_OR_MORE and first not in argument.tables:
            names = ", ".join(sorted(argument.tables))
            yield f"{label}: a row of table {names} would count once for each row of table {first} (fan-out)"


def _filtered(plan: _Plan, tables: Joined, picked: list[int], tests: list[exp.Expr]) -> exp.Select:
    """The rows that pass these conditions and these TOP and CONDITION filters."""
    query = tables.tables.copy()
    for i in picked:
        one = plan.picked[i]
        same = exp.NullSafeEQ(this=one.dimension.sql.copy(), expression=exp.column("g0", table=f"f{i}"))
        query = query.join(_values_left(plan, tables, one).subquery(f"f{i}"), on=same)
    return query.where(*(test.copy() for test in tests)) if tests else query


def _values_left(plan: _Plan, tables: Joined, picked: _Picked) -> exp.Select:
    """The dimension's values that a TOP or CONDITION filter leaves, over all rows, or those of the context."""
    own = bool(picked.part.context)
    tests = [] if own else [test for test, context in plan.rows if context]
    others = [] if own else [i for i, other in enumerate(plan.picked) if other.part.context]
    base = _filtered(plan, tables, others, tests)
    groups = grouped(base, [picked.dimension.sql], picked.grouping, plan.scope.dialect).subquery("s")
    query = exp.select(exp.column("g0", table="s")).from_(groups)
    if isinstance(picked.part, ConditionFilter):
        return query.where(picked.measure.sql.copy())
    most = picked.part.direction != "BOTTOM"
    orders = [*_order(picked.measure.sql, most), *_order(exp.column("g0", table="s"), False)]
    return query.order_by(*orders).limit(picked.part.howMany)


def _results(plan: _Plan) -> list[exp.Expr]:
    """The columns of the grouped rows, one for each field."""
    made: list[exp.Expr] = []
    keys = 0
    for _, _, value in plan.columns:
        made.append(value.sql.copy() if value.level == "aggregate" else exp.column(f"g{keys}", table="s"))
        keys += value.level != "aggregate"
    return made


def _shown(plan: _Plan) -> Iterator[exp.Expr]:
    """The columns under their captions, rounded; a second column of one caption has a number."""
    taken: Counter[str] = Counter()
    for (part, caption, value), column in zip(plan.columns, _results(plan), strict=True):
        if part.maxDecimalPlaces is not None and value.kind == "REAL":
            column = exp.Round(this=column, decimals=exp.Literal.number(min(part.maxDecimalPlaces, MOST_DECIMALS)))
        taken[caption] += 1
        name = caption if taken[caption] == 1 else f"{caption} ({taken[caption]})"
        yield exp.alias_(column, exp.to_identifier(name, quoted=True))


def _ordered(plan: _Plan, query: exp.Select) -> exp.Select:
    """By sortPriority; the other columns decide among equals, so that the same rows come in the same order."""
    columns = list(zip((part for part, _, _ in plan.columns), _results(plan), strict=True))
    first = sorted((pair for pair in columns if pair[0].sortPriority), key=lambda pair: pair[0].sortPriority)
    orders = [order for part, column in first for order in _order(column, part.sortDirection == "DESC")]
    if first or _row_limit(plan) is not None:
        orders += [order for part, column in columns if not part.sortPriority for order in _order(column, False)]
    return query.order_by(*orders) if orders else query


def _order(column: exp.Expr, most: bool) -> list[exp.Expr]:
    """NULL comes last, whichever way."""
    is_null = exp.Ordered(this=exp.paren(column.copy().is_(exp.null())), desc=False, nulls_first=False)
    return [is_null, exp.Ordered(this=column.copy(), desc=most, nulls_first=False)]


def _limited(query: exp.Select, plan: _Plan) -> exp.Select:
    limit = _row_limit(plan)
    return query if limit is None else query.limit(limit)


def _row_limit(plan: _Plan) -> int | None:
    options = plan.scope.request.options
    return options.rowLimit if options else None


# ----------------------------------------------------------------------------------------------------- rows by keys

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
