"""``explain_analyze``: is a statement valid on a database, and if not, what to do about it. Nothing is executed.

``explain_analyze("SELECT nam FROM t", database)`` gives ``valid=False``, ``error="no such column: nam"`` and
guidance.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.guidance import ExplainAnalyzeResponse

if TYPE_CHECKING:
    from nl2sql.interfaces import Database


def explain_analyze(
    sql: str, database: Database, *, analyzer: ErrorAnalyzer | None = None, timeout_s: float = 5.0, exclude: str = ""
) -> ExplainAnalyzeResponse:
    """Compile ``sql`` with the engine's EXPLAIN, in its sandbox: ``{valid, explain, error, repair_guidance}``.

    On SQLite, which reads a mistyped name in double quotes as a text, the names are checked as well.
    Without an ``analyzer`` the packaged patterns give the guidance. Not covered: errors that only values cause.
    """
    compiled = database.explain(sql, timeout_s=timeout_s)
    error = compiled.error or compiled.error_kind or "the statement failed"
    if compiled.success:
        error = _mistaken_name(sql, database) if database.dialect == "sqlite" else ""
    if not error:
        plan = [dict(zip(compiled.columns, row, strict=True)) for row in compiled.rows]
        return ExplainAnalyzeResponse(valid=True, explain={"plan": plan})
    mine = analyzer or ErrorAnalyzer(database.dialect, version=engine_version(database))
    guidance = mine.analyze_error(error, sql, database.schema(), exclude=exclude)
    return ExplainAnalyzeResponse(valid=False, error=error, repair_guidance=guidance)


def engine_refusal(sql: str, database: Database) -> str:
    """The engine's own words against ``sql``; "" where it compiles it, or says nothing."""
    compiled = database.explain(sql)
    return "" if compiled.success else compiled.error or ""


def engine_version(database: Database) -> str:
    """The version of a database's engine; "" where it is not known."""
    return sqlite3.sqlite_version if database.dialect == "sqlite" else str(getattr(database, "version", ""))


def _mistaken_name(sql: str, database: Database) -> str:
    """SQLite's own message for a name in double quotes that is no column, or ""."""
    from nl2sql.databases.validation import validate_sql

    kind, _, name = str(validate_sql(sql, database.schema(), database)["reason"]).partition(":")
    return f"no such column: {name}" if kind == "unknown_column" else ""
