"""What a schema says of its tables: the keys between them, and the columns that their rows are called by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nl2sql.agents.context.linking import stem
from nl2sql.databases.schema import Schema, Table
from nl2sql.sql.words import words

_LABELS = ("name", "title", "label")


def links(table: Table, schema: Schema) -> Iterator[tuple[list[tuple[str, str]], Table]]:
    """(pairs of columns, other table) of each key between ``table`` and another: its own first, then those to it.

    Where no keys are declared, a column named as another table's one-column primary key counts as one.
    """
    declared = any(other.foreign_keys for other in schema.tables)
    for key in table.foreign_keys:
        if target := schema.table(key.ref_table):
            yield list(zip(key.columns, key.ref_columns, strict=True)), target
    for other in schema.tables:
        for key in other.foreign_keys:
            if key.ref_table.lower() == table.name.lower() and other.name != table.name:
                yield list(zip(key.ref_columns, key.columns, strict=True)), other
        if not declared and other.name != table.name:
            shared = [c.name for t in (table, other) for c in t.columns if c.primary_key]
            shared = [name for name in shared if column_of(table, name) and column_of(other, name)]
            if shared and shared[0].lower() not in ("id", "name", "code"):
                yield [(shared[0], shared[0])], other


def is_one(source: Table, pairs: Sequence[tuple[str, str]], other: Table) -> bool:
    """Does at most one row of ``other`` belong to a row of ``source``: by its whole primary key, or by a key to it?"""
    theirs = {column.lower() for _, column in pairs}
    primary = {column.lower() for column in key_columns(other)}
    refers = any(
        key.ref_table.lower() == other.name.lower() and theirs == {column.lower() for column in key.ref_columns}
        for key in source.foreign_keys
    )
    return primary <= theirs if primary & theirs else refers


def refers(table: Table, column: str) -> bool:
    """Is it a column of a key to another row ("manager_id")?"""
    return any(column in key.columns for key in table.foreign_keys)


def column_of(table: Table, name: str) -> bool:
    return any(column.name.lower() == name.lower() for column in table.columns)


def label_column(table: Table) -> str | None:
    """The column that a row of ``table`` is called by: its name, title or label; None where it has none."""
    names = {column.name.lower(): column.name for column in table.columns}
    exact = next((names[label] for label in _LABELS if label in names), None)
    own = {stem(word) for word in words(table.name)}
    plain = (c for c in table.columns if not (c.primary_key or refers(table, c.name)))
    same = next((c.name for c in plain if {stem(word) for word in words(c.name)} == own), None)  # cuisines.cuisine
    compound = (c.name for c in table.columns if set(words(c.name)) & set(_LABELS))
    of_table = (name for name in compound if {stem(word) for word in words(name)} & own)
    ends = next((c.name for c in table.columns if _is_label(c.name)), None)
    return exact or next(of_table, None) or same or ends or names.get("forename") or names.get("surname")


def _is_label(name: str) -> bool:
    parts = words(name)
    return parts[-1:] != [] and parts[-1] in _LABELS


def key_columns(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.primary_key]
