"""A VizQL Data Service as a database whose statements are structured queries, for everything that asks databases.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"name": "Superstore", "fields": [{"fieldCaption": "Region"}]})
>>> [(table.name, table.columns[0].name) for table in schema_of(source).tables]
[('Superstore', 'Region')]

``dialect`` is ``vizql``, and ``run`` takes a request as JSON. Not covered: samples of rows, statements in SQL, a check
of a query by the service without its execution (``explain`` reads it, no more).
"""

from __future__ import annotations

import functools
from typing import Any

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.errors import UsageError
from nl2sql.interfaces import RunResult, content_key
from nl2sql.machine import from_json
from nl2sql.vizql.query import DIALECT, read_request
from nl2sql.vizql.service import TIMEOUT_S, VizqlService, open_service
from nl2sql.vizql.source import DataSource

PREFIX = "vds:"
NO_JSON = "a data service takes structured queries as JSON, and no SQL; ask it with --controller vizql"


class ServiceDatabase:
    """A data source behind a service, by the interface of databases. Closing it closes the service."""

    dialect = DIALECT

    def __init__(self, service: VizqlService) -> None:
        self.service, self.name = service, service.luid

    @functools.cached_property
    def source(self) -> DataSource:
        """The data source as the service describes it. Raises Nl2SqlError, with the service's error."""
        return self.service.metadata()

    @property
    def fingerprint(self) -> str:
        """Of the description; the service does not say when rows change."""
        return content_key(self.source.model_dump(mode="json"))

    def schema(self) -> Schema:
        """Logical tables and the captions of their fields. Raises Nl2SqlError."""
        return schema_of(self.source)

    def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
        """No rows: the service gives none without a query."""
        return []

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        """Whether ``sql`` is a structured query at all."""
        try:
            errors = read_request(from_json(sql))
        except ValueError:
            return RunResult(False, error=NO_JSON, error_kind="invalid")
        if isinstance(errors, list):
            return RunResult(False, error=errors[0].message, error_kind="invalid")
        return RunResult(True)

    def run(self, sql: str, *, timeout_s: float = TIMEOUT_S, max_rows: int = 10_000) -> RunResult:
        """The rows of a request as JSON. Raises nothing."""
        try:
            request = from_json(sql)
        except ValueError:
            return RunResult(False, error=NO_JSON, error_kind="invalid")
        return self.service.run(request, timeout_s=timeout_s, max_rows=max_rows)

    def close(self) -> None:
        self.service.close()


def schema_of(source: DataSource) -> Schema:
    """The logical tables of a data source with the captions of their fields; one table where it has none."""
    tables: dict[str, list[Column]] = {}
    for field in source.fields:
        if not field.hidden:
            name = source.table_of(field) or source.name or source.luid or "data source"
            tables.setdefault(name, []).append(Column(field.fieldCaption, field.dataType))
    return Schema(tuple(Table(name, tuple(columns)) for name, columns in tables.items()), DIALECT)


def open_service_database(spec: str) -> ServiceDatabase:
    """The data source that ``vds:URL#LUID`` names. Raises UsageError, and Nl2SqlError for a sign-in that is refused."""
    url, sep, luid = spec.removeprefix(PREFIX).rpartition("#")
    if not sep or not luid:
        raise UsageError(f"{spec!r} names no data source; expected vds:URL#LUID, as vds:https://SERVER#LUID")
    return ServiceDatabase(open_service(url, datasource_luid=luid))
