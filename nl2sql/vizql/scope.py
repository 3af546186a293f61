"""What the names of a query mean: fields and formulas of the data source as values in SQL.

>>> from nl2sql.vizql.scalars import constant
>>> grouping = Grouping()
>>> grouping.aggregate("SUM", constant(1, "INTEGER"), "SUM(1)")
Traceback (most recent call last):
    ...
nl2sql.vizql.formula_tree.NotExecutable: an aggregate of a constant (SUM(1))

A ``Scope`` knows the data source and the query; a ``Grouping`` collects the aggregates of one GROUP BY. What is not
executed raises NotExecutable with its name. Not covered: groups, bins of the data source, and places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlglot import exp

from nl2sql.vizql import days
from nl2sql.vizql.evaluation import Evaluation
from nl2sql.vizql.fields import DATE_PARTS, DATE_TRUNCATIONS, CalculatedField
from nl2sql.vizql.formula_tree import FormulaError, NotExecutable, parse_formula
from nl2sql.vizql.functions import result_type
from nl2sql.vizql.joins import logical_table_of
from nl2sql.vizql.query import Request
from nl2sql.vizql.scalars import DATES, UNKNOWN, Value, literal
from nl2sql.vizql.source import DataSource, FieldMetadata

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
            sql = days.truncated(function.removeprefix("TRUNC_"), value.sql, self.dialect)
            return Value(sql, "DATE", value.level, value.tables)
        return Value(days.part(function, value.sql, self.dialect), "INTEGER", value.level, value.tables)

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
