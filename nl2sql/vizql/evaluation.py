"""The tree of a formula as a value in SQL, with Tableau's meaning where engines differ, and filters over values.

A division is never one of whole numbers, and by zero gives NULL; ``+`` joins texts; IF without ELSE gives NULL.
The functions are those of ``FUNCTIONS`` with the aggregates. Worked examples: ``tests/vizql/test_compile.py``.

>>> sorted(FUNCTIONS)[:4]
['ABS', 'CEILING', 'CONTAINS', 'ENDSWITH']

Not covered: LOD expressions, IN, table calculations, and all other functions, which are refused by name. What no
engine would take (a total of texts, rows beside aggregates) is a FormulaError, which the validator reports, too.

>>> from nl2sql.vizql.filters import SetFilter
>>> data = {"field": {"fieldCaption": "Region"}, "filterType": "SET", "values": ["West", None]}
>>> value = Value(exp.column("region"), "STRING")
>>> condition(SetFilter.model_validate(data), value, "sqlite", datetime.date(2024, 1, 1)).sql("sqlite")
"((region) IN ('West') OR region IS NULL)"
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nl2sql.vizql import scalars
from nl2sql.vizql.fields import DATE_PARTS
from nl2sql.vizql.filters import (
    MatchFilter,
    QuantitativeDateFilter,
    QuantitativeNumericalFilter,
    RelativeDateFilter,
    SetFilter,
)
from nl2sql.vizql.formula_tree import Call, Choice, Constant, Day, FormulaError, Name, NotExecutable, Operation, Tree
from nl2sql.vizql.scalars import DATES, NUMBERS, UNKNOWN, Value, comparable, constant, date_literal, literal, moment_of

if TYPE_CHECKING:
    from nl2sql.vizql.scope import Grouping, Scope
    from nl2sql.vizql.source import FieldMetadata


# ----------------------------------------------------------------------------------------- formulas

_COMPARED = {"=": exp.EQ, "<>": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}
_TABLE_CALCULATIONS = ("RUNNING_", "WINDOW_", "RANK", "MODEL_", "SCRIPT_")
_AGGREGATES = ("SUM", "AVG", "MEDIAN", "COUNT", "COUNTD", "MIN", "MAX", "STDEV", "VAR")
_MORE = {("MIN", 2), ("MAX", 2), ("IIF", 4)}  # how many arguments the language takes, and we do not
_BIGINT, _DOUBLE = exp.DataType.build("bigint"), exp.DataType.build("double")
_OF_TABLES = frozenset({"INDEX", "LOOKUP", "FIRST", "LAST", "SIZE", "TOTAL", "PREVIOUS_VALUE"})


class Evaluation:
    """Evaluates the trees of one formula; ``depth`` counts calculations that name calculations.

    by_name: whether names in brackets are ``fieldName`` only; else they are captions first.
    """

    def __init__(self, scope: Scope, grouping: Grouping, depth: int, *, by_name: bool = False) -> None:
        self.scope, self.grouping, self.depth, self.by_name = scope, grouping, depth, by_name

    def value(self, tree: Tree) -> Value:
        """The value of a tree. Raises NotExecutable."""
        self.scope.count()
        match tree:
            case Constant(value):
                return constant(value, _kind_of(value))
            case Day(text):
                moments = moment_of(text).time() != moment_of(text[:10]).time()
                sql = date_literal(text, self.scope.dialect, moments=moments)
                return Value(sql, "DATETIME" if moments else "DATE", "constant")
            case Name():
                return self.name(tree)
            case Operation(sign, parts):
                return self.operation(sign, [self.value(part) for part in parts])
            case Choice(ways, otherwise):
                tests = [self.value(test) for test, _ in ways]
                return choice(tests, [self.value(result) for _, result in ways], self.value(otherwise))
            case Call():
                return self.call(tree)

    def name(self, name: Name) -> Value:
        """A calculation of the query, a field, or a parameter."""
        scope, folded = self.scope, name.text.casefold()
        if folded in scope.own and not name.parameter:
            return scope.formula(scope.own[folded], self.grouping, self.depth + 1)
        known = self.field(name.text)
        if known is not None and not name.parameter:
            return scope.field(known, self.grouping, self.depth, aliased=False)
        return self.parameter(name.text)

    def field(self, text: str) -> FieldMetadata | None:
        """The field of the data source that a name in brackets is, or None."""
        captioned = None if self.by_name else self.scope.source.field_any_case(text)
        return captioned or self.scope.source.field_named(text)

    def parameter(self, text: str) -> Value:
        """The value of a parameter: the query's, else the data source's."""
        parameters, folded = self.scope.source.parameters, text.casefold()
        names = [(p, {p.parameterCaption.casefold(), p.parameterName.casefold()}) for p in parameters]
        known = next((p for p, called in names if folded in called), None)
        if known is None:
            raise FormulaError(f"the name [{text}] in a formula, which the data source does not have")
        asked = self.scope.request.query.parameters or []
        value = next((p.value for p in asked if p.parameterCaption == known.parameterCaption), known.value)
        kind = known.dataType if known.dataType not in UNKNOWN else _kind_of(value)
        if kind in DATES and isinstance(value, str):
            return Value(date_literal(value, self.scope.dialect, moments=kind == "DATETIME"), kind, "constant")
        return constant(value, kind)

    def operation(self, sign: str, parts: list[Value]) -> Value:
        if sign in _COMPARED:
            return self.compared(sign, *parts)
        if sign in ("AND", "OR", "NOT"):
            _need(parts, ("BOOLEAN",), sign)
            sqls = [_paren(part.sql) for part in parts]
            joined = {"AND": exp.And, "OR": exp.Or}
            sql = exp.Not(this=sqls[0]) if sign == "NOT" else joined[sign](this=sqls[0], expression=sqls[1])
            return merged(_paren(sql), "BOOLEAN", parts)  # NOT a IS NULL would be NOT (a IS NULL)
        if sign == "+" and any(part.kind == "STRING" for part in parts):
            _need(parts, ("STRING",), sign)
            return merged(exp.DPipe(this=_paren(parts[0].sql), expression=_paren(parts[1].sql)), "STRING", parts)
        if any(part.kind in DATES for part in parts):
            raise NotExecutable(f"the sign {sign} beside a date")
        _need(parts, NUMBERS, sign)
        return merged(*_arithmetic(sign, parts), parts)

    def compared(self, sign: str, left: Value, right: Value) -> Value:
        kinds = {left.kind, right.kind}
        alike = (set(NUMBERS), set(DATES), {"STRING"}, {"BOOLEAN"})
        if not (kinds & set(UNKNOWN) or any(kinds <= among for among in alike)):
            refused = NotExecutable if kinds & set(DATES) else FormulaError
            raise refused(f"the comparison {left.kind} {sign} {right.kind}")
        moments, dialect = "DATETIME" in kinds, self.scope.dialect
        sides = [_paren(comparable(side, dialect, moments=moments)) for side in (left, right)]
        return merged(_COMPARED[sign](this=sides[0], expression=sides[1]), "BOOLEAN", [left, right])

    def call(self, call: Call) -> Value:
        name, count = call.name, len(call.arguments)
        if name.startswith("{"):
            raise NotExecutable(f"an LOD expression ({name})")
        if name.startswith(_TABLE_CALCULATIONS) or name in _OF_TABLES:
            raise NotExecutable(f"the table calculation {name}()")
        if name in _AGGREGATES and count == 1:
            return self.aggregate(name, call.arguments[0])
        arguments = [self.value(argument) for argument in call.arguments]
        if name in DATE_PARTS and count == 1:
            return self.scope.of_date(name, arguments[0])
        if name not in FUNCTIONS or count not in FUNCTIONS[name][0]:
            known = name in FUNCTIONS or name in _AGGREGATES or name in DATE_PARTS
            refused = FormulaError if known and (name, count) not in _MORE else NotExecutable
            raise refused(f"the function {name} with {count} argument{'s' * (count != 1)}")
        return FUNCTIONS[name][1](arguments)

    def aggregate(self, name: str, argument: Tree) -> Value:
        """An aggregate; ``COUNT([Table])`` counts the rows of a logical table."""
        if name == "COUNT" and isinstance(argument, Name):
            folded = argument.text.casefold()
            source = self.scope.source
            tables = [t for t in source.logicalTables if t.caption.casefold() == folded]
            known = source.field_named if self.by_name else source.field_any_case
            if tables and known(argument.text) is None:
                table = tables[0].logicalTableId
                self.scope.aliases.setdefault(table, f"t{len(self.scope.aliases)}")
                one = Value(exp.Literal.number(1), "INTEGER", "row", frozenset({table}))
                return self.grouping.aggregate("COUNT", one, f"COUNT([{argument.text}])")
        value = self.value(argument)
        if name in ("SUM", "AVG", "MEDIAN", "STDEV", "VAR"):
            _need([value], NUMBERS, name)
        return self.grouping.aggregate(name, value, f"{name}(...)")


def merged(sql: exp.Expr, kind: str, parts: Sequence[Value]) -> Value:
    """A value made of others. Raises FormulaError where rows and aggregates are mixed."""
    levels = {part.level for part in parts} - {"constant"}
    if len(levels) > 1:
        raise FormulaError("an expression that mixes rows and aggregates")
    tables = frozenset().union(*(part.tables for part in parts))
    return Value(sql, kind, levels.pop() if levels else "constant", tables)


def choice(tests: list[Value], results: list[Value], otherwise: Value) -> Value:
    """IF and CASE. Raises NotExecutable where the results are of different types."""
    _need(tests, ("BOOLEAN",), "IF")
    kind = _common([*results, otherwise])
    case = exp.Case(this=None, ifs=[])
    for test, result in zip(tests, results, strict=True):
        case = case.when(test.sql, result.sql)
    return merged(case.else_(otherwise.sql), kind, [*tests, *results, otherwise])


def _common(values: Sequence[Value]) -> str:
    kinds = {value.kind for value in values} - set(UNKNOWN)
    if kinds == set(NUMBERS):
        return "REAL"
    if len(kinds) > 1:
        refused = NotExecutable if kinds & set(DATES) else FormulaError
        raise refused(f"an expression with values of the types {', '.join(sorted(kinds))}")
    return kinds.pop() if kinds else "UNKNOWN"


def _arithmetic(sign: str, parts: list[Value]) -> tuple[exp.Expr, str]:
    sqls = [_paren(part.sql) for part in parts]
    whole = all(part.kind == "INTEGER" for part in parts)
    if len(parts) == 1:
        return exp.Neg(this=sqls[0]), parts[0].kind
    left, right = sqls
    if sign in ("+", "-", "*"):
        wide = exp.cast(left, _BIGINT, copy=False) if whole else left  # else DuckDB has 32 bits
        made = {"+": exp.Add, "-": exp.Sub, "*": exp.Mul}[sign](this=wide, expression=right)
        return _paren(made), "INTEGER" if whole else "REAL"
    not_zero = exp.Nullif(this=right, expression=exp.Literal.number(0))
    if sign == "/":
        return exp.Div(this=_float(left), expression=_float(not_zero), typed=True, safe=True), "REAL"
    if sign == "%" and whole:
        return exp.Mod(this=left, expression=not_zero), "INTEGER"
    raise NotExecutable(f"the sign {sign} between {' and '.join(part.kind for part in parts)} in a formula")


def _paren(sql: exp.Expr) -> exp.Expr:
    """``sql`` in parentheses, and no copy of it: a long formula would copy itself at each of its signs."""
    return exp.Paren(this=sql)


def _float(sql: exp.Expr) -> exp.Expr:
    return exp.cast(sql, _DOUBLE, copy=False)


def _kind_of(value: object) -> str:
    kinds = {bool: "BOOLEAN", int: "INTEGER", float: "REAL", str: "STRING"}
    return kinds.get(type(value), "UNKNOWN")


def _need(values: Sequence[Value], kinds: Sequence[str], what: str) -> None:
    for value in values:
        if value.kind not in (*kinds, *UNKNOWN):
            raise FormulaError(f"{what} of a value of type {value.kind}")


# ------------------------------------------------------------------------------------------------------- functions

Maker = Callable[[list[Value]], Value]


def _plain(sql_name: str, kinds: Sequence[str], result: str | None = None) -> Maker:
    """A function of one argument that engines have under one name; without ``result``, of the argument's type."""

    def make(values: list[Value]) -> Value:
        _need(values, kinds, sql_name)
        sql = exp.Anonymous(this=sql_name, expressions=[value.sql for value in values])
        return merged(sql, result or values[0].kind, values)

    return make


