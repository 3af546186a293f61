"""A structured query from JSON to rows: validated, compiled and executed, here or by a service.

>>> from nl2sql.databases.engines import open_database
>>> from nl2sql.vizql.infer import infer
>>> with open_database("packaged:scale_models") as database:
...     reply = run_query({"fields": [{"fieldCaption": "Ctiy"}]}, infer(database), database)
>>> reply.validation.validation_errors, reply.sql
(["Field 'Ctiy' not found in schema"], '')

Not covered: mending what is wrong (``validator.apply``, and the controller ``vizql``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql.config import VizqlConfig
from nl2sql.interfaces import RunResult
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import DIALECT, Request, as_request
from nl2sql.vizql.source import DataSource
from nl2sql.vizql.validator import Validation, validate

if TYPE_CHECKING:
    from nl2sql.interfaces import Database


@dataclass(frozen=True)
class Reply:
    """What became of a query: its validation, the statement, why there is none, and the rows."""

    validation: Validation
    sql: str = ""
    not_executable: tuple[str, ...] = ()
    result: RunResult | None = None

    @property
    def error(self) -> str | None:
        """Why there are no rows; None where there are."""
        if not self.validation.is_valid:
            return "the query is not valid"
        if self.not_executable:
            return "not executable: " + "; ".join(self.not_executable)
        return self.result.error if self.result is not None and not self.result.success else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; blobs among the rows are left to whoever writes it."""
        result = self.result or RunResult(False)
        return {
            **self.validation.to_dict(),
            "error": self.error,
            "sql": self.sql,
            "columns": list(result.columns),
            "rows": [list(row) for row in result.rows],
            "truncated": result.truncated,
        }


def statement(
    draft: dict[str, Any], source: DataSource, dialect: str, settings: VizqlConfig | None = None
) -> tuple[str, Sequence[str]]:
    """A valid draft as the statement for a database of ``dialect``, or "" and why it is not executable there."""
    if dialect == DIALECT:
        return as_json(as_request(draft)), ()
    query = compiled(Request.model_validate(as_request(draft)), source, dialect, settings=settings)
    return query.sql, query.not_executable


def run_query(
    document: Any,
    source: DataSource,
    database: Database,
    settings: VizqlConfig | None = None,
    *,
    timeout_s: float = 30.0,
    max_rows: int = 10_000,
) -> Reply:
    """Validate ``document`` (any JSON), compile and execute it. What is wrong with it is in the reply, not raised."""
    validation = validate(document, source, settings, database)
    if not validation.is_valid:
        return Reply(validation)
    sql, reasons = statement(document, source, database.dialect, settings)
    if reasons:
        return Reply(validation, not_executable=tuple(reasons))
    return Reply(validation, sql, result=database.run(sql, timeout_s=timeout_s, max_rows=max_rows))
