"""What the names of a query mean: the tables it needs, joined, and fields and formulas as values in SQL.

A ``Scope`` knows the data source and the query; a ``Grouping`` collects the aggregates of one GROUP BY. What is not
executed raises NotExecutable with its name; what no engine would take (a total of texts, rows beside aggregates) is a
FormulaError, which the validator reports, too. Worked examples: ``tests/vizql/test_compile.py``.

>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}], "logicalTables": [
...     {"logicalTableId": "t", "caption": "T"}]})
>>> joined({"t": "t0"}, source)[0]
't'

Not covered: groups, bins of the data source, and places; LOD expressions, IN, table calculations, and all other
functions than those of ``values``, which are refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from nl2sql.vizql.formula_tree import Call, Constant, Day, FormulaError, Name, NotExecutable, Tree, parse_formula
from nl2sql.vizql.query import AGGREGATES, DATE_PARTS, DATE_TRUNCATIONS
from nl2sql.vizql.source import DATES, NUMBERS, UNKNOWN, DataSource, FieldMetadata, result_type, unbracketed
from nl2sql.vizql.values import (
    COMPARED,
    FUNCTIONS,
    Value,
    choice,
    constant,
    date_literal,
    literal,
    moment_of,
    need,
    of_date,
    operation,
)

# --------------------------------------------------------------------------------------- the tables
# A relationship leads from a table to another without doubling rows where it compares all fields of
# the other's ``key``. Not covered: relationships with other signs than ``=``, two ways to one
# table, and many-to-many: all are refused.

Step = tuple[str, str, tuple[tuple[str, str], ...]]  # from a table to another, and the fields that are equal


def joined(aliases: dict[str, str], source: DataSource) -> tuple[str, exp.Select]:
    """The first of the tables of ``aliases`` (logical table -> its alias, which further tables are added to), and a
    FROM clause in which each of its rows is once.

    Raises NotExecutable where no table leads to all others, or more than one way does.
    """
    first, steps = leading(aliases, source)
    for table in (first, *(end for _, end, _ in steps)):
        aliases.setdefault(table, f"t{len(aliases)}")

    def table_at(table: str) -> exp.Expr:
        known = source.table(table)
        name = exp.to_identifier(known.name if known else "", quoted=True)
        return exp.alias_(exp.Table(this=name), aliases[table], table=True)

    def column(name: str, table: str) -> exp.Column:
        known = source.field_named(name)
        of = known.column if known is not None and known.logicalTableId == table else name
        return exp.column(exp.to_identifier(of, quoted=True), table=aliases[table])

    query = exp.select().from_(table_at(first))
    for start, end, fields in steps:
        on = exp.and_(*(column(a, start).eq(column(b, end)) for a, b in fields))
        query = query.join(table_at(end), on=on, join_type="left")
    return first, query


def leading(tables: Collection[str], source: DataSource) -> tuple[str, list[Step]]:
    """The one table that leads to all of these, one of them where there is one, and its steps.

    Raises NotExecutable where no table does, or more than one.
    """
    if not tables:
        raise NotExecutable("a query that names no field of a table")
    others = [table.logicalTableId for table in source.logicalTables if table.logicalTableId not in tables]
    for among in (tables, others):
        found = {table: ways(table, tables, source) for table in among}
        if starts := {table: steps for table, steps in found.items() if steps is not None}:
            break
    if len(starts) != 1:
        names = ", ".join(sorted(tables))
        said = "more than one table leads" if starts else "no table leads"
        raise NotExecutable(f"the tables {names} together: {said} to all of them by relationships to their keys")
    [(first, steps)] = starts.items()
    return first, steps


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
        (one, other), pairs = relation.ends, relation.field_pairs()
        for start, end, fields in ((one, other, pairs), (other, one, tuple((b, a) for a, b in pairs))):
            table = source.table(end)
            key = {unbracketed(name) for name in table.key} if table else set()
            if start == here and start != end and fields and key and key <= {b for _, b in fields}:
                yield start, end, fields


def logical_table_of(known: FieldMetadata, source: DataSource) -> str:
    """The logical table in which a field's column is. Raises NotExecutable where none is known."""
    table = source.table(known.logicalTableId)
    if not (table and table.name) or source.table_of(known) != table.name:
        raise NotExecutable(f"field '{known.fieldCaption}', whose table the data source does not say")
    return known.logicalTableId


