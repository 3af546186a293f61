"""A SQL gold as one SELECT over fields of a data source, or why it is none.

>>> read_gold("SELECT name FROM a UNION SELECT name FROM b", None, None)
Traceback (most recent call last):
    ...
vizql_golds.gold.LeftOut: set operation

Not covered: what a column, a condition or an order is in a structured query (``writing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from nl2sql.sql.parse import parse_bounded
from nl2sql.vizql.source import DataSource, FieldMetadata

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema

_WHOLE = (  # the first that is anywhere in a statement is why it is left out
    (exp.With, "WITH"),
    (exp.SetOperation, "set operation"),
    (exp.Window, "window function"),
)


class LeftOut(Exception):
    """A gold that is not written as a structured query; the text is the reason that is counted."""


@dataclass(frozen=True)
class Gold:
    """One SELECT: its tables by alias, and the pairs of fields that its joins make equal."""

    select: exp.Select
    source: DataSource
    tables: dict[str, str]
    joins: tuple[tuple[FieldMetadata, FieldMetadata], ...]
    nullable: frozenset[str]  # captions

    def field(self, column: exp.Column) -> FieldMetadata:
        """The field that a column of the SQL is."""
        tables = [self.tables[column.table.lower()]] if column.table else [*self.tables.values()]
        for field in self.source.fields:
            if field.column.lower() == column.name.lower() and self.source.table_of(field) in tables:
                return field
        raise LeftOut("a name that is no column")

    @property
    def counted(self) -> FieldMetadata:
        """The field whose COUNT is COUNT(*): the key of the table whose rows the joins keep once each."""
        ones = {table for pair in self._sides() for table in pair}
        rows = [table for table in self.tables.values() if table not in ones]
        if len(rows) != 1:
            raise LeftOut("COUNT(*) over a join that is not by a key")
        return self._key_field(rows[0])

    def _key_field(self, table: str) -> FieldMetadata:
        """A field of the primary key, one that is no foreign key where there is one."""
        logical = next(t for t in self.source.logicalTables if (t.table or t.caption) == table)
        keys = [field for name in logical.key if (field := self.source.field_named(name)) is not None]
        if not keys:
            raise LeftOut("COUNT(*) of a table without a key")
        refers = {a for relation in self.source.logicalTableRelationships for a, _ in relation.field_pairs()}
        return next((field for field in keys if field.fieldName not in refers), keys[0])

    def _sides(self) -> Iterator[set[str]]:
        """For each two tables that are joined, the one of which a row is joined once: by its whole key."""
        pairs = {tuple(sorted((a.logicalTableId, b.logicalTableId))) for a, b in self.joins}
        for tables in sorted(pairs):
            yield set([table for table in tables if self._by_key(table, tables)][-1:])

    def _by_key(self, table: str, tables: tuple[str, ...]) -> bool:
        logical = self.source.table(table)
        names = {
            field.fieldName
            for pair in self.joins
            if {field.logicalTableId for field in pair} == set(tables)
            for field in pair
            if field.logicalTableId == table
        }
        return logical is not None and bool(logical.key) and set(logical.key) <= names


def read_gold(sql: str, source: DataSource, schema: Schema) -> Gold:
    """The parts of a gold over the data source of its database. Raises LeftOut."""
    tree = parse_bounded(sql)
    for kind, reason in _WHOLE:
        if tree.find(kind) is not None:
            raise LeftOut(reason)
    if not isinstance(tree, exp.Select) or len(list(tree.find_all(exp.Select))) > 1:
        raise LeftOut("subquery")
    known = {table.name.lower(): table for table in schema.tables}
    tables = {table.alias_or_name.lower(): known[table.name.lower()].name for table in tree.find_all(exp.Table)}
    if len(set(tables.values())) < len(list(tree.find_all(exp.Table))):
        raise LeftOut("self join")
    if any(join.side for join in tree.args.get("joins") or ()):
        raise LeftOut("outer join")
    nullable = frozenset(
        field.fieldCaption
        for field in source.fields
        for column in known[source.table_of(field).lower()].columns
        if column.name == field.column and not (column.not_null or column.primary_key)
    )
    gold = Gold(tree, source, tables, (), nullable)
    return Gold(tree, source, tables, tuple(_equal_fields(gold)), nullable)


def _equal_fields(gold: Gold) -> Iterator[tuple[FieldMetadata, FieldMetadata]]:
    for join in gold.select.args.get("joins") or ():
        on = join.args.get("on")
        for part in on.flatten() if isinstance(on, exp.And) else [on]:
            sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
            columns = [gold.field(side) for side in sides if isinstance(side, exp.Column)]
            if len(columns) != 2:
                raise LeftOut("join by something else than equal columns")
            yield columns[0], columns[1]
