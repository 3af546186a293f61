"""What the names of a query mean: the tables it needs, joined, and fields and formulas as values in SQL.

>>> from nl2sql.vizql.scalars import constant
>>> grouping = Grouping()
>>> grouping.aggregate("SUM", constant(1, "INTEGER"), "SUM(1)")
Traceback (most recent call last):
    ...
nl2sql.vizql.formula_tree.NotExecutable: an aggregate of a constant (SUM(1))

A ``Scope`` knows the data source and the query; a ``Grouping`` collects the aggregates of one GROUP BY. What is not
executed raises NotExecutable with its name. Not covered: groups, bins of the data source, and places.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}], "logicalTables": [
...     {"logicalTableId": "t", "caption": "T"}]})
>>> joined({"t": "t0"}, source).first
't'
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlglot import exp

from nl2sql.vizql import scalars
from nl2sql.vizql.evaluation import Evaluation
from nl2sql.vizql.fields import DATE_PARTS, DATE_TRUNCATIONS, CalculatedField
from nl2sql.vizql.formula_tree import FormulaError, NotExecutable, parse_formula
from nl2sql.vizql.query import Request
from nl2sql.vizql.scalars import DATES, UNKNOWN, Value, literal
from nl2sql.vizql.source import DataSource, FieldMetadata, LogicalTable, result_type, unbracketed

# --------------------------------------------------------------------------------------- the tables
# A relationship leads from a table to another without doubling rows where it compares all fields of
# the other's ``key``. Not covered: relationships with other signs than ``=``, two ways to one
# table, and many-to-many: all are refused.

Step = tuple[str, str, tuple[tuple[str, str], ...]]  # from a table to another, and the fields that are equal


@dataclass(frozen=True)
class Joined:
    """The first table, and a FROM clause in which each of its rows is once."""

    first: str
    tables: exp.Select


def joined(aliases: dict[str, str], source: DataSource) -> Joined:
    """The tables of ``aliases`` (logical table -> its alias, which further tables are added to).

    Raises NotExecutable where no table leads to all others, or more than one way does.
    """
    first, steps = leading(aliases, source)
    return Joined(first, _from(first, steps, aliases, source))


def leading(tables: Collection[str], source: DataSource) -> tuple[str, list[Step]]:
    """The one table that leads to all of these, one of them where there is one, and its steps.

    Raises NotExecutable where no table does, or more than one.
    """
    if not tables:
        raise NotExecutable("a query that names no field of a table")
    others = [table.logicalTableId for table in source.logicalTables if table.logicalTableId not in tables]
    starts = _starts(tables, tables, source) or _starts(others, tables, source)
    if len(starts) != 1:
        names = ", ".join(sorted(tables))
        said = "more than one table leads" if starts else "no table leads"
        raise NotExecutable(f"the tables {names} together: {said} to all of them by relationships to their keys")
    [(first, steps)] = starts.items()
    return first, steps


def _starts(tables: Collection[str], wanted: Collection[str], source: DataSource) -> dict[str, list[Step]]:
    """The tables that lead to all that are wanted, with the steps."""
    found = {table: ways(table, wanted, source) for table in tables}
    return {table: steps for table, steps in found.items() if steps is not None}


def ways(start: str, wanted: Collection[str], source: DataSource) -> list[Step] | None:
    """The steps from ``start`` to all that are wanted; None where one is not reached. Raises for two ways to one."""
    paths: dict[str, list[Step]] = {start: []}
    doubled: set[str] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for step in _steps(here, source):
            if step[1] in paths:
                doubled.add(step[1])
            else:
                paths[step[1]] = [*paths[here], step]
                waiting.append(step[1])
    if any(table not in paths for table in wanted):
        return None
    steps = list(dict.fromkeys(step for table in wanted for step in paths[table]))
    passed = {step[1] for step in steps}
    if doubled & passed:
        raise NotExecutable(f"more than one way of relationships to table {min(doubled & passed)}")
    return steps


def _steps(here: str, source: DataSource) -> Iterator[Step]:
    for relation in source.logicalTableRelationships:
        one, other = relation.fromLogicalTable.logicalTableId, relation.toLogicalTable.logicalTableId
        pairs = relation.field_pairs()
        for start, end, fields in ((one, other, pairs), (other, one, tuple((b, a) for a, b in pairs))):
            table = source.table(end)
            key = {unbracketed(name) for name in table.key} if table else set()
            if start == here and start != end and fields and key and key <= {b for _, b in fields}:
                yield start, end, fields


def _from(first: str, steps: list[Step], aliases: dict[str, str], source: DataSource) -> exp.Select:
    for table in (first, *(step[1] for step in steps)):
        aliases.setdefault(table, f"t{len(aliases)}")
    query = exp.select().from_(_table(first, aliases, source))
    for start, end, fields in steps:
        on = exp.and_(*(_column(a, start, aliases, source).eq(_column(b, end, aliases, source)) for a, b in fields))
        query = query.join(_table(end, aliases, source), on=on, join_type="left")
    return query


def _table(logical_id: str, aliases: dict[str, str], source: DataSource) -> exp.Expr:
    name = table_name(source.table(logical_id))
    return exp.alias_(exp.Table(this=exp.to_identifier(name, quoted=True)), aliases[logical_id], table=True)


def _column(name: str, table: str, aliases: dict[str, str], source: DataSource) -> exp.Column:
    known = source.field_named(name)
    column = known.column if known is not None and known.logicalTableId == table else name
    return exp.column(exp.to_identifier(column, quoted=True), table=aliases[table])


def table_name(table: LogicalTable | None) -> str:
    """The table of the database behind a logical table."""
    return (table.table or table.caption) if table else ""


def logical_table_of(known: FieldMetadata, source: DataSource) -> str:
    """The logical table in which a field's column is. Raises NotExecutable where none is known."""
    physical = table_name(source.table(known.logicalTableId))
    if not physical or source.table_of(known) != physical:
        raise NotExecutable(f"field '{known.fieldCaption}', whose table the data source does not say")
    return known.logicalTableId


