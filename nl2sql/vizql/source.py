"""A data source: its fields, the tables and columns behind them, the functions that fit them.

A field's record is the service's ``FieldMetadata``, by its names; keys that are not known here are kept, so that the
service's JSON comes back as it was, with no other keys (``from_metadata``, ``to_metadata``). Three things are ours, in
YAML only: ``name``, ``hierarchies``, and a logical table's ``table`` (in the database) and ``key`` (its primary key, as
``fieldName``).

>>> source = DataSource.model_validate({"name": "shop", "fields": [{"fieldCaption": "Sales", "fieldRole": "MEASURE"}]})
>>> source.field("sales"), source.field_any_case("sales").fieldCaption
(None, 'Sales')

Not covered: groups, sets, combined fields and images, whose records are kept and given no meaning.

>>> fits("AVG", "STRING"), fits("COUNTD", "STRING"), result_type("YEAR", "DATE")
(False, True, 'INTEGER')
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nl2sql.errors import UsageError, one_line
from nl2sql.machine import from_yaml
from nl2sql.vizql.autofix import LEAST, did_you_mean
from nl2sql.vizql.query import AGGREGATES, DATE_PARTS, DATE_TRUNCATIONS, LANGUAGE

DataType: TypeAlias = Literal[
    "INTEGER", "REAL", "STRING", "DATETIME", "BOOLEAN", "DATE", "SPATIAL", "UNKNOWN", "UNSPECIFIED"
]
NUMBERS, DATES, UNKNOWN = ("INTEGER", "REAL"), ("DATE", "DATETIME"), ("UNKNOWN", "UNSPECIFIED")
LARGEST = 10_000_000  # characters of a YAML file


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class FieldMetadata(_Record):
    """A field: its caption, which queries name, and its ``fieldName``, which the database or a formula stands behind.

    ``remoteFieldName`` and ``remoteTableName`` are the column and table of the database where they are not
    ``fieldName`` and the logical table's.
    """

    fieldCaption: str = Field(min_length=1)
    fieldName: str = ""
    dataType: DataType = "UNKNOWN"
    fieldRole: Literal["MEASURE", "DIMENSION", "UNKNOWN", "UNSPECIFIED"] = "UNKNOWN"
    fieldType: Literal["CONTINUOUS", "NOMINAL", "ORDINAL", "UNKNOWN", "UNSPECIFIED"] = "UNKNOWN"
    defaultAggregation: str = "NONE"
    columnClass: Literal["COLUMN", "BIN", "GROUP", "CALCULATION", "TABLE_CALCULATION", "UNSPECIFIED"] = "COLUMN"
    formula: str = ""
    logicalTableId: str = ""
    description: str = ""
    hidden: bool = False
    aliases: tuple[dict[str, Any], ...] = ()  # {"member": value in the database, "value": what is shown}
    remoteFieldName: str = ""
    remoteTableName: str = ""

    @property
    def column(self) -> str:
        """The column behind the field, by its name in the database; of a calculation, there is none."""
        return self.remoteFieldName or self.fieldName or self.fieldCaption

    @property
    def is_aggregate(self) -> bool:
        """Is it a calculation that aggregates by itself, so that it needs no function?"""
        return self.columnClass == "CALCULATION" and self.defaultAggregation == "AGG"


class LogicalTable(_Record):
    """A table of the data source; ``table`` is its name in the database (empty: the caption)."""

    logicalTableId: str
    caption: str
    description: str = ""
    table: str = ""
    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The table of the database."""
        return self.table or self.caption


class _Endpoint(_Record):
    logicalTableId: str


class RelationshipItem(_Record):
    """One comparison of a relationship; a field stands in brackets, by its ``fieldName``: ``[Order ID]``."""

    operator: str = "="
    fromField: str
    toField: str


class RelationshipExpression(_Record):
    """All comparisons of a relationship."""

    op: str = "AND"
    relationships: tuple[RelationshipItem, ...]