# ---------------------------------------------------------------------------------------- the names

DEEPEST = 10  # calculations that name calculations
MOST = 300  # calculations that one query reads, one that is named twice counted twice
MOST_PARTS = 3_000  # values and operations of these
_TABLE_CALCULATIONS = ("RUNNING_", "WINDOW_", "RANK", "MODEL_", "SCRIPT_")
_OF_TABLES = frozenset({"INDEX", "LOOKUP", "FIRST", "LAST", "SIZE", "TOTAL", "PREVIOUS_VALUE"})
_MORE = {("MIN", 2), ("MAX", 2), ("IIF", 4)}  # how many arguments the language takes, and we do not


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
    """What names mean: the data source, what the query adds to it, the dialect, and aliases of the tables read.

    own: the query's calculations, as (caption, formula). given: its parameters, as (caption, value); of two of one
    name the first counts. by_name: does the query name fields by ``fieldName``, in its formulas too, and not by
    caption?
    """

    source: DataSource
    dialect: str
    own: Sequence[tuple[str, str]] = ()
    given: Sequence[tuple[str, Any]] = ()
    by_name: bool = False
    aliases: dict[str, str] = field(default_factory=dict)
    calculations: int = 0  # read so far
    parts: int = 0  # of these

    def known(self, caption: str) -> FieldMetadata:
        """The field of the data source that a query names. Raises NotExecutable where there is none."""
        known = self.source.meant(caption, self.by_name)
        if known is None:
            raise NotExecutable(f"field '{caption}', which the data source does not have")
        return known

    def read(self, part: Any, grouping: Grouping, function: str | None = None) -> Value:
        """What a part of the query with a calculation gives, or with a caption and a function: this one, or its own."""
        calculation = getattr(part, "calculation", None)
        if calculation is not None:
            return self.formula(calculation, grouping)
        known = self.known(part.fieldCaption)
        own = getattr(part, "function", None)
        function = function or (own if own != "AGG" else None)
        if function is not None:
            return self.applied(function, self.field(known, grouping, aliased=False), grouping, known.fieldCaption)
        return self.field(known, grouping)

    def applied(self, function: str, value: Value, grouping: Grouping, label: str) -> Value:
        """A function of the service's list over a value."""
        if function in DATE_PARTS | DATE_TRUNCATIONS:
            return self.of_date(function, value)
        if function not in AGGREGATES:
            raise NotExecutable(f"function {function}")
        return grouping.aggregate(function, value, f"{function}({label})")

    def of_date(self, function: str, value: Value) -> Value:
        """A part or truncation of a date; a truncation is a day, of moments too."""
        if value.kind not in DATES:
            raise NotExecutable(f"{function} of a value of type {value.kind}")
        sql = of_date(function, value.sql, self.dialect)
        return Value(sql, "DATE" if function in DATE_TRUNCATIONS else "INTEGER", value.level, value.tables)

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
        alias = self.aliases.setdefault(table, f"t{len(self.aliases)}")  # it is read from now on
        column = exp.column(exp.to_identifier(known.column, quoted=True), table=alias)
        shown = self._shown(known, column) if aliased and known.aliases else column
        return Value(shown, known.dataType, "row", frozenset({table}))

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

    def formula(self, text: str, grouping: Grouping, depth: int = 0, *, by_name: bool | None = None) -> Value:
        """What a formula gives; ``by_name``: whether it names fields by ``fieldName`` only, as the query says."""
        self.calculations += 1
        if self.calculations > MOST:
            raise FormulaError(f"calculations that name more than {MOST} calculations in all")
        if depth > DEEPEST:
            raise FormulaError(f"calculations that name calculations more than {DEEPEST} deep")
        names = self.by_name if by_name is None else by_name  # a formula of the data source has its own names
        return _Formula(self, grouping, depth, names).value(parse_formula(text))


