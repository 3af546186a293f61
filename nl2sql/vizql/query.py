"""The structured query of the VizQL Data Service, as models: fields, filters, parameters, options.

A *query* is ``{fields, filters, parameters}``; a *request* is ``{datasource, query, options}``, what
the service is sent. What a model writes is often the query alone. All names are the service's own;
fields and filters stand in ``language.yaml``. The kind of a field is told by its keys, and a key that the
kind does not know is an error.

>>> field_kind({"fieldCaption": "Sales", "function": "SUM"})
'measure'
>>> data = {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales", "function": "SUM"}]}
>>> to_json(Query.model_validate(data)) == data
True

Not covered: rules between values (``rules``), and what only a data source knows (``semantics``).
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, TypeAlias, Union

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WrapValidator,
    create_model,
    field_validator,
)
from pydantic_core import PydanticCustomError

DIALECT = "vizql"  # of a database whose statements are such queries
API = 20263  # the newest version of the service that is known here

DATE_PARTS = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"})
DATE_TRUNCATIONS = frozenset(f"TRUNC_{part}" for part in DATE_PARTS)
AGGREGATES = ("SUM", "AVG", "MEDIAN", "COUNT", "COUNTD", "MIN", "MAX", "STDEV", "VAR")
FUNCTIONS = (*AGGREGATES, "COLLECT", "AGG", *sorted(DATE_PARTS), *sorted(DATE_TRUNCATIONS))
Text: TypeAlias = Annotated[str, Field(min_length=1)]


def _whole_as_it_is(value: Any, read: Callable[[Any], float]) -> float:
    number = read(value)
    return value if isinstance(value, int) else number


def _same(value: float) -> float:
    return value


# a finite number; a whole one stays an int, since a float has no digits for 2**53 + 1
Number: TypeAlias = Annotated[float, WrapValidator(_whole_as_it_is), PlainSerializer(_same, return_type=int | float)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Scalar: TypeAlias = str | int | Finite | bool | None


def is_full_date(text: str) -> bool:
    """Is ``text`` a date of RFC 3339 (``full-date``: YYYY-MM-DD) that the calendar has?"""
    return len(text) == 10 and is_moment(text)


_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII)


def is_moment(text: str) -> bool:
    """Is ``text`` a date of the calendar, alone or with a time (RFC 3339; seconds and zone may lack)?"""
    try:
        return bool(_MOMENT.fullmatch(text)) and bool(datetime.datetime.fromisoformat(text))
    except ValueError:
        return False


def _full_date(text: str) -> str:
    if not is_full_date(text):
        raise PydanticCustomError("date", "not a date of RFC 3339 (YYYY-MM-DD)")
    return text


class Part(BaseModel):
    """A part of a query: no unknown keys, no null where the service takes none, no texts for numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    nullable: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*")
    @classmethod
    def _no_null(cls, value: Any, info: Any) -> Any:
        if value is None and info.field_name not in cls.nullable:
            raise PydanticCustomError("null", "null is no value here")
        return value


# -------------------------------------------------------------------------------- fields and filters

LANGUAGE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("language.yaml").read_text("utf-8"))
_TYPES: dict[str, Any] = {
    "text": Text,
    "caption": Annotated[str, Field(pattern=r"\S")],
    "date": Annotated[str, AfterValidator(_full_date)],
    "boolean": bool,
    "whole": int,
    "number": Number,
    "scalar": Scalar,
    "value": str | int | Finite,
    "Function": Literal[FUNCTIONS],
}


def _type(said: str | list[str]) -> Any:
    if isinstance(said, list):
        return Literal[tuple(said)]
    many, of, item = said.partition(" of ")
    if of:
        return Annotated[list[_type(item)], Field(min_length=1 if many == "some" else 0)]  # type: ignore[misc]
    name, _, least = said.partition(" from ")
    known = _TYPES.get(name, name)  # one that is not known yet is looked up in this module
    return Annotated[known, Field(ge=int(least))] if least else known


def _models(section: str, told_by: str = "") -> dict[str, type[Part]]:
    """The parts of a section of the language; ``told_by``: the key that has their name."""
    models = {}
    for name, keys in LANGUAGE[section].items():
        parts: dict[str, Any] = {told_by: (Literal[name], ...)} if told_by else {}
        for key, said in keys.items():
            wanted = key.removesuffix("!")
            parts[wanted] = (_type(said), ...) if wanted != key else (Optional[_type(said)], None)  # noqa: UP045
        models[name] = create_model(name, __base__=Part, __module__=__name__, **parts)
    return models


def _either(models: dict[str, type[Part]], told_by: str = "") -> Any:
    """One of these parts: by the key that tells it, else by its kind."""
    if told_by:
        return Annotated[functools.reduce(operator.or_, models.values()), Field(discriminator=told_by)]
    # no key begins as these tags do: pydantic puts tags among the keys of an error's place
    tagged = [Annotated[model, Tag(f"~{kind}")] for kind, model in models.items()]
    telling = tuple(key for key, kind in _KINDS.items() if kind in models)
    return Annotated[Union[tuple(tagged)], Discriminator(lambda data: f"~{_kind_by(data, telling)}")]  # noqa: UP007


_KINDS = {  # the first key that is there decides
    "tableCalculation": "table_calculation",
    "binSize": "bin",
    "calculation": "calculation",
    "function": "measure",
}


def field_kind(data: Any) -> str:
    """The kind of a field's JSON, or of its model, by its keys; without any of them a dimension."""
    return _kind_by(data, tuple(_KINDS))


def _kind_by(data: Any, telling: tuple[str, ...]) -> str:
    keys = data if isinstance(data, dict) else type(data).model_fields if isinstance(data, Part) else ()
    return next((_KINDS[key] for key in telling if key in keys), "dimension")


_TYPES |= _models("references")
_CALCULATIONS = _models("tableCalculations", "tableCalcType")
TableCalculation = _either(_CALCULATIONS, "tableCalcType")
FIELD_MODELS = _models("fields")
_TYPES["FilterField"] = _either(_models("filterFields"))
_TYPES |= _models("conditions")
FILTER_MODELS = _models("filters", "filterType")
FIELD_MODELS["table_calculation"].nullable = frozenset({"nestedTableCalculations"})
for _model in (*_CALCULATIONS.values(), *FIELD_MODELS.values()):
    _model.model_rebuild()
if TYPE_CHECKING:
    QueryField: TypeAlias = Any
    QueryFilter: TypeAlias = Any
else:
    QueryField = _either(FIELD_MODELS)
    QueryFilter = _either(FILTER_MODELS, "filterType")

# ----------------------------------------------------------------------------- queries and requests


class Parameter(Part):
    """The value of a parameter of the data source, for this query."""

    parameterCaption: Text
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

    datasourceLuid: Text | None = None
    workbookDatasourceId: Text | None = None
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


def is_request(data: Any) -> bool:
    """Is ``data`` meant as a request, and not as a query alone?"""
    return isinstance(data, dict) and "fields" not in data and bool({"query", "datasource", "options"} & set(data))


def as_request(data: Any) -> Any:
    """``data`` as a request: a query alone becomes the draft of one."""
    return data if is_request(data) else {"query": data}


def to_json(part: BaseModel) -> dict[str, Any]:
    """The JSON that ``part`` was read from."""
    return part.model_dump(mode="json", exclude_unset=True)
