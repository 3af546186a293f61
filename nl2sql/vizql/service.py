"""A VizQL Data Service that is asked over HTTP: queries executed, data sources described.

    with open_service("https://10az.online.tableau.com", datasource_luid="...") as service:
        service.run({"fields": [{"fieldCaption": "Region"}]}).rows

An error is data, as for a database: ``error_kind`` is the service's ``errorCode``, or one of ``invalid`` (not sent),
``timeout``, ``unreachable``, ``unreadable``, ``too_large``. ``known_code`` says what to do about it.

>>> ENVIRONMENT
('NL2SQL_VDS_TOKEN', 'NL2SQL_VDS_PAT_NAME', 'NL2SQL_VDS_PAT_SECRET', 'NL2SQL_VDS_SITE')
>>> server_address("https://10az.online.tableau.com/")
'https://10az.online.tableau.com'

>>> query = Query.model_validate({"fields": [{"fieldCaption": "City"}, {"fieldCaption": "Sales", "function": "SUM"}]})
>>> rows_of([{"SUM(Sales)": 3.5, "City": "Rome"}], query)
(('City', 'SUM(Sales)'), [('Rome', 3.5)])
>>> source = DataSource.model_validate({"name": "Superstore", "fields": [{"fieldCaption": "Region"}]})
>>> [(table.name, table.columns[0].name) for table in schema_of(source).tables]
[('Superstore', 'Region')]

Not covered: passwords and JWT as a sign-in, workbook data sources, streams of events, groups in metadata; samples of
rows, statements in SQL, a check of a query by the service without its execution (``explain`` reads it, no more).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import yaml

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.errors import ModelError, Nl2SqlError, UsageError, one_line
from nl2sql.interfaces import Row, RunResult, content_key
from nl2sql.machine import from_json, masked
from nl2sql.models.http.providers import Place
from nl2sql.models.http.transport import TooLarge, Transport, Unanswered
from nl2sql.vizql.query import DIALECT, Query, Request, to_json
from nl2sql.vizql.query_errors import read_request
from nl2sql.vizql.querying import ServiceError, error_inside, error_of
from nl2sql.vizql.source import DataSource, from_metadata

ENVIRONMENT = ("NL2SQL_VDS_TOKEN", "NL2SQL_VDS_PAT_NAME", "NL2SQL_VDS_PAT_SECRET", "NL2SQL_VDS_SITE")
TOKEN, PAT_NAME, PAT_SECRET, SITE = ENVIRONMENT
TIMEOUT_S = 30.0
LONGEST = 2000  # characters of an error's text
AT_ONCE = 64  # requests
SERVICE, SIGN_IN = "api/v1/vizql-data-service", "api/3.25/auth"  # 3.25: the first version that has both


# ----------------------------------------------------------------------- the answers of the service
# What the service calls a column is not in its schema. A field's alias, ``SUM(Sales)`` and the
# caption are looked for; where a field has none of them, the columns stay in the service's order.
# ``VizqlService.run`` has sent a request again itself: to its caller, ``again`` says that this did
# not help.


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


# ------------------------------------------------------------------------- what to do about an error

FILE = Path(__file__).with_name("reactions.yaml")


class KnownCode(NamedTuple):
    """An entry of the table: a code, or a pattern of codes, what to do about it, and what it means."""

    code: str
    reaction: Literal["refine", "stop", "again"]
    meaning: str


@functools.cache
def _table() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def known_codes() -> list[KnownCode]:
    """The table ``reactions.yaml``, in its order."""
    return [KnownCode(**entry) for entry in _table()["codes"]]


def known_code(error_kind: str | None) -> KnownCode:
    """The first entry of the table that fits a kind of error (``RunResult.error_kind``); without one: stop.

    >>> [known_code(kind).reaction for kind in ("400803", "429000", "503800", "something else")]
    ['refine', 'stop', 'again', 'stop']
    """
    stop = KnownCode(error_kind or "", "stop", "")
    return next((known for known in known_codes() if fnmatchcase(error_kind or "", known.code)), stop)


def pauses() -> tuple[float, ...]:
    """The seconds to wait before a request is sent again: one number for each time."""
    return tuple(map(float, _table()["pauses_s"]))


# ---------------------------------------------------------------------------------- the service


class VizqlService:
    """A data source behind a VizQL Data Service, by the interface of databases: its statements are structured queries.

    Thread-safe. ``open_service`` makes one.
    """

    dialect = DIALECT

    def __init__(self, address: str, token: str, luid: str, timeout_s: float, *, signs_out: bool = False) -> None:
        self.address, self.name = address, luid
        self._client, self._timeout_s, self._signs_out = _Client(address, token), timeout_s, signs_out

    def run(self, sql: Any, *, timeout_s: float | None = None, max_rows: int = 10_000) -> RunResult:
        """The rows of a request, a draft or a query (any JSON, or its text), in the order of the query's fields.

        timeout_s: for all of it, requests that are sent again and their pauses included; default, the service's.
        max_rows: the service is asked for one more, so that ``truncated`` can be told. Raises nothing.
        """
        began = time.perf_counter()
        try:
            request = self._completed(_document(sql))
            body = to_json(request)
            asked = body.get("options", {}).get("rowLimit", max_rows + 1)
            body["options"] = body.get("options", {}) | {"rowLimit": min(asked, max_rows + 1)}
            answer = self._sent("query-datasource", body, self._timeout_s if timeout_s is None else timeout_s)
            columns, rows = rows_of(answer.get("data"), request.query)
        except ValueError as error:
            return _failed(ServiceError("unreadable", f"the answer cannot be read: {error}"), began)
        except ServiceError as error:
            return _failed(error, began)
        cut = len(rows) > max_rows
        return RunResult(True, columns, tuple(rows[:max_rows]), truncated=cut, seconds=time.perf_counter() - began)

    def explain(self, sql: Any, *, timeout_s: float = 5.0) -> RunResult:
        """Whether ``sql`` is a structured query at all."""
        try:
            self._completed(_document(sql))
        except ServiceError as error:
            return RunResult(False, error=str(error), error_kind=error.kind)
        return RunResult(True)

    @functools.cached_property
    def source(self) -> DataSource:
        """The data source as the service describes it: fields, parameters, logical tables and their relationships.

        Raises Nl2SqlError, with the service's error.
        """
        body = {"datasource": {"datasourceLuid": self.name}}
        try:
            described = self._sent("read-metadata", body, self._timeout_s)
            model = self._sent("get-datasource-model", body, self._timeout_s)
        except ServiceError as error:
            raise Nl2SqlError(f"{self.address} does not describe data source {self.name!r}: {_told(error)}") from None
        return from_metadata(described, model, luid=self.name)

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

    def close(self) -> None:
        """Hang up, and sign out where ``open_service`` signed in."""
        if self._signs_out:
            with contextlib.suppress(ServiceError):  # a server that does not answer ends it by itself, later
                self._signs_out = False
                self._client.ask(f"{SIGN_IN}/signout", {}, self._timeout_s)
        self._client.close()

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
            if asked not in (None, self.name):
                raise ServiceError("invalid", f"the request asks data source {asked!r}, and this is {self.name!r}")
            return request
        return Request.model_validate(to_json(request) | {"datasource": {"datasourceLuid": self.name}})

    def _sent(self, endpoint: str, body: dict[str, Any], timeout_s: float) -> Any:
        """The body of an answer, the request sent again where that may help. Raises ServiceError."""
        end = time.monotonic() + timeout_s
        for times, pause in enumerate((*pauses(), math.inf), start=1):
            try:
                return self._client.ask(f"{SERVICE}/{endpoint}", body, max(0.0, end - time.monotonic()))
            except ServiceError as error:
                if known_code(error.kind).reaction != "again" or time.monotonic() + pause >= end:
                    said = f"{error} (sent {times} times)" if times > 1 else str(error)
                    raise ServiceError(error.kind, said) from None
            time.sleep(pause)
        raise AssertionError("unreachable")


class _Client(Transport):
    """JSON to the service's server and back, within its bounds; redirects are not followed. A ServiceError tells all
    that goes wrong, without the token."""

    most_bytes = 64 * 2**20  # as much as the SQLite worker sends

    def __init__(self, address: str, token: str = "", secret: str = "") -> None:
        super().__init__(Place(address, "", key=token or secret), timeout_s=TIMEOUT_S, retries=0, concurrency=AT_ONCE)
        self._token = token

    def headers(self) -> dict[str, str]:
        return {"Accept": "application/json"} | ({"X-Tableau-Auth": self._token} if self._token else {})

    def ask(self, path: str, body: dict[str, Any], timeout_s: float) -> Any:
        """The object that is answered. Raises ServiceError; a limit that passed is of kind ``timeout``."""
        try:
            json.dumps(body, ensure_ascii=False).encode()
            return self.send_all([("POST", f"{self.base}/{path}", body, None)], timeout_s=timeout_s)[0].data
        except UnicodeEncodeError:
            raise ServiceError("invalid", "it has half a character, which no request can carry") from None
        except Unanswered as error:
            if error.unreachable:
                raise ServiceError("unreachable", str(error)) from None
            raise ServiceError("timeout", f"no complete answer within {timeout_s:.3g} s") from None
        except TooLarge as error:
            raise ServiceError("too_large", f"{error}; ask for fewer rows") from None
        except ModelError as error:
            raise ServiceError("unreadable", str(error)) from None

    def _checked(self, status: int, headers: Mapping[str, str], raw: bytes) -> Any:
        try:
            if 300 <= status < 400:
                where = headers.get("location")
                raise ServiceError(str(status), f"it redirects to {where}; give that address instead")
            if status not in (200, 204):
                raise error_of(status, raw)
            answer = from_json(raw or b"null")
            if inside := error_inside(answer):
                raise inside
            if not isinstance(answer, dict) and status == 200:
                raise ValueError("no object")
            return answer
        except ValueError as error:
            raise ServiceError("unreadable", f"the answer is not as expected: {error}") from None
        except ServiceError as error:
            raise ServiceError(error.kind, one_line(masked(self.without_key(str(error))), LONGEST)) from None


def open_service(url: str, *, datasource_luid: str, timeout_s: float = TIMEOUT_S) -> VizqlService:
    """The VizQL Data Service of the Tableau server at ``url``, signed in with what the environment holds.

    datasource_luid: of the published data source that is asked. timeout_s: for a query, and for each of the other
    requests. Raises UsageError for a bad address, and without a sign-in; Nl2SqlError for one refused.
    """
    address = server_address(url)
    given, name, secret, site = (os.environ.get(variable, "").strip() for variable in ENVIRONMENT)
    token = given or _signed_in(address, name, secret, site, timeout_s)
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(f"{TOKEN} is no token: it has spaces, or letters that no header can carry")
    return VizqlService(address, token, datasource_luid, timeout_s, signs_out=not given)


def _signed_in(address: str, name: str, secret: str, site: str, timeout_s: float) -> str:
    """The token for a personal access token. Raises UsageError without one, Nl2SqlError with what the server said."""
    if not (name and secret):
        missing = " and ".join(variable for variable, value in ((PAT_NAME, name), (PAT_SECRET, secret)) if not value)
        raise UsageError(
            f"{address} needs a sign-in, and the environment has no {missing}; type: export {PAT_NAME}=NAME "
            f"{PAT_SECRET}=SECRET {SITE}=SITE (a personal access token), or export {TOKEN}=TOKEN (of a sign-in)"
        )
    who = {"personalAccessTokenName": name, "personalAccessTokenSecret": secret, "site": {"contentUrl": site}}
    with contextlib.closing(_Client(address, secret=secret)) as client:
        try:
            return str(client.ask(f"{SIGN_IN}/signin", {"credentials": who}, timeout_s)["credentials"]["token"])
        except (ServiceError, LookupError, TypeError) as error:
            said = f"{error.kind}: {error}" if isinstance(error, ServiceError) else "its answer has no token"
            hint = f"check the address, {PAT_NAME}, {PAT_SECRET} and {SITE}"
            raise Nl2SqlError(f"cannot sign in at {address}: {said}; {hint}") from None


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


def _document(sql: Any) -> Any:
    try:
        return from_json(sql) if isinstance(sql, str) else sql
    except ValueError:
        said = "a data service takes structured queries as JSON, and no SQL; ask it with --controller vizql"
        raise ServiceError("invalid", said) from None


def _failed(error: ServiceError, began: float) -> RunResult:
    return RunResult(False, error=_told(error), error_kind=error.kind, seconds=time.perf_counter() - began)


def _told(error: ServiceError) -> str:
    """The error for people: its code, what that means, and what the service said."""
    known = known_code(error.kind)
    return f"{error.kind} ({known.meaning}): {error}" if known.meaning else f"{error.kind}: {error}"


def schema_of(source: DataSource) -> Schema:
    """The logical tables of a data source with the captions of their fields; one table where it has none."""
    tables: dict[str, list[Column]] = {}
    for field in source.fields:
        if not field.hidden:
            name = source.table_of(field) or source.name or source.luid or "data source"
            tables.setdefault(name, []).append(Column(field.fieldCaption, field.dataType))
    return Schema(tuple(Table(name, tuple(columns)) for name, columns in tables.items()), DIALECT)


def open_service_database(spec: str) -> VizqlService:
    """The data source that ``vds:URL#LUID`` names. Raises UsageError, and Nl2SqlError for a sign-in that is refused."""
    url, sep, luid = spec.removeprefix("vds:").rpartition("#")
    if not sep or not luid:
        raise UsageError(f"{spec!r} names no data source; expected vds:URL#LUID, as vds:https://SERVER#LUID")
    return open_service(url, datasource_luid=luid)
