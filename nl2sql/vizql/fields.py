"""The fields of a structured query, one model per kind: dimension, measure, calculation, bin, table calculation.

The names are the service's own (VizQL Data Service, OpenAPI 20261 and Python models 20263). A kind is told by its
keys, and a key that the kind does not know is an error.

>>> field_kind({"fieldCaption": "Sales", "function": "SUM"})
'measure'
>>> MeasureField.model_validate({"fieldCaption": "Sales", "function": "SUM"}).function
'SUM'

Not covered: rules between fields, and what only a data source knows (``rules``, ``semantics``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticCustomError

# fmt: off
Function: TypeAlias = Literal[
    "SUM", "AVG", "MEDIAN", "COUNT", "COUNTD", "MIN", "MAX", "STDEV", "VAR", "COLLECT", "AGG",
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY",
    "TRUNC_YEAR", "TRUNC_QUARTER", "TRUNC_MONTH", "TRUNC_WEEK", "TRUNC_DAY",
]
# fmt: on
FUNCTIONS: tuple[str, ...] = get_args(Function)
DATE_PARTS = frozenset({"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"})
DATE_TRUNCATIONS = frozenset(f"TRUNC_{part}" for part in DATE_PARTS)
NO_FUNCTIONS = frozenset({"NONE", "UNSPECIFIED"})  # in the service's list, and they name none
SortDirection: TypeAlias = Literal["ASC", "DESC"]
Aggregation: TypeAlias = Literal["SUM", "AVG", "MIN", "MAX", "UNSPECIFIED"]  # UNSPECIFIED: since 20263
Caption: TypeAlias = Annotated[str, Field(min_length=1)]


def _whole_as_it_is(value: Any, read: Callable[[Any], float]) -> float:
    number = read(value)
    return value if isinstance(value, int) else number


def _same(value: float) -> float:
    return value


# a finite number; a whole one stays an int, since a float has no digits for 2**53 + 1
Number: TypeAlias = Annotated[float, WrapValidator(_whole_as_it_is), PlainSerializer(_same, return_type=int | float)]


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


class _Named(Part):
    fieldCaption: Caption
    fieldAlias: Caption | None = None
    maxDecimalPlaces: int | None = Field(None, ge=0)
    sortDirection: SortDirection | None = None
    sortPriority: int | None = Field(None, ge=1)

    @field_validator("fieldCaption", "fieldAlias")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        return not_blank(value)


def not_blank(value: str | None) -> str | None:
    """``value``; a text of blanks only is an error of pydantic's."""
    if value is not None and not value.strip():
        raise PydanticCustomError("string_too_short", "the text is blank")
    return value


class DimensionField(_Named):
    """A field of the data source as it is: the result is grouped by it."""


class MeasureField(_Named):
    """A field with a function: an aggregate, or a part of a date, by which the result is grouped."""

    function: Function


class CalculatedField(_Named):
    """A field of the query's own: a Tableau formula under a new caption."""

    calculation: Caption


class BinField(_Named):
    """A number cut into bins of one size, by which the result is grouped."""

    binSize: Annotated[Number, Field(ge=1)]


# ---------------------------------------------------------------------------------------------- table calculations


class FieldReference(Part):
    """A field of the query that a table calculation runs along."""

    fieldCaption: Caption
    function: Function | None = None


class CustomSort(Part):
    """The order in which a table calculation runs."""

    fieldCaption: Caption
    function: Function
    direction: SortDirection


class _TableCalculation(Part):
    dimensions: list[FieldReference]


class CustomTableCalculation(_TableCalculation):
    """``CUSTOM``: the calculation stands in the field."""

    tableCalcType: Literal["CUSTOM"]
    levelAddress: FieldReference | None = None
    restartEvery: FieldReference | None = None
    customSort: CustomSort | None = None


class NestedTableCalculation(_TableCalculation):
    """``NESTED``: one inside the calculation of another, told by its caption."""

    tableCalcType: Literal["NESTED"]
    fieldCaption: Caption
    levelAddress: FieldReference | None = None
    restartEvery: FieldReference | None = None
    customSort: CustomSort | None = None


