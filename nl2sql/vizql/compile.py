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
from nl2sql.vizql.formula_tree import NotExecutable
from nl2sql.vizql.query import Options, Query, Request, field_kind
from nl2sql.vizql.scope import Grouping, Scope, joined
from nl2sql.vizql.source import DATES, NUMBERS, UNKNOWN, DataSource
from nl2sql.vizql.values import COMPARED, TEXT_TESTS, TRIED, Value, comparable, date_literal, literal, of_date, period

T = TypeVar("T")
MOST_DECIMALS = 30  # SQLite's; DuckDB refuses more than 32 bits of them
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
    raw: bool  # rows as they are, not grouped
    row_limit: int | None
    grouping: Grouping = field(default_factory=Grouping)
    columns: list[tuple[Any, str, Value]] = field(default_factory=list)  # the query's field, its caption, its value
    rows: list[tuple[exp.Expr, bool]] = field(default_factory=list)  # conditions on rows; in the context?
    groups: list[exp.Expr] = field(default_factory=list)  # conditions on aggregates
    picked: list[_Picked] = field(default_factory=list)


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
    asked, options = request.query, request.options or Options()
    own = [(part.fieldCaption, part.calculation) for part in asked.fields if field_kind(part) == "calculation"]
    given = [(part.parameterCaption, part.value) for part in asked.parameters or ()]
    scope = Scope(source, dialect, own, given, bool(options.interpretFieldCaptionsAsFieldNames))
    plan = _Plan(scope, today or datetime.date.today(), request.disaggregate, options.rowLimit)
    strict = bool(settings and settings.strict)
    reasons: list[str] = []
    for part in asked.fields:
        _tried(partial(_add_field, plan, part, strict), f"field '{part.fieldCaption}'", reasons)
    for i, part in enumerate(asked.filters or [], 1):
        _tried(partial(_add_filter, plan, part), f"filter {i} ({part.filterType})", reasons)
    captions = tuple(caption for _, caption, _ in plan.columns)
    sql = _tried(partial(_text, plan, reasons), "", reasons) if not reasons else None
    return CompiledQuery(sql or "", captions, tuple(dict.fromkeys(reasons)))


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
    kind = field_kind(part)
    if kind == "table_calculation":
        raise NotExecutable(f"the table calculation {part.tableCalculation.tableCalcType}")
    function = _function(plan, part, strict)
    value = plan.scope.read(part, plan.grouping, function)
    if kind == "bin":
        value = _bin(value, part.binSize)
    if plan.raw and value.level == "aggregate":
        raise NotExecutable("an aggregate beside disaggregate")
    written = getattr(part, "function", None) or function
    caption = f"{written}({part.fieldCaption})" if written else part.fieldCaption
    plan.columns.append((part, part.fieldAlias or caption, value))


def _function(plan: _Plan, part: Any, strict: bool) -> str | None:
    """The function of a field; a measure without one has its default, where the result is grouped."""
    written = getattr(part, "function", None)
    if written is not None or field_kind(part) != "dimension" or plan.raw:
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
    if part.filterType in ("TOP", "CONDITION"):
        plan.picked.append(_pick(plan, part))
        return
    value = plan.scope.read(part.field, plan.grouping)
    test = _condition(_as_shown(plan, part), value, plan)
    if value.level != "aggregate":
        plan.rows.append((test, bool(part.context)))
    elif plan.raw or part.context:
        raise NotExecutable(f"a filter on an aggregate {'beside disaggregate' if plan.raw else 'with context'}")
    else:
        plan.groups.append(test)


def _as_shown(plan: _Plan, part: Any) -> Any:
    """A SET filter may name members of the database; the field is compared as it is shown."""
    if part.filterType != "SET" or set(part.field.model_fields_set) != {"fieldCaption"}:
        return part
    aliases = plan.scope.known(part.field.fieldCaption).aliases
    shown = {alias.get("member"): alias.get("value") for alias in aliases}
    return part.model_copy(update={"values": [shown.get(value, value) for value in part.values]}) if shown else part


def _pick(plan: _Plan, part: Any) -> _Picked:
    scope, own = plan.scope, Grouping()
    dimension = scope.read(part.field, own)
    if dimension.level == "aggregate":
        raise NotExecutable("an aggregate as its field")
    if part.filterType == "TOP":
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
    right = _literal(str(asked.value) if value.kind in DATES else asked.value, value.kind, scope.dialect)
    sql = COMPARED[asked.comparison](this=comparable(value, scope.dialect, moments=moments), expression=right)
    return Value(sql, "BOOLEAN", value.level, value.tables)


def _literal(value: Any, kind: str, dialect: str) -> exp.Expr:
    if kind in DATES and isinstance(value, str):
        return date_literal(value, dialect, moments=kind == "DATETIME")
    return literal(value, kind)


