"""What a schema says of its tables: keys between them, the columns that name a row, and joins to another table."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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


# --------------------------------------------------------------------------- joins to another table
# Along keys, by as few tables as can be.

FARTHEST = 3  # joins to a column's table
FAR_TURN = 1.5  # joins that a turn at a table which both refer to counts for


class Step(NamedTuple):
    """One join: from the table under ``alias`` by pairs of columns to ``table``.

    many: several rows of ``table`` may belong to one row of the other.
    """

    alias: str
    pairs: list[tuple[str, str]]
    table: str
    many: bool


def path_to(table: str, sources: Mapping[str, Table], schema: Schema) -> list[Step] | None:
    """The joins to ``table``, by a table that links both rather than by a third that both refer to ("the courses of a
    teacher": those that he teaches, not those of his department); None where it is not near.
    """
    waiting: list[tuple[float, int, str, Table, list[Step]]] = []
    for alias, source in sources.items():
        waiting.append((0, len(waiting), alias, source, []))
    order = itertools.count(len(waiting))
    seen: set[str] = set()
    while waiting:
        cost, _, alias, source, path = heapq.heappop(waiting)
        if source.name.lower() == table.lower():
            return path
        if source.name.lower() in seen or len(path) >= FARTHEST:
            continue
        seen.add(source.name.lower())
        for link, target in links(source, schema):
            step = Step(alias, link, target.name, not is_one(source, link, target))
            turn = FAR_TURN if path and step.many and not path[-1].many else 0
            new = (cost + 1 + turn, next(order), target.name.lower(), target, [*path, step])
            heapq.heappush(waiting, new)
    return None
