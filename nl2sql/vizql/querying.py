"""A structured query from JSON to rows: validated, compiled and executed, here or by a service.

>>> from nl2sql.databases.engines import open_database
>>> from nl2sql.vizql.infer import infer
>>> with open_database("packaged:scale_models") as database:
...     reply = run_query({"fields": [{"fieldCaption": "Ctiy"}]}, infer(database), database)
>>> reply.validation.validation_errors, reply.sql
(["Field 'Ctiy' not found in schema"], '')

>>> error = error_of(404, b'{"errorCode": "404934", "message": "Unknown field", "messages": ["Ctiy"]}')
>>> error.kind, str(error)
('404934', 'Unknown field; Ctiy')

Not covered: mending what is wrong (``validator.apply``, and the controller ``vizql``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql.config import VizqlConfig
from nl2sql.interfaces import RunResult
from nl2sql.machine import from_json
from nl2sql.vizql.autofix import as_json
from nl2sql.vizql.compile import compiled
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


# -------------------------------------------------------------------------- errors of a service


class ServiceError(Exception):
    """An error of the service or on the way to it: its kind, and what was said."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(said)
        self.kind = kind


def error_of(status: int, content: bytes) -> ServiceError:
    """The error that an answer with this HTTP status and body says.

    The kind is the body's ``errorCode``, else the status. A body may be empty, no JSON, or a page of HTML.
    """
    text = content.decode("utf-8", "replace")
    try:
        body = from_json(text)
    except ValueError:
        return ServiceError(str(status), re.sub(r"<[^<>]*>", " ", text).strip() or f"HTTP {status}")
    return _error_in(body, str(status))


def error_inside(body: Any) -> ServiceError | None:
    """The error in the body of an answer with status 200: ``QueryOutput`` has a place for one."""
    inside = body.get("error") if isinstance(body, dict) else None
    return _error_in(inside, "unreadable") if inside else None


def _error_in(body: Any, otherwise: str) -> ServiceError:
    record = body if isinstance(body, dict) else {"message": body}
    if isinstance(signing := record.get("error"), dict):  # the sign-in's form
        record = {"errorCode": signing.get("code"), "message": signing.get("detail") or signing.get("summary")}
    code = str(record.get("errorCode") or record.get("tab-error-code") or "")
    kind = code if re.fullmatch(r"\w{1,20}", code) else otherwise
    several = record.get("messages")
    said = [_said(part) for part in (record.get("message"), *(several if isinstance(several, list) else [several]))]
    return ServiceError(kind, "; ".join(dict.fromkeys(filter(None, said))) or f"HTTP {otherwise}")


def _said(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("message"), str):
        return part["message"]
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) if part else ""
