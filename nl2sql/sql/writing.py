"""A tree written as SQL again, with the types of its casts as they were.

>>> from nl2sql.sql.parse import parse_bounded
>>> written(parse_bounded("SELECT CAST(price AS DECIMAL) / 2 FROM t"), "sqlite")
'SELECT CAST(price AS DECIMAL) / 2 FROM t'

For SQLite sqlglot writes DECIMAL as REAL, BOOLEAN as INTEGER, and ``CAST(d AS DATE)`` as ``DATE(d)``. SQLite takes all
three types for NUMERIC: 5 / 2 would become 2.5 instead of 2, and 2024 '2024-05-01'. Another dialect's SQL is best
translated by sqlglot's own rules. Not covered: types that sqlglot reads as one (STRING as TEXT, BYTE as TINYINT).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

KEPT = frozenset("DECIMAL BOOLEAN DATE DATETIME TIME TIMESTAMP TIMESTAMPNTZ BINARY".split())  # noqa: SIM905


def written(tree: Expr, dialect: str, *, strict: bool = False) -> str:
    """The SQL of a tree that was read in the same ``dialect``; the tree stays as it is.

    strict: raises sqlglot's UnsupportedError for what the dialect has no words for.
    """
    from sqlglot import ErrorLevel

    copy = tree.copy()
    keep_types(copy, dialect)
    level = ErrorLevel.RAISE if strict else ErrorLevel.WARN
    return str(copy.sql(dialect=dialect, unsupported_level=level, copy=False))


def keep_types(tree: Expr, dialect: str) -> None:
    """Have sqlglot write the types of a tree's casts as they were read. Changes the tree, for writing only."""
    from sqlglot import expressions as exp

    if dialect != "sqlite":
        return
    for cast in tree.find_all(exp.Cast):
        kind = cast.args["to"]
        if isinstance(kind, exp.DataType) and getattr(kind.this, "name", "") in KEPT:
            cast.set("to", exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind.sql()))