# ---------------------------------------------------------------------------------------- the names

AGGREGATES = frozenset({"SUM", "AVG", "MEDIAN", "COUNT", "COUNTD", "MIN", "MAX", "STDEV", "VAR"})
DEEPEST = 10  # calculations that name calculations
MOST = 300  # calculations that one query reads, one that is named twice counted twice
MOST_PARTS = 3_000  # values and operations of these


@dataclass
class Grouping:
    """One GROUP BY: its aggregates, each with its function, argument and what a message calls it."""

    aggregates: dict[tuple[str, str, frozenset[str]], tuple[str, Value, str]] = field(default_factory=dict)

    def aggregate(self, function: str, argument: Value, label: str) -> Value:
        """The aggregate as a column of the grouped rows, ``s``. Raises NotExecutable inside of another aggregate."""
        if argument.level != "row":
            if argument.level == "aggregate":
                raise FormulaError(f"an aggregate of an aggregate ({label})")
            raise NotExecutable(f"an aggregate of a constant ({label})")
        key = (function, argument.sql.sql(), argument.tables)  # the rows of any table are counted as 1
        self.aggregates.setdefault(key, (function, argument, label))
        name = f"m{list(self.aggregates).index(key)}"
        return Value(exp.column(name, table="s"), result_type(function, argument.kind), "aggregate", argument.tables)


