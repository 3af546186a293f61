"""Bounded looks at the cells of columns, which decide how a follow-up is written: "with a scholarship" as ``= 'Y'``.

Each look is one query of at most a second. Where it fails, the cells are taken as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from nl2sql.interfaces import Database
from nl2sql.sessions.naming import Named

MOST_VALUES = 12  # distinct cells of a column that are looked at


def texts_of(named: Named, database: Database) -> list[str]:
    """The different texts of a column, some of them."""
    query = exp.select(_column(named)).distinct().from_(exp.table_(named.table, quoted=True)).limit(MOST_VALUES)
    return [value for (value,) in _rows(query, database) if isinstance(value, str)]


def cell_called(text: str, named: Named, database: Database) -> str | None:
    """The cell of a column that is ``text`` but for casing, among those that are looked at."""
    return next((cell for cell in texts_of(named, database) if cell.casefold() == text.casefold()), None)


def has_nulls(named: Named, database: Database) -> bool:
    return _holds(named, _column(named).is_(exp.null()), database)


def yes_or_no(named: Named, database: Database) -> tuple[str, str] | None:
    """The cells for yes and for no, where the column holds nothing else."""
    values = {value.casefold(): value for value in texts_of(named, database)}
    for yes, no in (("y", "n"), ("yes", "no"), ("t", "f"), ("true", "false")):
        if values and values.keys() <= {yes, no}:
            known = next(iter(values.values()))
            return (yes.upper(), no.upper()) if known.isupper() else (values.get(yes, yes), values.get(no, no))
    return None


def _holds(named: Named, condition: exp.Expr, database: Database) -> bool:
    """Has any row such a cell?"""
    query = exp.select("1").from_(exp.table_(named.table, quoted=True)).where(condition).limit(1)
    return bool(_rows(query, database))


def _column(named: Named) -> exp.Column:
    return exp.column(named.column, quoted=True)


def _rows(query: exp.Query, database: Database, most: int = MOST_VALUES) -> Sequence[tuple[Any, ...]]:
    result = database.run(query.sql(dialect=database.dialect), timeout_s=1.0, max_rows=most)
    return result.rows if result.success else ()
