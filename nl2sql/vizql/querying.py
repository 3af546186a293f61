"""A structured query from JSON to rows: the answers of the service, and the same validated and executed here.

>>> from nl2sql.databases.engines import open_database
>>> from nl2sql.vizql.infer import infer
>>> with open_database("packaged:scale_models") as database:
...     reply = run_query({"fields": [{"fieldCaption": "Ctiy"}]}, infer(database), database)
>>> reply.validation.validation_errors, reply.sql
(["Field 'Ctiy' not found in schema"], '')

Not covered: mending what is wrong (``validator.apply``, and the controller ``vizql``).

>>> query = Query.model_validate({"fields": [{"fieldCaption": "City"}, {"fieldCaption": "Sales", "function": "SUM"}]})
>>> rows_of([{"SUM(Sales)": 3.5, "City": "Rome"}], query)
(('City', 'SUM(Sales)'), [('Rome', 3.5)])
>>> rows_of([["Rome", 3.5]], query)
(('City', 'SUM(Sales)'), [('Rome', 3.5)])
>>> error = error_of(404, b'{"errorCode": "404934", "message": "Unknown field", "messages": ["Ctiy"]}')
>>> error.kind, str(error)
('404934', 'Unknown field; Ctiy')

>>> [reaction(kind) for kind in ("400803", "429000", "503800", "something else")]
['refine', 'stop', 'again', 'stop']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import yaml

from nl2sql.config import VizqlConfig
from nl2sql.interfaces import Row, RunResult
from nl2sql.machine import from_json
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import DIALECT, Query, Request, is_request
from nl2sql.vizql.source import DataSource
from nl2sql.vizql.validator import Validation, validate

if TYPE_CHECKING:
    from nl2sql.interfaces import Database


# ----------------------------------------------------------------------- the answers of the service
# What the service calls a column is not in its schema. A field's alias, ``SUM(Sales)`` and the
# caption are looked for; where a field has none of them, the columns stay in the service's order.
# What to do about an error is in ``reactions.yaml``: mend the query, stop, or send it again.
#
# ``VizqlService.run`` has sent a request again itself: to its caller, ``again`` says that this did
# not help.


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
    code = str(record.get("errorCode") or record.get("tab-error-code") or "")
    kind = code if re.fullmatch(r"\w{1,20}", code) else otherwise
    several = record.get("messages")
    said = [_said(part) for part in (record.get("message"), *(several if isinstance(several, list) else [several]))]
    return ServiceError(kind, "; ".join(dict.fromkeys(filter(None, said))) or f"HTTP {otherwise}")


def _said(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("message"), str):
        return part["message"]
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) if part else ""


def rows_of(data: Any, query: Query) -> tuple[tuple[str, ...], list[Row]]:
    """The names of the columns and the rows, of the ``data`` of an answer (OBJECTS or ARRAYS).

    Raises ValueError where ``data`` has no rows of this query.
    """
    if not isinstance(data, list):
        raise ValueError("it has no list 'data'")
    if data and all(isinstance(row, dict) for row in data):
        return _of_objects(data, query)
    if not all(isinstance(row, list) and len(row) == len(query.fields) for row in data):
        raise ValueError(f"its rows are not objects, or lists of {len(query.fields)} values")
    return tuple(map(_name, query.fields)), [tuple(map(_value, row)) for row in data]


def _of_objects(data: list[dict[str, Any]], query: Query) -> tuple[tuple[str, ...], list[Row]]:
    keys = list(dict.fromkeys(key for row in data for key in row))
    if len(keys) != len(query.fields):
        raise ValueError(f"its rows have {len(keys)} columns; expected {len(query.fields)}, one for each field")
    columns = _in_order(keys, query.fields)
    return columns, [tuple(_value(row.get(column)) for column in columns) for row in data]


_SUREST_FIRST: tuple[Callable[[Any], str], ...] = (
    lambda field: re.escape(_name(field)),
    lambda field: re.escape(field.fieldCaption),
    lambda field: rf"\w+\({re.escape(field.fieldCaption)}\)",  # a measure without a function has its default one
)


def _in_order(keys: Sequence[str], fields: Sequence[Any]) -> tuple[str, ...]:
    """The keys of the objects in the order of the fields; as they come, where a field has none of them."""
    columns: dict[int, str] = {}
    for pattern_of in _SUREST_FIRST:
        for i in set(range(len(fields))) - set(columns):
            left = (key for key in keys if key not in columns.values())
            key = next((key for key in left if re.fullmatch(pattern_of(fields[i]), key)), None)
            if key is not None:
                columns[i] = key
    return tuple(columns[i] for i in sorted(columns)) if len(columns) == len(fields) else tuple(keys)


def _name(field: Any) -> str:
    """The column of a field, as the service names it."""
    function = getattr(field, "function", None)
    return field.fieldAlias or (f"{function}({field.fieldCaption})" if function else field.fieldCaption)


def _value(value: Any) -> Any:
    """A value as SQLite would hold it; what has parts, as JSON."""
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


# ---------------------------------------------------------------------------------------- what to do about an error

Reaction: TypeAlias = Literal["refine", "stop", "again"]
FILE = Path(__file__).with_name("reactions.yaml")


@dataclass(frozen=True)
class KnownCode:
    """An entry of the table: a code, or a pattern of codes, what to do about it, and what it means."""

    code: str
    reaction: Reaction
    meaning: str


def reaction(error_kind: str | None) -> Reaction:
    """What to do about an error of this kind (``RunResult.error_kind``). What is not in the table is ``stop``."""
    known = known_code(error_kind or "")
    return known.reaction if known else "stop"


def known_code(error_kind: str) -> KnownCode | None:
    """The first entry of the table that fits a kind of error; None where none does."""
    return next((known for known in known_codes() if fnmatchcase(error_kind, known.code)), None)


@cache
def known_codes() -> tuple[KnownCode, ...]:
    """The table, in its order."""
    return tuple(KnownCode(**entry) for entry in _table()["codes"])


def pauses() -> tuple[float, ...]:
    """The seconds to wait before a request is sent again: one number for each time."""
    return tuple(map(float, _table()["pauses_s"]))


@cache
def _table() -> dict:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------ executed here


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
    request = draft if is_request(draft) else {"query": draft}
    if dialect == DIALECT:
        return as_json(request), ()
    query = compiled(Request.model_validate(request), source, dialect, settings=settings)
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