class LogicalTableRelationship(_Record):
    """Which two tables go together, and by which fields."""

    fromLogicalTable: _Endpoint
    toLogicalTable: _Endpoint
    expression: RelationshipExpression | None = None

    @property
    def ends(self) -> tuple[str, str]:
        """The ids of the two tables: the one that refers, and the other."""
        return self.fromLogicalTable.logicalTableId, self.toLogicalTable.logicalTableId

    def field_pairs(self) -> tuple[tuple[str, str], ...]:
        """The fields that must be equal, as (from, to) ``fieldName``; empty where other operators are among them."""
        items = self.expression.relationships if self.expression else ()
        if any(item.operator != "=" for item in items) or (self.expression and self.expression.op.upper() != "AND"):
            return ()
        return tuple((unbracketed(item.fromField), unbracketed(item.toField)) for item in items)


class ParameterRecord(_Record):
    """A parameter of the data source, as ``read-metadata`` describes it."""

    parameterCaption: str
    parameterType: Literal["ANY_VALUE", "LIST", "QUANTITATIVE_RANGE", "QUANTITATIVE_DATE", "UNSPECIFIED"] = "ANY_VALUE"
    parameterName: str = ""
    dataType: DataType = "UNKNOWN"
    value: Any = None
    members: tuple[dict[str, Any], ...] = ()
    min: int | float | None = None
    max: int | float | None = None
    step: int | float | None = None
    minDate: str | None = None
    maxDate: str | None = None


class DataSource(BaseModel):
    """A published data source: fields, logical tables with their relationships, hierarchies, parameters.

    ``field`` looks a caption up as it is written, ``field_any_case`` without regard to case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = ""
    luid: str = ""  # of the published data source; a draft without one is completed with it
    fields: tuple[FieldMetadata, ...] = Field(min_length=1)
    logicalTables: tuple[LogicalTable, ...] = ()
    logicalTableRelationships: tuple[LogicalTableRelationship, ...] = ()
    hierarchies: dict[str, tuple[str, ...]] = {}
    parameters: tuple[ParameterRecord, ...] = ()

    @cached_property
    def _by(self) -> dict[tuple[str, str], FieldMetadata]:
        """The first field of each caption, caption in any case, and ``fieldName``."""
        by: dict[tuple[str, str], FieldMetadata] = {}
        for field in self.fields:
            caption, folded, name = field.fieldCaption, field.fieldCaption.casefold(), field.fieldName
            for key in (("caption", caption), ("folded", folded), ("name", name)):
                by.setdefault(key, field)
        return by

    @property
    def captions(self) -> tuple[str, ...]:
        """Every field's caption, in the data source's order."""
        return tuple(field.fieldCaption for field in self.fields)

    @property
    def enriched(self) -> bool:
        """Does it know measures from dimensions? Without that, only names can be checked."""
        return any(field.fieldRole in ("MEASURE", "DIMENSION") for field in self.fields)

    def field(self, caption: str) -> FieldMetadata | None:
        """The field of exactly this caption."""
        return self._by.get(("caption", caption))

    def field_any_case(self, caption: str) -> FieldMetadata | None:
        """The field of this caption, upper or lower case."""
        return self.field(caption) or self._by.get(("folded", caption.strip().casefold()))

    def field_named(self, name: str) -> FieldMetadata | None:
        """The field of this ``fieldName``."""
        return self._by.get(("name", name)) if name else None

    def meant(self, name: str, by_name: bool) -> FieldMetadata | None:
        """The field that a query names: by its ``fieldName`` alone, or by its caption, upper or lower case."""
        return self.field_named(name) if by_name else self.field_any_case(name)

    def table(self, logical_table_id: str) -> LogicalTable | None:
        """The logical table of this id."""
        return next((t for t in self.logicalTables if t.logicalTableId == logical_table_id), None)

    def table_of(self, field: FieldMetadata) -> str:
        """The table of the database that a field's column is in; "" where it is not known."""
        logical = self.table(field.logicalTableId)
        return field.remoteTableName or (logical.name if logical else "")

    def parameter(self, caption: str) -> ParameterRecord | None:
        """The parameter of exactly this caption."""
        return next((p for p in self.parameters if p.parameterCaption == caption), None)

    def like(self, caption: str, *, least: float = LEAST) -> list[tuple[str, float]]:
        """The captions that may have been meant, with their likeness, best first; hidden fields are none."""
        return did_you_mean(caption, [f.fieldCaption for f in self.fields if not f.hidden], least=least)


