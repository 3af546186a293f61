"""Tables of an engine as plain JSON, from the rows of its catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def described(
    columns: Sequence[Sequence[Any]], primary: dict[str, list[str]], foreign: list[list[Any]], views: set[str]
) -> list[dict[str, Any]]:
    """Tables as JSON from rows (table, column, type, not null), in the order in which they come."""
    tables: dict[str, dict[str, Any]] = {}
    for table, column, kind, not_null in columns:
        entry = tables.setdefault(table, {"name": table, "columns": [], "foreign_keys": [], "view": table in views})
        entry["columns"].append([column, kind, column in primary.get(table, ()), bool(not_null)])
    for table, own, other, other_columns in foreign:
        if table in tables and other in tables:  # which may be one that this user does not see
            tables[table]["foreign_keys"].append([own, other, other_columns])
    return list(tables.values())
