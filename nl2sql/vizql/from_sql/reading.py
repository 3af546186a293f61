"""A SELECT as one over the fields of a data source, or why it is none.

>>> read_select("SELECT name FROM a UNION SELECT name FROM b", None)
Traceback (most recent call last):
    ...
nl2sql.vizql.from_sql.reading.NotStructured: set operation

A name means what it means to SQLite: a column, else in WHERE and HAVING the alias of what is asked for, else, in double
quotes, a text. Not covered: what a column, a condition or an order is in a structured query (``writing``); ``*``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.sql.parse import parse_bounded
from nl2sql.vizql.source import DataSource, FieldMetadata, LogicalTable

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema

MOST_NODES = 5_000  # of a statement's tree; what a person writes has some hundreds
_WHOLE = (  # the first that is anywhere in a statement is why it is left out
    (exp.With, "WITH"),
    (exp.SetOperation, "set operation"),
    (exp.Window, "window function"),
    (exp.Rollup, "more than one grouping"),
    (exp.Cube, "more than one grouping"),
    (exp.GroupingSets, "more than one grouping"),
)
_CLAUSES = frozenset(
    ("expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit", "offset")
)


class NotStructured(Exception):
    """SQL that is not written as a structured query; the text is the reason."""


@dataclass(frozen=True)
class SourceSelect:
    """One SELECT: its tables by alias, the pairs of fields that its joins make equal, and what may be NULL."""

    tree: exp.Select
    source: DataSource
    tables: dict[str, str]
    nullable: frozenset[str]  # captions
    joins: tuple[tuple[FieldMetadata, FieldMetadata], ...] = ()
    dialect: str = "sqlite"

    @property
    def like_ignores_case(self) -> bool:
        """Does LIKE take upper and lower case as one, as a MATCH filter does and a formula does not?"""
        return self.dialect in ("sqlite", "mysql")

    def field(self, column: exp.Column) -> FieldMetadata:
        """The field that a column of the SQL is. Raises NotStructured."""
        if (field := self.field_or_none(column)) is None:
            raise NotStructured("a name that is no column")
        return field

    def field_or_none(self, column: exp.Column) -> FieldMetadata | None:
        """The field that a column of the SQL is; None for an alias, a text in double quotes, and what is unknown."""
        alias = column.table.lower()
        tables = [self.tables[alias]] if alias in self.tables else [] if alias else [*self.tables.values()]
        for field in self.source.fields:
            if field.column.lower() == column.name.lower() and self.source.table_of(field) in tables:
                return field
        return None

    @property
    def counted(self) -> FieldMetadata:
        """The field whose COUNT is COUNT(*): the key of the table whose rows the joins keep once each."""
        ones = {table for pair in self._sides() for table in pair}
        logical = [(name, _logical_table(self.source, name)) for name in self.tables.values()]
        rows = [table for name, table in logical if (table.logicalTableId if table else name) not in ones]
        if len(rows) != 1:
            raise NotStructured("COUNT(*) over a join that is not by a key")
        return self._key_field(rows[0])

    def _key_field(self, table: LogicalTable | None) -> FieldMetadata:
        """A field of the primary key, one that is no foreign key where there is one."""
        names = table.key if table else ()
        keys = [field for name in names if (field := self.source.field_named(name)) is not None]
        if not keys:
            raise NotStructured("COUNT(*) of a table without a key")
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


def read_select(
    sql: str, source: DataSource, dialect: str = "sqlite", nullable: frozenset[str] | None = None
) -> SourceSelect:
    """The parts of a statement over a data source. Raises NotStructured.

    nullable: the captions of fields that may be NULL; without it, those of all fields that are not part of a key.
    """
    tree = _one_select(sql, dialect)
    known = {name.lower(): name for field in source.fields if (name := source.table_of(field))}
    tables = {}
    named = list(tree.find_all(exp.Table))
    for table in named:
        if table.name.lower() not in known:
            raise NotStructured("a table that is not in the data source")
        tables[table.alias_or_name.lower()] = known[table.name.lower()]
    if len(set(tables.values())) < len(named):
        raise NotStructured("self join")
    joins = tree.args.get("joins") or ()
    if any(join.side or join.kind in ("SEMI", "ANTI") for join in joins):
        raise NotStructured("outer join")
    if len(named) != 1 + len(joins):
        raise NotStructured("a join in brackets" if named else "no table")
    nulls = _not_keys(source) if nullable is None else nullable
    select = SourceSelect(tree, source, tables, nulls, dialect=dialect)
    _read_names(select, texts_in_double_quotes=dialect == "sqlite")
    return replace(select, joins=tuple(_equal_fields(select)))


def nullable_captions(source: DataSource, schema: Schema) -> frozenset[str]:
    """The captions of the fields whose columns may hold NULL."""
    columns = {(table.name.lower(), column.name.lower()): column for table in schema.tables for column in table.columns}
    there = ((field, columns.get((source.table_of(field).lower(), field.column.lower()))) for field in source.fields)
    return frozenset(
        field.fieldCaption for field, column in there if column and not (column.not_null or column.primary_key)
    )


def _not_keys(source: DataSource) -> frozenset[str]:
    keys = {name for table in source.logicalTables for name in table.key}
    return frozenset(field.fieldCaption for field in source.fields if field.fieldName not in keys)


def _one_select(sql: str, dialect: str) -> exp.Select:
    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        raise NotStructured("not SQL") from None
    for kind, reason in _WHOLE:
        if tree.find(kind) is not None:
            raise NotStructured(reason)
    if not isinstance(tree, exp.Select) or len(list(tree.find_all(exp.Select))) > 1:
        raise NotStructured("subquery" if tree.find(exp.Select) else "no SELECT")
    if sum(1 for _ in tree.walk()) > MOST_NODES:
        raise NotStructured("too long")
    further = [name for name, part in tree.args.items() if part and name not in _CLAUSES]
    distinct = tree.args.get("distinct")
    further += ["distinct on"] if distinct is not None and distinct.args.get("on") else []
    if further:
        raise NotStructured(f"clause {further[0].rstrip('_').upper()}")
    _outside(tree)
    return tree


def _outside(tree: exp.Select) -> None:
    """The NOT of ``x NOT LIKE y``, which sqlglot notes inside the condition, around it."""
    for node in reversed(list(tree.find_all(exp.Like, exp.ILike, exp.Is))):  # the inner ones first
        if node.args.get("negate"):
            node.set("negate", None)
            node.replace(exp.Not(this=node.copy()))


def _logical_table(source: DataSource, name: str) -> LogicalTable | None:
    return next((table for table in source.logicalTables if (table.table or table.caption) == name), None)


def _read_names(select: SourceSelect, *, texts_in_double_quotes: bool) -> None:
    """Replaces what is no column in the tree: aliases in WHERE and HAVING, and texts."""
    asked = {item.alias.lower(): item.unalias() for item in select.tree.expressions if item.alias}
    for column in list(select.tree.find_all(exp.Column)):
        if column.table or select.field_or_none(column) is not None:
            continue
        if column.name.lower() in asked:
            if column.find_ancestor(exp.Where, exp.Having):
                meant = asked[column.name.lower()]
                column.replace(exp.Paren(this=meant.copy()) if isinstance(meant, exp.Binary) else meant.copy())
        elif texts_in_double_quotes and column.this.args.get("quoted"):
            column.replace(exp.Literal.string(column.name))


def _equal_fields(select: SourceSelect) -> Iterator[tuple[FieldMetadata, FieldMetadata]]:
    for join in select.tree.args.get("joins") or ():
        on = join.args.get("on")
        for part in on.flatten() if isinstance(on, exp.And) else [on]:
            sides = (part.left, part.right) if isinstance(part, exp.EQ) else ()
            columns = [select.field(side) for side in sides if isinstance(side, exp.Column)]
            if len(columns) != 2:
                raise NotStructured("join by something else than equal columns")
            yield columns[0], columns[1]
