"""A VizQL Data Service that is asked over HTTP, through the official client: queries executed, data sources described.

    with open_service("https://10az.online.tableau.com", datasource_luid="...") as service:
        service.run({"fields": [{"fieldCaption": "Region"}]}).rows

An error is data, as for a database: ``error_kind`` is the service's ``errorCode``, or one of ``invalid`` (not sent),
``timeout``, ``unreachable``, ``unreadable``, ``too_large``. ``answers.reaction`` says what to do about it.

>>> ENVIRONMENT
('NL2SQL_VDS_TOKEN', 'NL2SQL_VDS_PAT_NAME', 'NL2SQL_VDS_PAT_SECRET', 'NL2SQL_VDS_SITE')
>>> server_address("https://10az.online.tableau.com/")
'https://10az.online.tableau.com'

``ServiceDatabase`` is one as a database whose statements are structured queries: its ``dialect`` is ``vizql``, and
``run`` takes a request as JSON.

>>> source = DataSource.model_validate({"name": "Superstore", "fields": [{"fieldCaption": "Region"}]})
>>> [(table.name, table.columns[0].name) for table in schema_of(source).tables]
[('Superstore', 'Region')]

Not covered: passwords and JWT as a sign-in, workbook data sources, streams of events, groups in metadata; samples of
rows, statements in SQL, a check of a query by the service without its execution (``explain`` reads it, no more).
"""

from __future__ import annotations

import functools
import math
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import RunResult, content_key
from nl2sql.machine import from_json, install_command
from nl2sql.vizql.query import DIALECT, Request, read_request, to_json
from nl2sql.vizql.querying import ServiceError, known_code, pauses, reaction, rows_of
from nl2sql.vizql.source import DataSource, from_metadata

if TYPE_CHECKING:
    from nl2sql.vizql.official import OfficialClient

ENVIRONMENT = ("NL2SQL_VDS_TOKEN", "NL2SQL_VDS_PAT_NAME", "NL2SQL_VDS_PAT_SECRET", "NL2SQL_VDS_SITE")
TOKEN, PAT_NAME, PAT_SECRET, SITE = ENVIRONMENT
TIMEOUT_S = 30.0


class VizqlService:
    """A data source behind a VizQL Data Service. Thread-safe. ``open_service`` makes one."""

    def __init__(self, address: str, client: OfficialClient, luid: str, timeout_s: float, server: Any = None) -> None:
        self.address, self.luid = address, luid
        self._client, self._timeout_s, self._server = client, timeout_s, server

    def run(self, request_json: Any, *, timeout_s: float | None = None, max_rows: int = 10_000) -> RunResult:
        """The rows of a request, a draft or a query (any JSON), in the order of the query's fields.

        timeout_s: for all of it, requests that are sent again and their pauses included; default, the service's.
        max_rows: the service is asked for one more, so that ``truncated`` can be told. Raises nothing.
        """
        began = time.perf_counter()
        try:
            request = self._completed(request_json)
            body = to_json(request)
            asked = body.get("options", {}).get("rowLimit", max_rows + 1)
            body["options"] = body.get("options", {}) | {"rowLimit": min(asked, max_rows + 1)}
            answer = self._sent("query_datasource", body, self._timeout_s if timeout_s is None else timeout_s)
            columns, rows = rows_of(answer.get("data"), request.query)
        except ValueError as error:
            return _failed(ServiceError("unreadable", f"the answer cannot be read: {error}"), began)
        except ServiceError as error:
            return _failed(error, began)
        cut = len(rows) > max_rows
        return RunResult(True, columns, tuple(rows[:max_rows]), truncated=cut, seconds=time.perf_counter() - began)

    def metadata(self) -> DataSource:
        """The data source as the service describes it: fields, parameters, logical tables and their relationships.

        Raises Nl2SqlError, with the service's error.
        """
        body = {"datasource": {"datasourceLuid": self.luid}}
        try:
            described = self._sent("read_metadata", body, self._timeout_s)
            model = self._sent("get_datasource_model", body, self._timeout_s)
        except ServiceError as error:
            raise Nl2SqlError(f"{self.address} does not describe data source {self.luid!r}: {_told(error)}") from None
        return from_metadata(described, model, luid=self.luid)

    def close(self) -> None:
        """Hang up, and sign out where ``open_service`` signed in."""
        from nl2sql.vizql.official import sign_out

        self._client.close()
        if self._server is not None:
            sign_out(self._server)

    def __enter__(self) -> VizqlService:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _completed(self, request_json: Any) -> Request:
        """The request that is sent for ``request_json``; a draft asks this data source. Raises ServiceError."""
        request = read_request(request_json)
        if isinstance(request, list):
            raise ServiceError("invalid", "; ".join(error.message for error in request))
        if request.options and request.options.returnServerSentEvents:
            raise ServiceError("invalid", "options.returnServerSentEvents: streams of events are not read here")
        if request.datasource is not None:
            asked = request.datasource.datasourceLuid
            if asked not in (None, self.luid):
                raise ServiceError("invalid", f"the request asks data source {asked!r}, and this is {self.luid!r}")
            return request
        return Request.model_validate(to_json(request) | {"datasource": {"datasourceLuid": self.luid}})

    def _sent(self, endpoint: str, body: dict[str, Any], timeout_s: float) -> Any:
        """The body of an answer, the request sent again where that may help. Raises ServiceError."""
        end = time.monotonic() + timeout_s
        for times, pause in enumerate((*pauses(), math.inf), start=1):
            try:
                return self._client.send(endpoint, body, timeout_s=max(0.0, end - time.monotonic()))
            except ServiceError as error:
                if reaction(error.kind) != "again" or time.monotonic() + pause >= end:
                    raise ServiceError(
                        error.kind, f"{error} (sent {times} times)" if times > 1 else str(error)
                    ) from None
            time.sleep(pause)
        raise AssertionError("unreachable")


