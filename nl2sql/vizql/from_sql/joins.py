"""The inner joins of a SELECT as filters: a structured query has no joins, only tables that it names.

A data source joins the tables that a query names, and keeps the rows of the table that refers to the others. So
``SELECT DISTINCT name FROM customers JOIN orders ...`` says more than ``Name``: only customers with an order. The
query says it by a filter on orders, ``customer_id`` ONLY_NON_NULL. SQL also leaves out rows that refer to nothing.

>>> _classes([("a", "b"), ("c", "d"), ("b", "e")]) == {frozenset("abe"), frozenset("cd")}
True

Not covered: a row that refers to what is not there, where the database does not hold its foreign keys; joins by other
columns than those of the data source's relationships, which are no structured query.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nl2sql.vizql.formula_tree import NotExecutable, references
from nl2sql.vizql.from_sql.conditions import Json, not_null
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.scope import leading, ways
from nl2sql.vizql.source import DataSource, FieldMetadata


class _Reference(NamedTuple):
    """One table refers to another by pairs of equal fields (their ``fieldName``)."""

    table: str
    other: str
    pairs: frozenset[tuple[str, str]]


def naming_filters(select: SourceSelect, asked: Iterable[Json]) -> list[Json]:
    """The filters that name each table which refers to another and which would not be read without them, or be read
    only where there is a row of it.

    asked: the query's fields, and the fields of its filters. Raises NotStructured for a join that is none of the data
    source's: it would join in another way, or not at all.
    """
    followed = _followed(select)
    if not followed:
        return []
    named = _named(asked, select.source)
    read = named | _Way.to(named, select.source).tables
    made: dict[str, list[FieldMetadata]] = {}
    for reference in followed:
        for table, fields in _referring(reference, select.source):
            if table not in read:
                made.setdefault(table, fields)
    way = _Way.to(named | set(made), select.source)
    for reference in followed:
        for table, fields in _referring(reference, select.source):
            other = reference.other if table == reference.table else reference.table
            if (other, table) in way.pairs:  # one to one, read against the reference
                made.setdefault(table, fields)
    _same_way(select, followed, named | set(made))
    return [not_null(field) for fields in made.values() for field in _telling(fields, select)]


def _telling(fields: list[FieldMetadata], select: SourceSelect) -> list[FieldMetadata]:
    """Of the fields that a table refers by, those that say whether it does."""
    return [field for field in fields if field.fieldCaption in select.nullable] or fields[:1]


def nothing_referred_to(select: SourceSelect) -> list[Json]:
    """The filters that leave out rows with NULL in a column that the SQL joins by."""
    fields = {field.fieldCaption: field for pair in select.joins for field in pair}
    return [not_null(field) for caption, field in fields.items() if caption in select.nullable]


# ------------------------------------------------------------------------------------------------------- tables


def _named(asked: Iterable[Json], source: DataSource) -> frozenset[str]:
    """The logical tables that these parts of a query name."""
    captions = [
        name
        for part in asked
        for name in (_in_formula(part["calculation"]) if "calculation" in part else [part["fieldCaption"]])
    ]
    return frozenset(field.logicalTableId for name in captions if (field := source.field(name)) is not None)


def _in_formula(formula: str) -> list[str]:
    return [name for name, _ in references(formula)]


class _Way(NamedTuple):
    """How the data source joins tables: the first one, and (from, to) of each step; nothing where it does not."""

    first: str
    pairs: frozenset[tuple[str, str]]

    @classmethod
    def to(cls, named: frozenset[str], source: DataSource) -> _Way:
        """The way to the tables that a query names."""
        try:
            first, steps = leading(sorted(named), source)
        except NotExecutable:
            return cls("", frozenset())
        return cls(first, frozenset((start, end) for start, end, _ in steps))

    @property
    def tables(self) -> frozenset[str]:
        return frozenset({self.first, *(end for _, end in self.pairs)}) if self.first else frozenset()


def _same_way(select: SourceSelect, followed: list[_Reference], named: frozenset[str]) -> None:
    """Raises NotStructured where the data source joins what is ``named`` by other tables than the SQL does.

    A table that is only referred to and leads to no other one of the SQL's may be left out of it.
    """
    way = _Way.to(named, select.source)
    if not way.first:
        return  # it is not executable, and the compiler says why
    tables = frozenset(field.logicalTableId for pair in select.joins for field in pair)
    needed = tables
    for table in sorted(tables - named - way.tables):
        needed = needed - {table} if _connected(needed - {table}, followed) else needed
    try:
        steps = ways(way.first, sorted(needed), select.source)
    except NotExecutable:
        steps = None
    if steps is None:
        raise NotStructured("tables that the data source joins in another way")


def _connected(tables: frozenset[str], followed: list[_Reference]) -> bool:
    pairs = [(one.table, one.other) for one in followed if {one.table, one.other} <= tables]
    return len(tables) == 1 or any(tables <= together for together in _classes(pairs))


# --------------------------------------------------------------------------------------------------- references


def _followed(select: SourceSelect) -> list[_Reference]:
    """The references that the SQL joins by. Raises NotStructured where it joins by more, or by others."""
    equal = _classes((a.fieldName, b.fieldName) for a, b in select.joins)
    tables = {field.logicalTableId for pair in select.joins for field in pair}
    followed = []
    for reference in _references(select.source) if equal else ():
        alike = all(any({*pair} <= together for together in equal) for pair in reference.pairs)
        if alike and {reference.table, reference.other} <= tables:
            followed.append(reference)
    if _classes(pair for reference in followed for pair in reference.pairs) != equal:
        raise NotStructured("a join that is no relationship of the data source")
    return followed


def _classes(pairs: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    """The sets of names that pairs of equal ones make equal."""
    classes: set[frozenset[str]] = set()
    for pair in pairs:
        touched = {names for names in classes if names & {*pair}}
        classes = (classes - touched) | {frozenset(pair).union(*touched)}
    return classes


def _references(source: DataSource) -> list[_Reference]:
    """The relationships, and those past one table: a line of an order of a customer refers to the customer, too,
    where the order's own reference is part of what the line refers by."""
    direct = []
    for relation in source.logicalTableRelationships:
        ends = relation.fromLogicalTable.logicalTableId, relation.toLogicalTable.logicalTableId
        if pairs := frozenset(relation.field_pairs()):
            direct.append(_Reference(*ends, pairs))
    past = []
    for one in direct:
        through = {b: a for a, b in one.pairs}
        for then in direct:
            if one.other == then.table and {a for a, _ in then.pairs} <= set(through):
                past.append(_Reference(one.table, then.other, frozenset((through[a], b) for a, b in then.pairs)))
    return direct + past


def _referring(reference: _Reference, source: DataSource) -> list[tuple[str, list[FieldMetadata]]]:
    """The table that refers, with the fields it refers by; both, where neither is referred to by its whole key."""
    sides = [(reference.table, sorted(a for a, _ in reference.pairs))]
    sides.insert(0, (reference.other, sorted(b for _, b in reference.pairs)))
    by_key = [table for table, names in sides if _is_key(names, table, source)][:1]
    named = [(table, [source.field_named(name) for name in names]) for table, names in sides if table not in by_key]
    return [(table, [field for field in fields if field is not None]) for table, fields in named]


def _is_key(names: list[str], table: str, source: DataSource) -> bool:
    known = source.table(table)
    return known is not None and bool(known.key) and {*known.key} <= {*names}