# ---------------------------------------------------------------------------- filters as conditions
# NULL passes SET where it is among the values, ``exclude`` where it is not, MATCH with ``exclude``
# only, and the others with ``includeNulls`` only. MATCH does not tell upper from lower case; SQLite
# knows only the letters of ASCII so.

_OF = {"MATCH": ("STRING",), "QUANTITATIVE_NUMERICAL": NUMBERS, "QUANTITATIVE_DATE": DATES, "DATE": DATES}


def _condition(part: Any, value: Value, plan: _Plan) -> exp.Expr:
    """The condition of a filter over the value of its field. Raises NotExecutable for a type that does not fit."""
    kind, dialect = part.filterType, plan.scope.dialect
    if kind in _OF and value.kind not in (*_OF[kind], *UNKNOWN):
        raise NotExecutable(f"a {kind} filter on a value of type {value.kind}")
    if kind == "SET":
        return _set(part, value, dialect)
    if kind == "MATCH":
        return _match(part, value, dialect)
    if kind == "QUANTITATIVE_NUMERICAL":
        about, ends = value.sql, [end if end is None else literal(end, "REAL") for end in (part.min, part.max)]
    else:
        about = of_date("DAY_OF", value.sql, dialect)
        days = (part.minDate, part.maxDate) if kind == "QUANTITATIVE_DATE" else _days(part, plan.today)
        ends = [day if day is None else date_literal(day, dialect, moments=False) for day in days]
    is_null = about.copy().is_(exp.null())
    if getattr(part, "quantitativeFilterType", "").startswith("ONLY"):
        return is_null if part.quantitativeFilterType == "ONLY_NULL" else is_null.not_()
    before = exp.LT if kind == "DATE" else exp.LTE
    sided = [(sign, end) for sign, end in zip((exp.GTE, before), ends, strict=True) if end is not None]
    test = exp.paren(exp.and_(*(sign(this=about.copy(), expression=end) for sign, end in sided)))
    return exp.paren(exp.or_(test, is_null)) if part.includeNulls else test


def _days(part: Any, today: datetime.date) -> tuple[str, str]:
    anchor = datetime.date.fromisoformat(part.anchorDate) if part.anchorDate else today
    first, after = period(part.periodType, part.dateRangeType, anchor, part.rangeN or 1)
    return str(first), str(after)


def _set(part: Any, value: Value, dialect: str) -> exp.Expr:
    listed = [_literal(item, value.kind, dialect) for item in part.values if item is not None]
    about, nulls = comparable(value, dialect, moments=value.kind == "DATETIME"), None in part.values
    is_in = exp.In(this=exp.paren(about.copy()), expressions=listed)  # a > b IN (...) is a > (b IN (...)) in DuckDB
    is_null = about.copy().is_(exp.null())
    if part.exclude:
        ways: list[exp.Expr] = [is_null.not_()] if nulls else []
        if listed:
            ways.append(is_in.not_() if nulls else exp.paren(exp.or_(is_null, is_in.not_())))
        return exp.paren(exp.and_(*ways))
    return exp.paren(exp.or_(*([is_in] if listed else []), *([is_null] if nulls else [])))


def _match(part: Any, value: Value, dialect: str) -> exp.Expr:
    text_of = value.sql if dialect == "sqlite" else exp.cast(value.sql, "text")  # a UUID or a TIME has no LOWER
    tests = [
        test(exp.Lower(this=text_of.copy()), literal(lowered(text, dialect), "STRING"))
        for key, test in TEXT_TESTS.items()
        if (text := getattr(part, key)) is not None
    ]
    both = exp.paren(exp.and_(*tests))
    return exp.paren(exp.or_(value.sql.copy().is_(exp.null()), both.not_())) if part.exclude else both


def lowered(text: str, dialect: str) -> str:
    """A text as the dialect's LOWER makes it."""
    if dialect != "sqlite":
        return text.lower()
    return "".join(sign.lower() if sign.isascii() else sign for sign in text)


# ------------------------------------------------------------------------------------------------------ the statement


def _text(plan: _Plan, reasons: list[str]) -> str | None:
    first, tables = joined(plan.scope.aliases, plan.scope.source)
    for grouping in (plan.grouping, *(picked.grouping for picked in plan.picked)):
        reasons += _fanned_out(grouping, first)
    if reasons:
        return None
    base = _filtered(plan, tables, [*range(len(plan.picked))], [test for test, _ in plan.rows])
    keys = [value for _, _, value in plan.columns if value.level != "aggregate"]
    if plan.raw:
        inner = base.select(*(exp.alias_(value.sql.copy(), f"g{i}") for i, value in enumerate(keys)))
    else:
        inner = _grouped(base, [value.sql for value in keys], plan.grouping, plan.scope.dialect)
    outer = exp.select(*_shown(plan)).from_(inner.subquery("s"))
    if plan.groups:
        outer = outer.where(*(test.copy() for test in plan.groups))
    outer = _ordered(plan, outer)
    limited = outer if plan.row_limit is None else outer.limit(plan.row_limit)
    return limited.sql(dialect=plan.scope.dialect)


