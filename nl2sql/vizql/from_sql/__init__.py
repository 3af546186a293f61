"""SQL as structured queries: what a SELECT asks, written over the fields of a data source.

>>> from nl2sql.vizql.source import DataSource
>>> table = {"logicalTableId": "sales", "caption": "Sales", "table": "sales"}
>>> fields = [{"fieldCaption": "Region", "fieldName": "region", "logicalTableId": "sales"}]
>>> source = DataSource.model_validate({"fields": fields, "logicalTables": [table]})
>>> structured("SELECT DISTINCT region FROM sales WHERE region <> 'West'", source).candidates[0]["fields"]
[{'fieldCaption': 'Region'}]
>>> structured("SELECT 1 UNION SELECT 2", source)
Translation(candidates=(), reason='set operation', groups='')

A candidate says in its language what the SQL says; its rows may differ where the data source joins or groups in another
way (``documents`` in ``writing`` names them; ``Translation.groups`` asks). Who needs the same rows compares them
(``scripts/derive_vizql.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nl2sql.sql.parse import SLIPS
from nl2sql.vizql.from_sql.grouping import groups_alike
from nl2sql.vizql.from_sql.reading import NotStructured, nullable_captions, read_select
from nl2sql.vizql.from_sql.writing import documents
from nl2sql.vizql.source import DataSource

__all__ = ["Translation", "nullable_captions", "structured"]


@dataclass(frozen=True)
class Translation:
    """The structured queries for a SELECT, the plainest first, and why there is none, or no further one.

    groups: SQL of one row, whose numbers are equal where the queries have the SELECT's groups; "" where they have.
    """

    candidates: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    groups: str = ""


def structured(
    sql: str, source: DataSource, dialect: str = "sqlite", nullable: frozenset[str] | None = None
) -> Translation:
    """The structured queries for any text that is meant as SQL. Raises nothing.

    nullable: the captions of the fields that may be NULL (``nullable_captions``); without it, those of all that are no
    keys. It decides what NOT IN and an inner join leave out. Not covered: what ``reading`` and ``writing`` name.
    """
    candidates: list[dict[str, Any]] = []
    groups = reason = ""
    try:
        select = read_select(sql, source, dialect, nullable)
        groups = groups_alike(select)
        for document in documents(select):
            candidates.append(document)
    except NotStructured as left_out:
        reason = str(left_out)
    except (*SLIPS, ArithmeticError) as slip:  # of sqlglot, on a tree that no sound text has
        reason = f"not read: {type(slip).__name__}"
    return Translation(tuple(candidates), reason, groups if candidates else "")
