"""Which functions a field can have, by its data type and role.

>>> fits("AVG", "STRING"), fits("COUNTD", "STRING"), result_type("YEAR", "DATE")
(False, True, 'INTEGER')

Source: the service's documentation of functions by data type, as Tableau's own MCP server holds it, with date parts
for dates and COLLECT for places. Not covered: ATTR, which the service's list does not have.
"""

from __future__ import annotations

from nl2sql.vizql.fields import DATE_PARTS, DATE_TRUNCATIONS
from nl2sql.vizql.source import FieldMetadata

_COUNTS = frozenset({"COUNT", "COUNTD"})
_ORDERED = _COUNTS | {"MIN", "MAX"}
_NUMERIC = _ORDERED | {"SUM", "AVG", "MEDIAN", "STDEV", "VAR"}
_OF_DATES = DATE_PARTS | DATE_TRUNCATIONS
FUNCTIONS_OF = {
    "INTEGER": _NUMERIC,
    "REAL": _NUMERIC,
    "STRING": _ORDERED,
    "BOOLEAN": _ORDERED,
    "DATE": _ORDERED | _OF_DATES,
    "DATETIME": _ORDERED | _OF_DATES,
    "SPATIAL": frozenset({"COUNT", "COLLECT"}),
}
ON_DIMENSIONS = _ORDERED | _OF_DATES  # what the specification forbids and vizql.strict=false allows
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


def groups(function: str | None) -> bool:
    """Is a result grouped by a field with this function, and not aggregated?"""
    return function is None or function in _OF_DATES


def likely_functions(field: FieldMetadata) -> list[str]:
    """The functions that a field can have, its default one first, then the most usual."""
    ranked = dict.fromkeys((field.defaultAggregation, *_RANKED))
    return [name for name in ranked if name not in ("NONE", "UNSPECIFIED", "AGG") and fits(name, field.dataType)]
