"""The filters of a structured query, one model per ``filterType``, and what a filter is about.

>>> data = {"field": {"fieldCaption": "Region"}, "filterType": "SET", "values": ["West", None]}
>>> SetFilter.model_validate(data).values
['West', None]

Which values go together (both ends of a RANGE, the n of LASTN) is in ``rules``. Not covered: what only a data source
knows (``semantics``).
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from nl2sql.vizql.fields import Caption, Function, Number, Part, not_blank

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Scalar: TypeAlias = str | int | Finite | bool | None
_FULL_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?", re.ASCII)


def is_full_date(text: str) -> bool:
    """Is ``text`` a date of RFC 3339 (``full-date``: YYYY-MM-DD) that the calendar has?"""
    try:
        return bool(_FULL_DATE.fullmatch(text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def is_moment(text: str) -> bool:
    """Is ``text`` a date of the calendar, alone or with a time (RFC 3339 ``date-time``; seconds and zone may lack)?"""
    if is_full_date(text):
        return True
    try:
        return bool(_MOMENT.fullmatch(text)) and bool(datetime.datetime.fromisoformat(text))
    except ValueError:
        return False


def _full_date(text: str) -> str:
    if not is_full_date(text):
        raise PydanticCustomError("date", "not a date of RFC 3339 (YYYY-MM-DD)")
    return text


FullDate: TypeAlias = Annotated[str, AfterValidator(_full_date)]


class _Captioned(Part):
    fieldCaption: Caption

    @field_validator("fieldCaption")
    @classmethod
    def _not_blank(cls, value: str) -> str | None:
        return not_blank(value)


class DimensionFilterField(_Captioned):
    """A filter on a field's own values."""


class MeasureFilterField(_Captioned):
    """A filter on a function of a field."""

    function: Function


class CalculatedFilterField(Part):
    """A filter on a Tableau formula."""

    calculation: Caption


def filter_field_kind(data: Any) -> str:
    """The kind of a filter's field, by its keys; the names are those of ``fields.field_kind``."""
    keys = data if isinstance(data, dict) else type(data).model_fields if isinstance(data, Part) else ()
    return "calculation" if "calculation" in keys else "measure" if "function" in keys else "dimension"


def _tag(data: Any) -> str:
    return f"~{filter_field_kind(data)}"


FilterField: TypeAlias = Annotated[
    Annotated[DimensionFilterField, Tag("~dimension")]
    | Annotated[MeasureFilterField, Tag("~measure")]
    | Annotated[CalculatedFilterField, Tag("~calculation")],
    Discriminator(_tag),
]


class _Filter(Part):
    field: FilterField
    context: bool | None = None


class SetFilter(_Filter):
    """Only these values, or all but these."""

    filterType: Literal["SET"]
    values: list[Scalar] = Field(min_length=1)
    exclude: bool | None = None


class MatchFilter(_Filter):
    """Texts that begin, end with, or contain others; all that are given must hold."""

    filterType: Literal["MATCH"]
    contains: Caption | None = None
    startsWith: Caption | None = None
    endsWith: Caption | None = None
    exclude: bool | None = None


class _Quantitative(_Filter):
    quantitativeFilterType: Literal["RANGE", "MIN", "MAX", "ONLY_NULL", "ONLY_NON_NULL"]
    includeNulls: bool | None = None


class QuantitativeNumericalFilter(_Quantitative):
    """Numbers from ``min`` to ``max``, both included."""

    filterType: Literal["QUANTITATIVE_NUMERICAL"]
    min: Number | None = None
    max: Number | None = None


class QuantitativeDateFilter(_Quantitative):
    """Dates from ``minDate`` to ``maxDate``, both included."""

    filterType: Literal["QUANTITATIVE_DATE"]
    minDate: FullDate | None = None
    maxDate: FullDate | None = None


class RelativeDateFilter(_Filter):
    """Dates of a period around ``anchorDate``; without one, around today."""

    filterType: Literal["DATE"]
    periodType: Literal["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS", "QUARTERS", "YEARS"]
    dateRangeType: Literal["CURRENT", "LAST", "LASTN", "NEXT", "NEXTN", "TODATE"]
    rangeN: int | None = Field(None, ge=1)
    anchorDate: FullDate | None = None
    includeNulls: bool | None = None


class TopNFilter(_Filter):
    """The ``howMany`` values of a dimension with the most, or least, of a measure."""

    filterType: Literal["TOP"]
    howMany: int = Field(ge=1)
    fieldToMeasure: FilterField
    direction: Literal["TOP", "BOTTOM"] | None = None


class Condition(_Captioned):
    """A function of a field, compared with a number or a date."""

    function: Function
    comparison: Literal["=", "<>", "<", "<=", ">", ">="]
    value: str | int | Finite


class ConditionFilter(_Filter):
    """The values of a dimension for which a condition, or a Tableau formula, holds."""

    filterType: Literal["CONDITION"]
    condition: Condition | None = None
    calculation: Caption | None = None


QueryFilter: TypeAlias = Annotated[
    SetFilter
    | MatchFilter
    | QuantitativeNumericalFilter
    | QuantitativeDateFilter
    | RelativeDateFilter
    | TopNFilter
    | ConditionFilter,
    Field(discriminator="filterType"),
]
FILTER_MODELS: dict[str, type[_Filter]] = {
    "SET": SetFilter,
    "MATCH": MatchFilter,
    "QUANTITATIVE_NUMERICAL": QuantitativeNumericalFilter,
    "QUANTITATIVE_DATE": QuantitativeDateFilter,
    "DATE": RelativeDateFilter,
    "TOP": TopNFilter,
    "CONDITION": ConditionFilter,
}
