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

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field

from nl2sql.vizql import rules, shape
from nl2sql.vizql.fields import FIELD_MODELS, Caption, Part, QueryField, field_kind
from nl2sql.vizql.filters import QueryFilter, Scalar
from nl2sql.vizql.mending import MOST_ERRORS, Change, Place, QueryError, shown, suggest, under

Errors: TypeAlias = list[QueryError]
DEEPEST = 32  # levels of a document: the service's deepest query has 7
MOST_VALUES = 10_000  # in a document, with lists and objects
MOST_CHARS = 200_000  # of texts, keys and numbers in a document
MOST_PARTS = 500  # fields, filters, parameters, keys of one object
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
    """The query that ``data`` (any JSON) is, or what is wrong with it, ``MOST_ERRORS`` at most. Raises nothing."""
    errors = list(islice(query_errors(data, api=api), MOST_ERRORS))
    return errors or Query.model_validate(data)


def read_request(data: Any, *, api: int = API) -> Request | Errors:
    """The request that ``data`` is, or the draft of one: a query alone, or one without ``datasource``.

    Raises nothing.
    """
    errors = list(islice(request_errors(data, api=api), MOST_ERRORS))
    return errors or Request.model_validate(data if is_request(data) else {"query": data})


def is_request(data: Any) -> bool:
    """Is ``data`` meant as a request, and not as a query alone?"""
    return isinstance(data, dict) and "fields" not in data and bool({"query", "datasource", "options"} & set(data))


def to_json(part: BaseModel) -> dict[str, Any]:
    """The JSON that ``part`` was read from."""
    return part.model_dump(mode="json", exclude_unset=True)


def request_errors(data: Any, *, api: int = API) -> Iterator[QueryError]:
    """All that is wrong with a request, a draft or a query, without knowing its data source; one by one, so that who
    needs no more looks for no more."""
    if not is_request(data):
        yield from query_errors(data, api=api)
        return
    if (large := _too_large(data)) is not None:
        yield large
        return
    yield from shape.unknown_keys(data, (), "the request", tuple(Request.model_fields))
    if "query" not in data:
        yield QueryError("missing", ("query",), "Required field 'query' is missing")
    else:
        yield from (under(error, ("query",)) for error in query_errors(data["query"], api=api))
    if "datasource" in data:
        yield from _datasource_errors(data, api)
    if "options" in data:
        yield from shape.part_errors(Options, data, ("options",), "the options")
    yield from rules.newer_keys(data, api)


def query_errors(data: Any, *, api: int = API) -> Iterator[QueryError]:
    """All that is wrong with a query, without knowing its data source; one by one."""
    if (large := _too_large(data)) is not None:
        yield large
        return
    if not isinstance(data, dict):
        yield QueryError("type", (), f"Expected a query, a JSON object with 'fields'; it is {shown(data)}")
        return
    broken: set[Place] = set()
    for error in _shape_errors(data):
        broken.add(error.place[:2])
        yield error
    yield from rules.query_rules(data, broken, api)


def _shape_errors(data: dict[str, Any]) -> Iterator[QueryError]:
    yield from shape.unknown_keys(data, (), "the query", tuple(Query.model_fields))
    if data.get("fields") == [] or "fields" not in data:
        yield QueryError("missing", ("fields",), "Required field 'query.fields' is missing or empty")
    else:
        yield from _list_errors(data, "fields", _field_errors)
    yield from _list_errors(data, "filters", shape.filter_errors)
    yield from _list_errors(data, "parameters", _parameter_errors)


def _field_errors(data: dict[str, Any], place: Place) -> Errors:
    field = data["fields"][place[1]]
    model = FIELD_MODELS[field_kind(field)]
    return shape.part_errors(model, data, place, shape.named("field", field))


def _parameter_errors(data: dict[str, Any], place: Place) -> Errors:
    named = shape.named("parameter", data["parameters"][place[1]], "parameterCaption")
    return shape.part_errors(Parameter, data, place, named)


def _list_errors(data: dict[str, Any], name: str, check: Any) -> Iterator[QueryError]:
    parts = data.get(name, [])
    if not isinstance(parts, list):
        way = suggest(data, f"Write '{name}' as a list: {{json}}", (name,), Change((name,), [parts]))
        ways = (way,) if isinstance(parts, dict) else ()
        yield QueryError("type", (name,), f"'{name}' must be a list; it is {shown(parts)}", ways)
    elif len(parts) > MOST_PARTS:
        yield QueryError("size", (name,), f"The query has {len(parts):,} {name}; expected at most {MOST_PARTS}")
    else:
        yield from (error for i in range(len(parts)) for error in check(data, (name, i)))


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


def _too_large(data: Any) -> QueryError | None:
    """The error of a document past the limits; no other check could read it, or not in time."""
    level, values, chars = [data], 0, 0
    for _ in range(DEEPEST + 1):
        values += len(level)
        chars += sum(map(_chars, level))
        keys = max(len(value) if isinstance(value, dict) else 0 for value in level)
        bounds = (
            (MOST_VALUES, values, "values"),
            (MOST_CHARS, chars, "characters"),
            (MOST_PARTS, keys, "keys in one object"),
        )
        for most, found, what in bounds:
            if found > most:
                said = f"The query is too large; expected at most {most:,} {what}"
                return QueryError("size", (), said)
        level = [item for value in level for item in _inside(value)]
        if not level:
            return None
    return QueryError("size", (), f"The query is nested too deeply; expected at most {DEEPEST} levels")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _chars(value: Any) -> int:
    """About how many characters a value has, without those inside of it."""
    if isinstance(value, str | dict):
        return len(value) if isinstance(value, str) else sum(map(len, value))
    return value.bit_length() // 3 if isinstance(value, int) else 0
