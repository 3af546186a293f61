"""A SELECT as one over the fields of a data source, or why it is none.

>>> read_select("SELECT name FROM a UNION SELECT name FROM b", None)
Traceback (most recent call last):
    ...
nl2sql.vizql.from_sql.reading.NotStructured: set operation

A name means what it means to SQLite: a column, else in WHERE and HAVING the alias of what is asked for, else, in double
quotes, a text.

A structured query has no joins, only tables that it names: a data source joins these, and keeps the rows of the table
that refers to the others. So ``SELECT DISTINCT name FROM customers JOIN orders ...`` says more than ``Name``: only
customers with an order. The query says it by a filter on orders, ``customer_id`` ONLY_NON_NULL. SQL also leaves out
rows that refer to nothing.

Not covered: ``*``; a row that refers to what is not there, where the database does not hold its foreign keys; joins by
other columns than those of the data source's relationships, which are no structured query.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.sql.parse import parse_bounded
from nl2sql.vizql.formula_tree import NotExecutable, references
from nl2sql.vizql.scope import leading, ways
from nl2sql.vizql.source import DataSource, FieldMetadata, together

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
        """The field whose COUNT is COUNT(*): of the key of the table whose rows the joins keep once each; one that is
        no foreign key where there is one."""
        ones, logical = set(self._ones()), {table.name: table for table in reversed(self.source.logicalTables)}
        rows = [logical.get(name) for name in self.tables.values()]
        rows = [table for table in rows if table is None or table.logicalTableId not in ones]
        if len(rows) != 1:
            raise NotStructured("COUNT(*) over a join that is not by a key")
        names = rows[0].key if rows[0] else ()
        keys = [field for name in names if (field := self.source.field_named(name)) is not None]
        if not keys:
            raise NotStructured("COUNT(*) of a table without a key")
        refers = {a for relation in self.source.logicalTableRelationships for a, _ in relation.field_pairs()}
        return next((field for field in keys if field.fieldName not in refers), keys[0])

    def _ones(self) -> Iterator[str]:
        """Of each two tables that are joined, the one of which a row is joined once: by its whole key."""
        for tables in sorted({tuple(sorted((a.logicalTableId, b.logicalTableId))) for a, b in self.joins}):
            between = [pair for pair in self.joins if {field.logicalTableId for field in pair} == {*tables}]
            fields = [field for pair in between for field in pair]
            sides = [(table, [f.fieldName for f in fields if f.logicalTableId == table]) for table in tables]
            yield from [table for table, names in sides if is_key(names, table, self.source)][-1:]


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


def is_key(names: Collection[str], table: str, source: DataSource) -> bool:
    """Is the whole key of a logical table among these ``fieldName``?"""
    known = source.table(table)
    return known is not None and bool(known.key) and {*known.key} <= {*names}


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


# --------------------------------------------------------------------------------------------- joins


class _Reference(NamedTuple):
    """One table refers to another by pairs of equal fields (their ``fieldName``)."""

    table: str
    other: str
    pairs: frozenset[tuple[str, str]]


def naming_fields(select: SourceSelect, asked: Iterable[dict[str, Any]]) -> list[FieldMetadata]:
    """The fields of which a filter that leaves out NULL names each table which refers to another and which would not
    be read without it, or be read only where there is a row of it.

    asked: the query's fields, and the fields of its filters. Raises NotStructured for a join that is none of the data
    source's: it would join in another way, or not at all.
    """
    source, followed = select.source, _followed(select)
    if not followed:
        return []
    captions = [n for part in asked for n in (_in_formula(part) if "calculation" in part else [part["fieldCaption"]])]
    named = frozenset(field.logicalTableId for name in captions if (field := source.field(name)) is not None)
    first, steps = _way(named, source)
    read = named | ({first, *(end for _, end in steps)} if first else set())
    made: dict[str, list[FieldMetadata]] = {}
    referring = [(one, table, fields) for one in followed for table, fields in _referring(one, source)]
    for _, table, fields in referring:
        if table not in read:
            made.setdefault(table, fields)
    _, steps = _way(named | set(made), source)
    for reference, table, fields in referring:
        other = reference.other if table == reference.table else reference.table
        if (other, table) in steps:  # one to one, read against the reference
            made.setdefault(table, fields)
    _check_same_way(select, followed, named | set(made))
    of_nulls = {table: [f for f in fields if f.fieldCaption in select.nullable] for table, fields in made.items()}
    return [field for table, fields in made.items() for field in of_nulls[table] or fields[:1]]


def _in_formula(part: dict[str, Any]) -> list[str]:
    return [name for name, _ in references(part["calculation"])]


def _way(named: frozenset[str], source: DataSource) -> tuple[str, frozenset[tuple[str, str]]]:
    """How the data source joins tables: the first one, and (from, to) of each step; nothing where it does not."""
    try:
        first, steps = leading(sorted(named), source)
    except NotExecutable:
        return "", frozenset()
    return first, frozenset((start, end) for start, end, _ in steps)


def _check_same_way(select: SourceSelect, followed: list[_Reference], named: frozenset[str]) -> None:
    """Raises NotStructured where the data source joins what is ``named`` by other tables than the SQL does.

    A table that is only referred to and leads to no other one of the SQL's may be left out of it.
    """
    first, steps = _way(named, select.source)
    if not first:
        return  # it is not executable, and the compiler says why
    needed = frozenset(field.logicalTableId for pair in select.joins for field in pair)
    for table in sorted(needed - named - {first, *(end for _, end in steps)}):
        rest = needed - {table}
        pairs = [(one.table, one.other) for one in followed if {one.table, one.other} <= rest]
        if len(rest) == 1 or any(rest <= tables for tables in together(pairs)):
            needed = rest
    try:
        reached = ways(first, sorted(needed), select.source)
    except NotExecutable:
        reached = None
    if reached is None:
        raise NotStructured("tables that the data source joins in another way")


def _followed(select: SourceSelect) -> list[_Reference]:
    """The references that the SQL joins by. Raises NotStructured where it joins by more, or by others."""
    equal = together((a.fieldName, b.fieldName) for a, b in select.joins)
    tables = {field.logicalTableId for pair in select.joins for field in pair}
    followed = [
        reference
        for reference in (_references(select.source) if equal else ())
        if {reference.table, reference.other} <= tables
        and all(any({*pair} <= names for names in equal) for pair in reference.pairs)
    ]
    if together(pair for reference in followed for pair in reference.pairs) != equal:
        raise NotStructured("a join that is no relationship of the data source")
    return followed


def _references(source: DataSource) -> list[_Reference]:
    """The relationships, and those past one table: a line of an order of a customer refers to the customer, too,
    where the order's own reference is part of what the line refers by."""
    relations = [(relation.ends, frozenset(relation.field_pairs())) for relation in source.logicalTableRelationships]
    direct = [_Reference(*ends, pairs) for ends, pairs in relations if pairs]
    past = []
    for one in direct:
        through = {b: a for a, b in one.pairs}
        for then in direct:
            if one.other == then.table and {a for a, _ in then.pairs} <= set(through):
                past.append(_Reference(one.table, then.other, frozenset((through[a], b) for a, b in then.pairs)))
    return direct + past


def _referring(reference: _Reference, source: DataSource) -> list[tuple[str, list[FieldMetadata]]]:
    """The table that refers, with the fields it refers by; both, where neither is referred to by its whole key."""
    sides = [
        (reference.other, sorted(b for _, b in reference.pairs)),
        (reference.table, sorted(a for a, _ in reference.pairs)),
    ]
    by_key = [table for table, names in sides if is_key(names, table, source)][:1]
    named = [(table, [source.field_named(name) for name in names]) for table, names in sides if table not in by_key]
    return [(table, [field for field in fields if field is not None]) for table, fields in named]