def open_service(url: str, *, datasource_luid: str, timeout_s: float = TIMEOUT_S) -> VizqlService:
    """The VizQL Data Service of the Tableau server at ``url``, signed in with what the environment holds.

    datasource_luid: of the published data source that is asked. timeout_s: for a query, and for each of the other
    requests. Raises UsageError for a bad address, and without the client or a sign-in; Nl2SqlError for one refused.
    """
    address = server_address(url)
    try:
        from nl2sql.vizql import official
    except ImportError as error:
        install = f"install it: {install_command('vizql-service')}"
        raise UsageError(f"a VizQL Data Service needs the official client ({error}); {install}") from None
    token, name, secret, site = (os.environ.get(variable, "").strip() for variable in ENVIRONMENT)
    server = None
    if not token:
        _check_sign_in(address, name, secret)
        server = official.signed_in(address, name, secret, site, timeout_s=timeout_s)
        token = server.auth_token
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(f"{TOKEN} is no token: it has spaces, or letters that no header can carry")
    return VizqlService(address, official.OfficialClient(address, token), datasource_luid, timeout_s, server)


def _check_sign_in(address: str, name: str, secret: str) -> None:
    if not (name and secret):
        missing = " and ".join(variable for variable, value in ((PAT_NAME, name), (PAT_SECRET, secret)) if not value)
        raise UsageError(
            f"{address} needs a sign-in, and the environment has no {missing}; type: export {PAT_NAME}=NAME "
            f"{PAT_SECRET}=SECRET {SITE}=SITE (a personal access token), or export {TOKEN}=TOKEN (of a sign-in)"
        )


def server_address(url: str) -> str:
    """The address of a Tableau server, without a slash at its end. Raises UsageError for what is none."""
    example = "example: https://10az.online.tableau.com"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        said = "" if "@" in url else f" ({error})"  # which may quote half of a password
        raise UsageError(f"the address of the service is no URL{said}; {example}") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        hint = f"give a sign-in in the environment ({', '.join(ENVIRONMENT)})"
        raise UsageError(f"the address of {parts.hostname} has a user, password, query or fragment; {hint}")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or any(map(str.isspace, url)):
        raise UsageError(f"{url!r} is no address of a Tableau server; {example}")
    return url.rstrip("/")


def _failed(error: ServiceError, began: float) -> RunResult:
    return RunResult(False, error=_told(error), error_kind=error.kind, seconds=time.perf_counter() - began)


def _told(error: ServiceError) -> str:
    """The error for people: its code, what that means, and what the service said."""
    known = known_code(error.kind)
    return f"{error.kind} ({known.meaning}): {error}" if known else f"{error.kind}: {error}"


# --------------------------------------------------------------------------------- a database of structured queries

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