@dataclass
class Scope:
    """What names mean: the request, its data source, the dialect, and aliases of the tables that are read."""

    request: Request
    source: DataSource
    dialect: str
    aliases: dict[str, str] = field(default_factory=dict)
    calculations: int = 0  # read so far
    parts: int = 0  # of these

    @property
    def by_name(self) -> bool:
        """Does the query name fields by ``fieldName``, in its formulas too, and not by caption?"""
        options = self.request.options
        return bool(options and options.interpretFieldCaptionsAsFieldNames)

    @cached_property
    def own(self) -> dict[str, str]:
        """The query's calculations: the formula by the caption, in lower case; the first of two."""
        fields = reversed(self.request.query.fields)
        return {part.fieldCaption.casefold(): part.calculation for part in fields if isinstance(part, CalculatedField)}

    def known(self, caption: str) -> FieldMetadata:
        """The field of the data source that a query names. Raises NotExecutable where there is none."""
        known = self.source.field_named(caption) if self.by_name else self.source.field_any_case(caption)
        if known is None:
            raise NotExecutable(f"field '{caption}', which the data source does not have")
        return known

    def read(self, part: Any, grouping: Grouping) -> Value:
        """What a part of the query with a caption and a function, or with a calculation, gives."""
        calculation = getattr(part, "calculation", None)
        if calculation is not None:
            return self.formula(calculation, grouping)
        known = self.known(part.fieldCaption)
        function = getattr(part, "function", None)
        if function is not None and function != "AGG":
            return self.applied(function, self.field(known, grouping, aliased=False), grouping, known.fieldCaption)
        return self.field(known, grouping)

    def applied(self, function: str, value: Value, grouping: Grouping, label: str) -> Value:
        """A function of the service's list over a value."""
        if function in DATE_PARTS or function in DATE_TRUNCATIONS:
            return self.of_date(function, value)
        if function not in AGGREGATES:
            raise NotExecutable(f"function {function}")
        return grouping.aggregate(function, value, f"{function}({label})")

    def of_date(self, function: str, value: Value) -> Value:
        """A part or truncation of a date; a truncation is a day, of moments too."""
        if value.kind not in DATES:
            raise NotExecutable(f"{function} of a value of type {value.kind}")
        if function in DATE_TRUNCATIONS:
            sql = scalars.truncated(function.removeprefix("TRUNC_"), value.sql, self.dialect)
            return Value(sql, "DATE", value.level, value.tables)
        return Value(scalars.part(function, value.sql, self.dialect), "INTEGER", value.level, value.tables)

    def field(self, known: FieldMetadata, grouping: Grouping, depth: int = 0, aliased: bool = True) -> Value:
        """The column or formula behind a field; ``aliased``: with its members' aliases as they are shown."""
        if known.columnClass == "CALCULATION":
            try:
                value = self.formula(known.formula, grouping, depth + 1, by_name=False)
            except FormulaError as error:  # no fault of the query
                raise NotExecutable(f"the calculation of field '{known.fieldCaption}': {error}") from None
            kind = known.dataType if known.dataType not in UNKNOWN else value.kind
            return Value(value.sql, kind, value.level, value.tables)
        if known.columnClass not in ("COLUMN", "UNSPECIFIED"):
            said = known.columnClass.lower().replace("_", " ")
            raise NotExecutable(f"the {said} field '{known.fieldCaption}' of the data source")
        if known.dataType == "SPATIAL":
            raise NotExecutable(f"the SPATIAL field '{known.fieldCaption}'")
        table = logical_table_of(known, self.source)
        column = self.column(table, known.column)
        if aliased and known.aliases:
            column = self._shown(known, column)
        return Value(column, known.dataType, "row", frozenset({table}))

    def column(self, table: str, name: str) -> exp.Expr:
        """A column of a logical table, which is read from now on."""
        alias = self.aliases.setdefault(table, f"t{len(self.aliases)}")
        return exp.column(exp.to_identifier(name, quoted=True), table=alias)

    def _shown(self, known: FieldMetadata, column: exp.Expr) -> exp.Expr:
        """The aliases of a field's members; SET and MATCH filters are about what is shown, too."""
        if known.dataType != "STRING":
            raise NotExecutable(f"aliases of members of the {known.dataType} field '{known.fieldCaption}'")
        case = exp.Case(this=None, ifs=[])
        for alias in known.aliases:
            member, shown = literal(alias.get("member"), "STRING"), literal(alias.get("value"), "STRING")
            is_null = alias.get("member") is None
            case = case.when(column.copy().is_(member) if is_null else column.copy().eq(member), shown)
        return case.else_(column)

    def count(self) -> None:
        """One more part of a formula is read. Raises FormulaError for too many in one query."""
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise FormulaError(f"calculations of more than {MOST_PARTS:,} parts in all")

    def formula(self, text: str, grouping: Grouping, depth: int = 0, *, by_name: bool | None = None) -> Value:
        """What a formula gives; ``by_name``: whether it names fields by ``fieldName`` only, as the query says."""
        self.calculations += 1
        if self.calculations > MOST:
            raise FormulaError(f"calculations that name more than {MOST} calculations in all")
        if depth > DEEPEST:
            raise FormulaError(f"calculations that name calculations more than {DEEPEST} deep")
        names = self.by_name if by_name is None else by_name  # a formula of the data source has its own names
        return Evaluation(self, grouping, depth, by_name=names).value(parse_formula(text))