def _text_test(place: Callable[[exp.Expr, exp.Expr], exp.Expr]) -> Maker:
    def make(values: list[Value]) -> Value:
        _need(values, ("STRING",), "a comparison of texts")
        return merged(place(values[0].sql, values[1].sql), "BOOLEAN", values)

    return make


def contains(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Whether a text has another in it."""
    return exp.GT(this=exp.StrPosition(this=text, substr=part), expression=exp.Literal.number(0))


def starts(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Whether a text begins with another."""
    head = exp.Substring(this=text, start=exp.Literal.number(1), length=exp.Length(this=part.copy()))
    return exp.EQ(this=head, expression=part)


def ends(text: exp.Expr, part: exp.Expr) -> exp.Expr:
    """Whether a text ends with another; one that is longer is no end."""
    size, of = exp.Length(this=text.copy()), exp.Length(this=part.copy())
    start = exp.Add(this=exp.Sub(this=size.copy(), expression=of.copy()), expression=exp.Literal.number(1))
    tail = exp.EQ(this=exp.Substring(this=text, start=start), expression=part)
    return exp.paren(exp.and_(exp.GTE(this=size, expression=of), tail))


def _if_null(values: list[Value]) -> Value:
    sql = exp.Coalesce(this=values[0].sql, expressions=[values[1].sql])
    return merged(sql, _common(values), values)


def _zero(values: list[Value]) -> Value:
    _need(values, NUMBERS, "ZN")
    return _if_null([values[0], constant(0, "INTEGER")])


def _is_null(values: list[Value]) -> Value:
    return merged(exp.paren(values[0].sql.is_(exp.null())), "BOOLEAN", values)


def _iif(values: list[Value]) -> Value:
    """Unlike IF, which takes its ELSE then, IIF is NULL where nothing is known of its condition."""
    test, then, otherwise = values
    _need([test], ("BOOLEAN",), "IIF")
    is_false = Value(exp.Not(this=exp.paren(test.sql)), "BOOLEAN", test.level, test.tables)
    return choice([test, is_false], [then, otherwise], constant(None, "UNKNOWN"))


def _round(values: list[Value]) -> Value:
    _need(values, NUMBERS, "ROUND")
    if len(values) == 2 and not (isinstance(values[1].sql, exp.Literal) and values[1].sql.is_int):
        raise NotExecutable("ROUND to a number of decimals that is not written out, or below 0")
    sql = exp.Round(this=values[0].sql, decimals=values[1].sql if len(values) == 2 else None)
    return merged(sql, values[0].kind, values)


_TEXT = ("STRING",)
FUNCTIONS: dict[str, tuple[Sequence[int], Maker]] = {  # name: how many arguments, and what is made of them
    "ABS": ((1,), _plain("ABS", NUMBERS)),
    "CEILING": ((1,), _plain("CEIL", NUMBERS, "INTEGER")),
    "FLOOR": ((1,), _plain("FLOOR", NUMBERS, "INTEGER")),
    "ROUND": ((1, 2), _round),
    "LEN": ((1,), _plain("LENGTH", _TEXT, "INTEGER")),
    "UPPER": ((1,), _plain("UPPER", _TEXT)),
    "LOWER": ((1,), _plain("LOWER", _TEXT)),
    "TRIM": ((1,), _plain("TRIM", _TEXT)),
    "CONTAINS": ((2,), _text_test(contains)),
    "STARTSWITH": ((2,), _text_test(starts)),
    "ENDSWITH": ((2,), _text_test(ends)),
    "IFNULL": ((2,), _if_null),
    "ISNULL": ((1,), _is_null),
    "ZN": ((1,), _zero),
    "IIF": ((3,), _iif),
}


# ---------------------------------------------------------------------------- filters as conditions
# NULL passes SET where it is among the values, ``exclude`` where it is not, MATCH with ``exclude``
# only, and the others with ``includeNulls`` only. MATCH does not tell upper from lower case; SQLite
# knows only the letters of ASCII so. Not covered: TOP and CONDITION, which group by themselves
# (``compile``).

_TESTS = {"contains": contains, "startsWith": starts, "endsWith": ends}


def condition(part: Any, value: Value, dialect: str, today: datetime.date) -> exp.Expr:
    """The condition of a filter over the value of its field. Raises NotExecutable for a type that does not fit."""
    match part:
        case SetFilter():
            return _set(part, value, dialect)
        case MatchFilter():
            return _match(part, value, dialect)
        case QuantitativeNumericalFilter(min=low, max=high):
            _of(value, NUMBERS, part)
            ends_ = [None if end is None else literal(end, "REAL") for end in (low, high)]
            return _between(part, value.sql, ends_)
        case QuantitativeDateFilter(minDate=low, maxDate=high):
            _of(value, DATES, part)
            dates = [None if end is None else date_literal(end, dialect, moments=False) for end in (low, high)]
            return _between(part, scalars.day(value.sql.copy(), dialect), dates)
        case RelativeDateFilter():
            return _relative(part, value, dialect, today)
    raise NotExecutable(f"a {part.filterType} filter")


def _of(value: Value, kinds: tuple[str, ...], part: Any) -> None:
    if value.kind not in (*kinds, *UNKNOWN):
        raise NotExecutable(f"a {part.filterType} filter on a value of type {value.kind}")


def _set(part: SetFilter, value: Value, dialect: str) -> exp.Expr:
    moments = value.kind == "DATETIME"
    listed = [_listed(item, value.kind, dialect, moments) for item in part.values if item is not None]
    about, nulls = comparable(value, dialect, moments=moments), None in part.values
    is_in = exp.In(this=exp.paren(about.copy()), expressions=listed)  # a > b IN (...) is a > (b IN (...)) in DuckDB
    is_null = about.copy().is_(exp.null())
    if part.exclude:
        ways: list[exp.Expr] = [is_null.not_()] if nulls else []
        if listed:
            ways.append(is_in.not_() if nulls else exp.paren(exp.or_(is_null, is_in.not_())))
        return exp.paren(exp.and_(*ways))
    return exp.paren(exp.or_(*([is_in] if listed else []), *([is_null] if nulls else [])))


def _listed(item: Any, kind: str, dialect: str, moments: bool) -> exp.Expr:
    if kind in DATES and isinstance(item, str):
        return date_literal(item, dialect, moments=moments)
    return literal(item, kind)


def _match(part: MatchFilter, value: Value, dialect: str) -> exp.Expr:
    _of(value, ("STRING",), part)
    text_of = value.sql if dialect == "sqlite" else exp.cast(value.sql, "text")  # a UUID or a TIME has no LOWER
    tests = [
        test(exp.Lower(this=text_of.copy()), literal(lowered(text, dialect), "STRING"))
        for key, test in _TESTS.items()
        if (text := getattr(part, key)) is not None
    ]
    both = exp.paren(exp.and_(*tests))
    if not part.exclude:
        return both
    return exp.paren(exp.or_(value.sql.copy().is_(exp.null()), both.not_()))


def lowered(text: str, dialect: str) -> str:
    """A text as the dialect's LOWER makes it."""
    if dialect != "sqlite":
        return text.lower()
    return "".join(sign.lower() if sign.isascii() else sign for sign in text)


def _between(part: Any, about: exp.Expr, ends_: list[exp.Expr | None]) -> exp.Expr:
    kind = part.quantitativeFilterType
    if kind in ("ONLY_NULL", "ONLY_NON_NULL"):
        is_null = about.is_(exp.null())
        return is_null if kind == "ONLY_NULL" else is_null.not_()
    low, high = ends_
    tests: list[exp.Expr] = [] if low is None else [exp.GTE(this=about.copy(), expression=low)]
    tests += [] if high is None else [exp.LTE(this=about.copy(), expression=high)]
    return _or_null(exp.and_(*tests), about, part.includeNulls)


def _relative(part: RelativeDateFilter, value: Value, dialect: str, today: datetime.date) -> exp.Expr:
    _of(value, DATES, part)
    anchor = datetime.date.fromisoformat(part.anchorDate) if part.anchorDate else today
    first, after = scalars.period(part.periodType, part.dateRangeType, anchor, part.rangeN or 1)
    about = scalars.day(value.sql.copy(), dialect)
    low, high = (date_literal(str(end), dialect, moments=False) for end in (first, after))
    tests = exp.GTE(this=about.copy(), expression=low), exp.LT(this=about.copy(), expression=high)
    return _or_null(exp.and_(*tests), about, part.includeNulls)


def _or_null(test: exp.Expr, about: exp.Expr, nulls: bool | None) -> exp.Expr:
    return exp.paren(exp.or_(exp.paren(test), about.copy().is_(exp.null()))) if nulls else exp.paren(test)