def together(pairs: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    """The sets of names that pairs of equal, or of related, ones make.

    >>> together([("a", "b"), ("c", "d"), ("b", "e")]) == {frozenset("abe"), frozenset("cd")}
    True
    """
    classes: set[frozenset[str]] = set()
    for pair in pairs:
        touched = {names for names in classes if names & {*pair}}
        classes = (classes - touched) | {frozenset(pair).union(*touched)}
    return classes


def unbracketed(reference: str) -> str:
    """The name in a reference of Tableau's: ``[Order ID]`` is ``Order ID``."""
    return reference[1:-1] if reference.startswith("[") and reference.endswith("]") else reference


def read_source(path: str | Path) -> DataSource:
    """The data source that a YAML file describes (``to_yaml`` writes one).

    Raises UsageError for a file that is missing or unreadable, and for what is no data source.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8"
        hint = "write one with: nl2sql data vizql infer --db FILE.sqlite --out FILE.yaml"
        raise UsageError(f"cannot read the data source {str(path)!r} ({said}); {hint}") from None
    if len(text) > LARGEST:
        raise UsageError(f"the data source {str(path)!r} has {len(text):,} characters; expected at most {LARGEST:,}")
    try:
        source = source_from(from_yaml(text), str(path))
    except yaml.YAMLError as error:
        raise UsageError(f"{str(path)!r} is not YAML: {one_line(error, 200)}") from None
    if source.fields and not source.logicalTables and not any(f.dataType != "UNKNOWN" for f in source.fields):
        hint = "is it a query? A data source is written by: nl2sql data vizql infer --db FILE.sqlite --out FILE.yaml"
        raise UsageError(f"{str(path)!r} is no data source: no field has a dataType; {hint}")
    return source


def source_from(data: Any, origin: str, *, names_once: bool = True) -> DataSource:
    """The data source in plain data, ``origin`` naming it in errors. Raises UsageError where it is none.

    names_once: a second field or table of one name is refused, since no query can ask it; a service may have it.
    """
    if not isinstance(data, dict):
        raise UsageError(f"{origin!r} is no data source; expected a mapping with 'fields' (docs/vizql.md)")
    try:
        source = DataSource.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{origin!r} is no data source: {where}: {one_line(first['msg'], 200)}") from None
    except RecursionError:
        raise UsageError(f"{origin!r} is no data source: it is nested too deeply") from None
    unknown = [(field.fieldCaption, key) for field in source.fields for key in field.model_extra or {}]
    for caption, key in unknown:
        near = did_you_mean(key, FieldMetadata.model_fields)[0][0]
        if near.lower() == key.lower():
            raise UsageError(f"{origin!r}: field {caption!r} has a key {key!r}; did you mean {near!r}?")
    if names_once and (said := _named_twice(source)):
        raise UsageError(f"{origin!r}: {said}; give each a name of its own")
    return source


def _named_twice(source: DataSource) -> str:
    """Which two fields have one caption or ``fieldName``, or which tables one id; "" for none."""
    of = [(field, source.table_of(field) or field.logicalTableId) for field in source.fields]
    names = [("fieldCaption", field.fieldCaption, where) for field, where in of]
    names += [("fieldName", field.fieldName, where) for field, where in of if field.fieldName]
    names += [("logicalTableId", table.logicalTableId, table.caption) for table in source.logicalTables]
    seen: dict[tuple[str, str], str] = {}
    for key, name, where in names:
        if (key, name) in seen:
            return f"{key} {name!r} is given twice (in tables {seen[key, name]!r} and {where!r})"
        seen[key, name] = where
    return ""


def to_yaml(source: DataSource) -> str:
    """The YAML of a data source; ``read_source`` gives the same data source back."""
    data = source.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


# ------------------------------------------------------------------ the service's own descriptions


def from_metadata(metadata: Any, model: Any = None, *, name: str = "", luid: str = "") -> DataSource:
    """The data source of two answers of the service.

    metadata: the JSON of ``read-metadata``. model: of ``get-datasource-model``, for tables and relationships.
    Raises UsageError where either is something else.
    """
    if not isinstance(metadata, dict) or not isinstance(metadata.get("data"), list):
        raise UsageError("this is no answer of read-metadata; expected an object with a list 'data'")
    if model is not None and not isinstance(model, dict):
        raise UsageError("this is no answer of get-datasource-model; expected an object with 'logicalTables'")
    extra = metadata.get("extraData") or {}
    data = {key: value for key, value in (("name", name), ("luid", luid)) if value} | {"fields": metadata["data"]}
    for answer, keys in ((extra, ("parameters",)), (model or {}, ("logicalTables", "logicalTableRelationships"))):
        data |= {key: answer[key] for key in keys if isinstance(answer, dict) and key in answer}
    return source_from(data, "read-metadata", names_once=False)  # a query with such a name is warned of


def to_metadata(source: DataSource) -> dict[str, Any]:
    """What ``read-metadata`` answers for this data source."""
    data = source.model_dump(mode="json", exclude_unset=True)
    more = {"extraData": {"parameters": data["parameters"]}} if "parameters" in data else {}
    return {"data": data["fields"], **more}


# ----------------------------------------------------------------- which functions a field can have
# Source: the service's documentation of functions by data type, as Tableau's own MCP server holds
# it, with date parts for dates and COLLECT for places; of functions in formulas, Tableau's list by
# category. Not covered: ATTR as a function of a field, which the service's list does not have.

_COUNTS = frozenset({"COUNT", "COUNTD"})
_ORDERED = _COUNTS | {"MIN", "MAX"}
_NUMERIC = frozenset(AGGREGATES)
_OF_DATES = DATE_PARTS | DATE_TRUNCATIONS
FUNCTIONS_OF = {
    **dict.fromkeys(NUMBERS, _NUMERIC),
    **dict.fromkeys(("STRING", "BOOLEAN"), _ORDERED),
    **dict.fromkeys(DATES, _ORDERED | _OF_DATES),
    "SPATIAL": frozenset({"COUNT", "COLLECT"}),
}
ON_DIMENSIONS = _ORDERED | _OF_DATES  # what the specification forbids and vizql.strict=false allows
IN_FORMULAS = frozenset({*LANGUAGE["formulaFunctions"].upper().split(), *_NUMERIC, *DATE_PARTS, "COLLECT"})
_FAMILIES = tuple(LANGUAGE["formulaFamilies"])
_RANKED = ("SUM", "AVG", "COUNTD", "COUNT", "MAX", "MIN", "YEAR")


def fits(function: str, data_type: str) -> bool:
    """Can this function be applied to a field of this type? An unknown type takes any."""
    return function in FUNCTIONS_OF.get(data_type, {function})


def result_type(function: str | None, data_type: str) -> str:
    """The type of a function's values; without a function, the field's own."""
    if function is None or function in ("MIN", "MAX", "COLLECT", "AGG"):
        return data_type
    if function in _COUNTS | DATE_PARTS:
        return "INTEGER"
    return data_type if function in DATE_TRUNCATIONS else "REAL"


def is_known(function: str) -> bool:
    """Does the language of formulas have a function of this name?"""
    return function.upper() in IN_FORMULAS or function.upper().startswith(_FAMILIES)


def groups(function: str | None) -> bool:
    """Is a result grouped by a field with this function, and not aggregated?"""
    return function is None or function in _OF_DATES


def likely_functions(field: FieldMetadata) -> list[str]:
    """The functions that a field can have, its default one first, then the most usual."""
    ranked = dict.fromkeys((field.defaultAggregation, *_RANKED))
    return [name for name in ranked if name not in ("NONE", "UNSPECIFIED", "AGG") and fits(name, field.dataType)]
