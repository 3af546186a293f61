"""A valid query executed: compiled to SQL over the database, or as it is by a database that takes such queries.

A database that takes structured queries says so by its dialect ``vizql`` (the VizQL Data Service does); its errors
tell by their code whether another query may mend them (``vizql.reactions``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nl2sql.agents.vizql.drafts import query_of
from nl2sql.agents.vizql.state import Context
from nl2sql.interfaces import RunResult
from nl2sql.vizql.mending import Place
from nl2sql.vizql.query import DIALECT, is_request
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


def failing_parts(here: Context, draft: dict[str, Any]) -> frozenset[Place]:
    """The fields and filters of a valid draft that fail alone; none where only all together fail, or where a service
    would be asked for each."""
    database, query = here.task.resources.database, query_of(draft)
    if database.dialect == DIALECT:
        return frozenset()

    def fails(**parts: Any) -> bool:
        alone = {**query, "filters": [], **parts}
        request = {**draft, "query": alone} if is_request(draft) else alone
        sql, reasons = statement(request, here.source, database.dialect, here.task.config.vizql)
        return bool(reasons) or not here.task.result_of(sql).success

    def failing() -> Iterator[Place]:
        sound = None
        for i, field in enumerate(query["fields"]):
            if fails(fields=[field]):
                yield ("fields", i)
            else:
                sound = sound or field
        for i, part in enumerate(query.get("filters") or ()):
            if sound is not None and fails(fields=[sound], filters=[part]):
                yield ("filters", i)

    return frozenset(failing())


def errors_of(result: RunResult) -> list[str]:
    """The error of a result that failed; of one that succeeded, what is odd about it."""
    if not result.success:
        return [f"The query failed: {result.error}"]
    if not result.rows:
        return ["The query runs and gives no rows: a filter may hold a wrong value or field"]
    if all(value is None for row in result.rows for value in row):
        return ["The query runs and all of its values are NULL"]
    return ["The result was cut: it has too many rows; aggregate it or filter it"] if result.truncated else []
