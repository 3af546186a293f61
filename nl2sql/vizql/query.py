"""The structured query of the VizQL Data Service: read from any JSON, and given back as the same JSON.

A *query* is ``{fields, filters, parameters}``; a *request* is ``{datasource, query, options}``, what the service is
sent. What a model writes is often the query alone.

>>> query = read_query({"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales", "function": "SUM"}]})
>>> to_json(query)
{'fields': [{'fieldCaption': 'Region'}, {'fieldCaption': 'Sales', 'function': 'SUM'}]}
>>> [error.message for error in read_query({"fields": [{"fieldCaption": "Sales", "functoin": "SUM"}]})]
["Unknown key 'functoin' in field 'Sales'"]

The rules here need no data source; the service's own Python models leave most of them out (``docs/vizql.md``). Not
covered: names, types and values of a data source (``validator``).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field

from nl2sql.vizql import rules, shape
from nl2sql.vizql.fields import FIELD_MODELS, Caption, Part, QueryField, field_kind
from nl2sql.vizql.filters import QueryFilter, Scalar
from nl2sql.vizql.mending import Change, QueryError, shown, suggest, under

Errors: TypeAlias = list[QueryError]
DEEPEST = 32  # levels of a document: the service's deepest query has 7
DIALECT = "vizql"  # of a database whose statements are such queries
API = 20263  # the newest version of the service that is known here


class Parameter(Part):
    """The value of a parameter of the data source, for this query."""

    parameterCaption: Caption
    value: Scalar
    nullable: ClassVar[frozenset[str]] = frozenset({"value"})


class Query(Part):
    """What is asked: at least one field."""

    fields: list[QueryField] = Field(min_length=1)
    filters: list[QueryFilter] | None = None
    parameters: list[Parameter] | None = None


class Connection(Part):
    """How the service signs in to the database behind a data source."""

    connectionLuid: str | None = None
    connectionUsername: str
    connectionPassword: str


class Datasource(Part):
    """Which data source is asked. ``workbookDatasourceId``: since 20263."""

    datasourceLuid: Caption | None = None
    workbookDatasourceId: Caption | None = None
    connections: list[Connection] | None = None


class Options(Part):
    """How the result is to be given. Two keys are known since 20263 only (``rules.NEWER``)."""

    debug: bool | None = None
    bypassMetadataCache: bool | None = None
    withNewSession: bool | None = None
    interpretFieldCaptionsAsFieldNames: bool | None = None
    includeHiddenFields: bool | None = None
    includeGroupFormulas: bool | None = None
    includeRemoteDatabaseNames: bool | None = None
    disaggregate: bool | None = None
    returnFormat: Literal["OBJECTS", "ARRAYS"] | None = None
    rowLimit: int | None = Field(None, ge=1, le=2**31 - 1)
    returnServerSentEvents: bool | None = None


class Request(Part):
    """What the service is sent. Without ``datasource`` it is a draft."""

    datasource: Datasource | None = None
    query: Query
    options: Options | None = None

    @property
    def disaggregate(self) -> bool:
        """Whether rows are wanted as they are, not grouped."""
        return bool(self.options and self.options.disaggregate)


def read_query(data: Any, *, api: int = API) -> Query | Errors:
    """The query that ``data`` (any JSON) is, or all that is wrong with it. Raises nothing."""
    errors = query_errors(data, api=api)
    return errors or Query.model_validate(data)


def read_request(data: Any, *, api: int = API) -> Request | Errors:
    """The request that ``data`` is, or the draft of one: a query alone, or one without ``datasource``.

    Raises nothing.
    """
    errors = request_errors(data, api=api)
    return errors or Request.model_validate(data if is_request(data) else {"query": data})


def is_request(data: Any) -> bool:
    """Is ``data`` meant as a request, and not as a query alone?"""
    return isinstance(data, dict) and "fields" not in data and bool({"query", "datasource", "options"} & set(data))


def to_json(part: BaseModel) -> dict[str, Any]:
    """The JSON that ``part`` was read from."""
    return part.model_dump(mode="json", exclude_unset=True)


def request_errors(data: Any, *, api: int = API) -> Errors:
    """All that is wrong with a request, a draft or a query, without knowing its data source."""
    if not is_request(data):
        return query_errors(data, api=api)
    if (deep := _too_deep(data)) is not None:
        return deep
    errors = shape.unknown_keys(data, (), "the request", tuple(Request.model_fields))
    if "query" not in data:
        errors.append(QueryError("missing", ("query",), "Required field 'query' is missing"))
    else:
        errors += [under(error, ("query",)) for error in query_errors(data["query"], api=api)]
    if "datasource" in data:
        errors += _datasource_errors(data, api)
    if "options" in data:
        errors += shape.part_errors(Options, data, ("options",), "the options")
    return errors + rules.newer_keys(data, api)


def query_errors(data: Any, *, api: int = API) -> Errors:
    """All that is wrong with a query, without knowing its data source."""
    if (deep := _too_deep(data)) is not None:
        return deep
    if not isinstance(data, dict):
        return [QueryError("type", (), f"Expected a query, a JSON object with 'fields'; it is {shown(data)}")]
    errors = shape.unknown_keys(data, (), "the query", tuple(Query.model_fields))
    errors += _fields_errors(data)
    errors += _list_errors(data, "filters", shape.filter_errors)
    errors += _list_errors(data, "parameters", _parameter_errors)
    return errors + rules.query_rules(data, {error.place[:2] for error in errors}, api)


def _fields_errors(data: dict[str, Any]) -> Errors:
    if data.get("fields") == [] or "fields" not in data:
        return [QueryError("missing", ("fields",), "Required field 'query.fields' is missing or empty")]
    return _list_errors(data, "fields", _field_errors)


def _field_errors(data: dict[str, Any], place: tuple[str | int, ...]) -> Errors:
    field = data["fields"][place[1]]
    model = FIELD_MODELS[field_kind(field)]
    return shape.part_errors(model, data, place, shape.named("field", field))


def _parameter_errors(data: dict[str, Any], place: tuple[str | int, ...]) -> Errors:
    named = shape.named("parameter", data["parameters"][place[1]], "parameterCaption")
    return shape.part_errors(Parameter, data, place, named)


def _list_errors(data: dict[str, Any], name: str, check: Any) -> Errors:
    if name not in data:
        return []
    if not isinstance(data[name], list):
        way = suggest(data, f"Write '{name}' as a list: {{json}}", (name,), Change((name,), [data[name]]))
        ways = (way,) if isinstance(data[name], dict) else ()
        return [QueryError("type", (name,), f"'{name}' must be a list; it is {shown(data[name])}", ways)]
    return [error for i in range(len(data[name])) for error in check(data, (name, i))]


def _datasource_errors(data: dict[str, Any], api: int) -> Errors:
    errors = shape.part_errors(Datasource, data, ("datasource",), "the data source")
    source = data["datasource"]
    enough = {"datasourceLuid"} | ({"workbookDatasourceId"} if api >= 20263 else set())
    if isinstance(source, dict) and not enough & set(source):
        errors.append(luid_missing())
    return errors


def luid_missing(*ways: Any) -> QueryError:
    """The error of a request that does not say which data source it asks."""
    place = ("datasource", "datasourceLuid")
    return QueryError("missing", place, "Required field 'datasource.datasourceLuid' is missing", ways)


def _too_deep(data: Any) -> Errors | None:
    """The error of a document nested past ``DEEPEST``; no other check could read it."""
    level = [data]
    for _ in range(DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    if not level:
        return None
    return [QueryError("type", (), f"The query is nested too deeply; expected at most {DEEPEST} levels")]
