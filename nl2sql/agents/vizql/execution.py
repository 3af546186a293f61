"""A valid query executed: compiled to SQL over the database, or as it is by a database that takes such queries.

A database that takes structured queries says so by its dialect ``vizql`` (the VizQL Data Service does); its errors
tell by their code whether another query may mend them (``vizql.reactions``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nl2sql.agents.vizql.state import Context
from nl2sql.interfaces import RunResult
from nl2sql.vizql.query import DIALECT
from nl2sql.vizql.querying import statement
from nl2sql.vizql.reactions import reaction


@dataclass(frozen=True)
class Ran:
    """The statement that was executed, its result, what is wrong with that, and whether another query may help."""

    sql: str
    result: RunResult
    errors: list[str]
    refinable: bool = True


def execute(here: Context, draft: dict[str, Any]) -> Ran:
    """Execute a valid draft within ``execution.*``."""
    task = here.task
    dialect = task.resources.database.dialect
    sql, not_executable = statement(draft, here.source, dialect, task.config.vizql)
    if not_executable:
        reasons = [f"not executable: {reason}" for reason in not_executable]
        return Ran("", RunResult(False, error="; ".join(reasons), error_kind="not_executable"), reasons)
    result = task.result_of(sql)
    mendable = dialect != DIALECT or reaction(result.error_kind) == "refine"  # else the server's, or of the sign-in
    return Ran(sql, result, errors_of(result), result.success or mendable)


def errors_of(result: RunResult) -> list[str]:
    """The error of a result that failed; of one that succeeded, what is odd about it."""
    if not result.success:
        return [f"The query failed: {result.error}"]
    if not result.rows:
        return ["The query runs and gives no rows: a filter may hold a wrong value or field"]
    if all(value is None for row in result.rows for value in row):
        return ["The query runs and all of its values are NULL"]
    return ["The result was cut: it has too many rows; aggregate it or filter it"] if result.truncated else []
