"""Which functions a field can have, by its data type and role.

>>> fits("AVG", "STRING"), fits("COUNTD", "STRING"), result_type("YEAR", "DATE")
(False, True, 'INTEGER')

Source: the service's documentation of functions by data type, as Tableau's own MCP server holds it, with date parts
for dates and COLLECT for places; of functions in formulas, Tableau's list by category. Not covered: ATTR as a function
of a field, which the service's list does not have.
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
_IN_FORMULAS = """
    abs acos asin atan atan2 ceiling cos cot degrees div exp floor hexbinx hexbiny ln log pi power radians round sign
    sin sqrt square tan zn ascii char contains endswith find findnth left len lower ltrim mid proper replace right rtrim
    space split startswith trim upper regexp_extract regexp_extract_nth regexp_match regexp_replace date datetime float
    int str dateadd datediff datename dateparse datepart datetrunc isdate isoquarter isoweek isoweekday isoyear makedate
    makedatetime maketime now today ifnull iif isnull attr corr covar covarp percentile stdevp varp fullname isfullname
    ismemberof isusername userdomain username userattribute userattributeincludes first index last lookup previous_value
    rank rank_dense rank_modified rank_percentile rank_unique size total area buffer difference distance intersection
    intersects length makeline makepoint outline shapetype symdifference union validate host domain tld parse_url
    parse_url_query group_concat log2"""
IN_FORMULAS = frozenset({*_IN_FORMULAS.upper().split(), *_NUMERIC, *DATE_PARTS, "COLLECT"})
_FAMILIES = ("RUNNING_", "WINDOW_", "MODEL_", "SCRIPT_", "RAWSQL", "XPATH_", "GET_")
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