@dataclass
class _Formula:
    """One formula; ``depth`` counts calculations that name calculations, ``by_name`` is as in ``Scope.formula``."""

    scope: Scope
    grouping: Grouping
    depth: int
    by_name: bool

    def value(self, tree: Tree) -> Value:
        """The value of a tree. Raises NotExecutable, and FormulaError for too many parts in one query."""
        self.scope.parts += 1
        if self.scope.parts > MOST_PARTS:
            raise FormulaError(f"calculations of more than {MOST_PARTS:,} parts in all")
        match tree:
            case Constant(value):
                return constant(value)
            case Day(text):
                moments = moment_of(text).time() != moment_of(text[:10]).time()
                sql = date_literal(text, self.scope.dialect, moments=moments)
                return Value(sql, "DATETIME" if moments else "DATE", "constant")
            case Name():
                return self.name(tree)
            case Call("IF", (*parts, otherwise)):
                tests = [self.value(test) for test in parts[::2]]
                return choice(tests, [self.value(result) for result in parts[1::2]], self.value(otherwise))
            case Call(sign, parts) if sign in COMPARED or sign in ("AND", "OR", "NOT", *"+-*/%^"):
                return operation(sign, [self.value(part) for part in parts], self.scope.dialect)
        return self.call(tree)

    def name(self, name: Name) -> Value:
        """A calculation of the query, a field, or a parameter."""
        scope, folded = self.scope, name.text.casefold()
        own = next((formula for caption, formula in scope.own if caption.casefold() == folded), None)
        if own is not None and not name.parameter:
            return scope.formula(own, self.grouping, self.depth + 1)
        known = scope.source.meant(name.text, self.by_name) or scope.source.field_named(name.text)
        if known is not None and not name.parameter:
            return scope.field(known, self.grouping, self.depth, aliased=False)
        return self.parameter(name.text)

    def parameter(self, text: str) -> Value:
        """The value of a parameter: the query's, else the data source's."""
        parameters, folded = self.scope.source.parameters, text.casefold()
        names = [(p, {p.parameterCaption.casefold(), p.parameterName.casefold()}) for p in parameters]
        known = next((p for p, called in names if folded in called), None)
        if known is None:
            raise FormulaError(f"the name [{text}] in a formula, which the data source does not have")
        value = next((v for caption, v in self.scope.given if caption == known.parameterCaption), known.value)
        kind = known.dataType if known.dataType not in UNKNOWN else ""
        if kind in DATES and isinstance(value, str):
            return Value(date_literal(value, self.scope.dialect, moments=kind == "DATETIME"), kind, "constant")
        return constant(value, kind)

    def call(self, call: Call) -> Value:
        name, count = call.name, len(call.arguments)
        if name.startswith("{"):
            raise NotExecutable(f"an LOD expression ({name})")
        if name.startswith(_TABLE_CALCULATIONS) or name in _OF_TABLES:
            raise NotExecutable(f"the table calculation {name}()")
        if name in AGGREGATES and count == 1:
            return self.aggregate(name, call.arguments[0])
        arguments = [self.value(argument) for argument in call.arguments]
        if name in DATE_PARTS and count == 1:
            return self.scope.of_date(name, arguments[0])
        if name not in FUNCTIONS or count not in FUNCTIONS[name][0]:
            known = name in FUNCTIONS or name in AGGREGATES or name in DATE_PARTS
            refused = FormulaError if known and (name, count) not in _MORE else NotExecutable
            raise refused(f"the function {name} with {count} argument{'s' * (count != 1)}")
        return FUNCTIONS[name][1](arguments)

    def aggregate(self, name: str, argument: Tree) -> Value:
        """An aggregate; ``COUNT([Table])`` counts the rows of a logical table."""
        if name == "COUNT" and isinstance(argument, Name):
            folded = argument.text.casefold()
            tables = [t for t in self.scope.source.logicalTables if t.caption.casefold() == folded]
            if tables and self.scope.source.meant(argument.text, self.by_name) is None:
                table = tables[0].logicalTableId
                self.scope.aliases.setdefault(table, f"t{len(self.scope.aliases)}")
                one = Value(exp.Literal.number(1), "INTEGER", "row", frozenset({table}))
                return self.grouping.aggregate("COUNT", one, f"COUNT([{argument.text}])")
        value = self.value(argument)
        if name in ("SUM", "AVG", "MEDIAN", "STDEV", "VAR"):
            need([value], NUMBERS, name)
        return self.grouping.aggregate(name, value, f"{name}(...)")
