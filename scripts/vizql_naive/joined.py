"""The rows of several tables side by side: those of the table that refers, each with what it refers to.

>>> from vizql_naive.tables import generated, superstore
>>> rows = generated(0)
>>> frames = {name: pd.DataFrame(table, dtype=object) for name, table in rows.items()}
>>> len(joined(frozenset({"suppliers", "people"}), superstore(), frames))  # by way of the orders
300

Not covered: data sources where two ways lead from a table to another.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from nl2sql.vizql.source import DataSource

Frames = dict[str, pd.DataFrame]


def joined(needed: frozenset[str], source: DataSource, frames: Frames) -> list[dict[str, Any]]:
    """The rows as ``{(table, column): value}``; ``(table, "")`` says that the table has a row here."""
    arrows = _arrows(source)
    starts = [name for name in frames if needed <= _reached(name, arrows)]
    first = next((name for name in starts if name in needed), starts[0])
    left = _named(first, frames)
    wanted = {name for name in _reached(first, arrows) if needed & _reached(name, arrows)}
    waiting = [first]
    while waiting:
        here = waiting.pop()
        for end, pairs in arrows[here].items():
            if end in wanted:
                keys = [(here, a) for a, _ in pairs], [(end, b) for _, b in pairs]
                right = _named(end, frames)
                left = left.merge(right, how="left", left_on=keys[0], right_on=keys[1], validate="many_to_one")
                waiting.append(end)
    plain = left.astype(object).where(left.notna(), None)
    return [dict(zip(plain.columns, row, strict=True)) for row in plain.itertuples(index=False, name=None)]


def _named(table: str, frames: Frames) -> pd.DataFrame:
    frame = frames[table].assign(**{"": True}).astype(object)
    frame.columns = pd.Index([(table, column) for column in frame.columns], tupleize_cols=False)
    return frame


def _arrows(source: DataSource) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """From each table to those whose key its columns hold: the pairs of columns."""
    column = {field.fieldName: field.column for field in source.fields}
    keys = {table.logicalTableId: {column[name] for name in table.key} for table in source.logicalTables}
    arrows: dict[str, dict[str, list[tuple[str, str]]]] = {name: {} for name in keys}
    for relation in source.logicalTableRelationships:
        a, b = relation.fromLogicalTable.logicalTableId, relation.toLogicalTable.logicalTableId
        pairs = [(column[one], column[other]) for one, other in relation.field_pairs()]
        if {other for _, other in pairs} == keys[b]:
            arrows[a][b] = pairs
        if {one for one, _ in pairs} == keys[a]:
            arrows[b][a] = [(other, one) for one, other in pairs]
    return arrows


def _reached(start: str, arrows: dict[str, dict[str, Any]]) -> frozenset[str]:
    return frozenset({start}).union(*(_reached(end, arrows) for end in arrows[start]))