def _fanned_out(grouping: Grouping, first: str) -> Iterator[str]:
    """The aggregates that would count a row of another table once for each row of the first one."""
    for function, argument, label in grouping.aggregates.values():
        if function not in _ONCE_OR_MORE and first not in argument.tables:
            names = ", ".join(sorted(argument.tables))
            yield f"{label}: a row of table {names} would count once for each row of table {first} (fan-out)"


def _filtered(plan: _Plan, tables: exp.Select, picked: list[int], tests: list[exp.Expr]) -> exp.Select:
    """The rows that pass these conditions and these TOP and CONDITION filters."""
    query = tables.copy()
    for i in picked:
        one = plan.picked[i]
        same = exp.NullSafeEQ(this=one.dimension.sql.copy(), expression=exp.column("g0", table=f"f{i}"))
        query = query.join(_values_left(plan, tables, one).subquery(f"f{i}"), on=same)
    return query.where(*(test.copy() for test in tests)) if tests else query


def _values_left(plan: _Plan, tables: exp.Select, picked: _Picked) -> exp.Select:
    """The dimension's values that a TOP or CONDITION filter leaves, over all rows, or those of the context."""
    own = bool(picked.part.context)
    tests = [] if own else [test for test, context in plan.rows if context]
    others = [] if own else [i for i, other in enumerate(plan.picked) if other.part.context]
    base = _filtered(plan, tables, others, tests)
    groups = _grouped(base, [picked.dimension.sql], picked.grouping, plan.scope.dialect).subquery("s")
    query = exp.select(exp.column("g0", table="s")).from_(groups)
    if picked.part.filterType == "CONDITION":
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
    if first or plan.row_limit is not None:
        orders += [order for part, column in columns if not part.sortPriority for order in _order(column, False)]
    return query.order_by(*orders) if orders else query


def _order(column: exp.Expr, most: bool) -> list[exp.Expr]:
    """NULL comes last, whichever way."""
    is_null = exp.Ordered(this=exp.paren(column.copy().is_(exp.null())), desc=False, nulls_first=False)
    return [is_null, exp.Ordered(this=column.copy(), desc=most, nulls_first=False)]


# ----------------------------------------------------------------------------------------------------- rows by keys

_PLAIN = {"SUM": exp.Sum, "AVG": exp.Avg, "COUNT": exp.Count, "MIN": exp.Min, "MAX": exp.Max}
_NAMED = {"MEDIAN": "MEDIAN", "STDEV": "STDDEV_SAMP", "VAR": "VAR_SAMP"}
_VAR = "SUM((r.a{i} - r.x{i}) * (r.a{i} - r.x{i})) / NULLIF(COUNT(r.a{i}) - 1, 0)"
_OF_WINDOWS = {  # SQLite: over x (the mean, or the place in the group) and n (how many)
    "MEDIAN": "AVG(CASE WHEN r.a{i} IS NOT NULL AND (2 * r.x{i} BETWEEN r.n{i} AND r.n{i} + 2) THEN r.a{i} END)",
    "VAR": _VAR,
    "STDEV": f"SQRT({_VAR})",
}


def _grouped(base: exp.Select, keys: Sequence[exp.Expr], grouping: Grouping, dialect: str) -> exp.Select:
    """The rows of ``base`` (a FROM clause with its conditions) by ``keys``. Without keys, one row."""
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
    if dialect == "sqlite":
        return parse_one(_OF_WINDOWS[function].format(i=i), read="sqlite")
    return exp.Anonymous(this=_NAMED[function], expressions=[column])


def _windows(i: int, function: str, names: Sequence[str]) -> list[exp.Expr]:
    """What an aggregate needs to know of its group beside each row."""
    by = f"PARTITION BY {', '.join(names)}" if names else ""
    texts = [f"AVG(a{i}) OVER ({by}) AS x{i}"] if function in ("VAR", "STDEV") else []
    if function == "MEDIAN":
        nulls = f"PARTITION BY {', '.join([*names, f'a{i} IS NULL'])}"
        texts = [f"ROW_NUMBER() OVER ({nulls} ORDER BY a{i}) AS x{i}", f"COUNT(a{i}) OVER ({by}) AS n{i}"]
    return [parse_one(text, read="sqlite") for text in texts]
