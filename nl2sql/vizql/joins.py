"""Which tables a query needs, joined so that no row of the first one comes twice.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}], "logicalTables": [
...     {"logicalTableId": "t", "caption": "T"}]})
>>> joined({"t": "t0"}, source).first
't'

A relationship leads from a table to another without doubling rows where it compares all fields of the other's ``key``.
Not covered: relationships with other signs than ``=``, two ways to one table, and many-to-many: all are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlglot import exp

from nl2sql.vizql.formula_tree import NotExecutable
from nl2sql.vizql.source import DataSource, FieldMetadata, LogicalTable, unbracketed

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