class DifferenceTableCalculation(_TableCalculation):
    """The difference from another row, or a per cent of it."""

    tableCalcType: Literal["DIFFERENCE_FROM", "PERCENT_DIFFERENCE_FROM", "PERCENT_FROM"]
    levelAddress: FieldReference | None = None
    relativeTo: Literal["PREVIOUS", "NEXT", "FIRST", "LAST", "UNSPECIFIED"] | None = None
    customSort: CustomSort | None = None


class PercentOfTotalTableCalculation(_TableCalculation):
    """The per cent of the total."""

    tableCalcType: Literal["PERCENT_OF_TOTAL"]
    levelAddress: FieldReference | None = None
    customSort: CustomSort | None = None


class RankTableCalculation(_TableCalculation):
    """The rank among the rows."""

    tableCalcType: Literal["RANK"]
    rankType: Literal["COMPETITION", "MODIFIED COMPETITION", "DENSE", "UNIQUE", "UNSPECIFIED"] | None = None
    direction: SortDirection | None = None


class PercentileTableCalculation(_TableCalculation):
    """The percentile among the rows."""

    tableCalcType: Literal["PERCENTILE"]
    direction: SortDirection | None = None


class RunningTotalTableCalculation(_TableCalculation):
    """An aggregate of the rows so far."""

    tableCalcType: Literal["RUNNING_TOTAL"]
    aggregation: Aggregation | None = None
    restartEvery: FieldReference | None = None
    customSort: CustomSort | None = None
    secondaryTableCalculation: TableCalculation | None = None


class MovingTableCalculation(_TableCalculation):
    """An aggregate of the rows around."""

    tableCalcType: Literal["MOVING_CALCULATION"]
    aggregation: Aggregation | None = None
    previous: int | None = None
    next: int | None = None
    includeCurrent: bool | None = None
    fillInNull: bool | None = None
    customSort: CustomSort | None = None
    secondaryTableCalculation: TableCalculation | None = None


TableCalculation: TypeAlias = Annotated[
    CustomTableCalculation
    | NestedTableCalculation
    | DifferenceTableCalculation
    | PercentOfTotalTableCalculation
    | RankTableCalculation
    | PercentileTableCalculation
    | RunningTotalTableCalculation
    | MovingTableCalculation,
    Field(discriminator="tableCalcType"),
]


class TableCalcField(_Named):
    """A field computed over the rows of the result. Valid here; not everything that is valid is executable here."""

    nullable: ClassVar[frozenset[str]] = frozenset({"nestedTableCalculations"})
    function: Function | None = None
    calculation: Caption | None = None
    tableCalculation: TableCalculation
    nestedTableCalculations: list[TableCalculation] | None = None


RunningTotalTableCalculation.model_rebuild()
MovingTableCalculation.model_rebuild()
TableCalcField.model_rebuild()

# ------------------------------------------------------------------------------------------------ which kind it is

_KINDS = (  # the first key that is there decides
    ("tableCalculation", "table_calculation"),
    ("binSize", "bin"),
    ("calculation", "calculation"),
    ("function", "measure"),
)


def field_kind(data: Any) -> str:
    """The kind of a field's JSON, or of its model, by its keys; without any of them a dimension."""
    keys = data if isinstance(data, dict) else type(data).model_fields if isinstance(data, Part) else ()
    return next((kind for key, kind in _KINDS if key in keys), "dimension")


def _tag(data: Any) -> str:
    return f"~{field_kind(data)}"  # no key begins so: pydantic puts tags among the keys of an error's place


QueryField: TypeAlias = Annotated[
    Annotated[DimensionField, Tag("~dimension")]
    | Annotated[MeasureField, Tag("~measure")]
    | Annotated[CalculatedField, Tag("~calculation")]
    | Annotated[BinField, Tag("~bin")]
    | Annotated[TableCalcField, Tag("~table_calculation")],
    Discriminator(_tag),
]
FIELD_MODELS: dict[str, type[_Named]] = {
    "dimension": DimensionField,
    "measure": MeasureField,
    "calculation": CalculatedField,
    "bin": BinField,
    "table_calculation": TableCalcField,
}
