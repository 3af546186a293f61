"""The filters of a query held to its data source: is there the field, and is it of the filter's type?

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate(
...     {"fields": [{"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL"}]}
... )
>>> part = {"field": {"fieldCaption": "Sales"}, "filterType": "MATCH", "contains": "1"}
>>> [error.message for error in filter_errors(Checked({"fields": [], "filters": [part]}, source), ("filters", 0))]
["A MATCH filter needs a STRING field; 'Sales' is REAL"]

A measure without a function is filtered row by row. Not covered: the types of formulas; whether values exist
(``values``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nl2sql.vizql.filters import is_full_date, is_moment
from nl2sql.vizql.functions import groups, likely_functions, result_type
from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import Change, Place, QueryError, part_at, shown
from nl2sql.vizql.rules import field_name
from nl2sql.vizql.semantics import formula_errors, role_errors
from nl2sql.vizql.shape import nearest_date
from nl2sql.vizql.source import FieldMetadata

NUMBERS, DATES = ("INTEGER", "REAL"), ("DATE", "DATETIME")
_NEEDS = {
    "MATCH": ("STRING",),
    "QUANTITATIVE_NUMERICAL": NUMBERS,
    "QUANTITATIVE_DATE": DATES,
    "DATE": DATES,
}
_ANY = ("UNKNOWN", "UNSPECIFIED", "SPATIAL")
_OF_DIMENSIONS = ("TOP", "CONDITION")


def filter_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    """What is wrong with the filter at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    known = None
    if "calculation" in part["field"]:
        yield from formula_errors(checked, (*place, "field", "calculation"))
    else:
        known, errors = checked.look_up((*place, "field"))
        yield from errors
    if known is not None and checked.semantic:
        yield from role_errors(checked, (*place, "field"), known)
        yield from _kind_errors(checked, place, known)
        yield from _set_errors(checked, place, known)
    if "calculation" in part:
        yield from formula_errors(checked, (*place, "calculation"), aggregate=True, kind="BOOLEAN")
    if "fieldToMeasure" in part:
        yield from _measured(checked, (*place, "fieldToMeasure"))
    if "condition" in part:
        yield from _condition_errors(checked, (*place, "condition"))


def type_at(checked: Checked, place: Place, known: FieldMetadata) -> str:
    """The type of what a filter's field at ``place`` gives."""
    return result_type(part_at(checked.query, place).get("function"), known.dataType)


def _kind_errors(checked: Checked, place: Place, known: FieldMetadata) -> Iterator[QueryError]:
    part = part_at(checked.query, place)
    kind, name = part["filterType"], field_name(part["field"])
    away = checked.way((*place, "field"), f"Remove the filter on {name}", Change(place), likelihood=0.3)
    if known.columnClass in ("BIN", "GROUP"):
        said = "bin" if known.columnClass == "BIN" else "group"
        yield QueryError("filter_type", place, f"The {said} {name} cannot be filtered", (away,))
        return
    given = type_at(checked, (*place, "field"), known)
    wanted = _NEEDS.get(kind, (given,))
    if given not in wanted and given not in _ANY:
        message = f"A {kind} filter needs a {' or '.join(wanted)} field; {name} is {given}"
        yield QueryError("filter_type", place, message, (*_other_fields(checked, place, wanted), away))
    function = part["field"].get("function")
    if kind in _OF_DIMENSIONS and not (groups(function) and known.fieldRole != "MEASURE"):
        message = f"A {kind} filter picks values of a dimension; {name} is a measure"
        yield QueryError("filter_type", place, message, (away,))


def _other_fields(checked: Checked, place: Place, wanted: tuple[str, ...]) -> list[Any]:
    """The field of a right type whose caption is most alike."""
    caption = part_at(checked.query, (*place, "field", "fieldCaption"))
    fitting = [known for known in checked.source.fields if known.dataType in wanted and not known.hidden]
    names = [checked.name_of(known) for known in fitting]
    alike = [name for name, _ in checked.source.like(caption, least=0.0) if name in names]
    best = alike[:1] or names[:1]
    text = "Filter another field: {json}"
    return [checked.way(place, text, Change((*place, "field"), {"fieldCaption": n}), likelihood=0.4) for n in best]


def _set_errors(checked: Checked, place: Place, known: FieldMetadata) -> Iterator[QueryError]:
    part = part_at(checked.query, place)
    if part["filterType"] != "SET":
        return
    given = type_at(checked, (*place, "field"), known)
    for i, value in enumerate(part["values"]):
        if value is None or _is_of(value, given):
            continue
        here = (*place, "values", i)
        meant = _meant(value, given)
        ways = [checked.way(place, f"Write {shown(meant)}: {{json}}", Change(here, meant))] if meant is not None else []
        if len(part["values"]) > 1:
            ways.append(checked.way(place, f"Remove {shown(value)}: {{json}}", Change(here), likelihood=0.4))
        message = f"Value {shown(value)} does not fit {given} field {field_name(part['field'])}"
        yield QueryError("value_type", here, message, tuple(ways))


def _is_of(value: Any, kind: str) -> bool:
    if kind in _ANY:
        return True
    if kind == "BOOLEAN":
        return isinstance(value, bool)
    if kind in NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) and (kind not in DATES or (is_full_date if kind == "DATE" else is_moment)(value))


def _meant(value: Any, kind: str) -> Any:
    """``value`` as it is written for this type; None where it says nothing of the kind."""
    text = str(value).strip()
    if kind == "BOOLEAN":
        return {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}.get(text.lower())
    if kind in DATES:
        return nearest_date(value)
    if kind == "STRING":
        return "True" if value is True else "False" if value is False else text
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return None


def _measured(checked: Checked, place: Place) -> Iterator[QueryError]:
    part = part_at(checked.query, place)
    if "calculation" in part:
        yield from formula_errors(checked, (*place, "calculation"), aggregate=True)
        return
    known, errors = checked.look_up(place)
    yield from errors
    if known is None or not checked.semantic:
        return
    yield from role_errors(checked, place, known)
    if "function" not in part and not known.is_aggregate:
        name, text = checked.name_of(known), f"Add aggregation to '{checked.name_of(known)}': {{json}}"
        names = [n for n in likely_functions(known) if not groups(n)][:1]
        ways = tuple(checked.way(place, text, Change((*place, "function"), n)) for n in names)
        said = "MEASURE" if known.fieldRole == "MEASURE" else "fieldToMeasure"
        yield QueryError("measure", place, f"{said} field '{name}' requires aggregation function", ways)


def _condition_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    known, errors = checked.look_up(place)
    yield from errors
    if known is None or not checked.semantic:
        return
    yield from role_errors(checked, place, known)
    value, given = part_at(checked.query, (*place, "value")), type_at(checked, place, known)
    if given in NUMBERS + DATES and not _is_of(value, given):
        meant = _meant(value, given)
        text = f"Write {shown(meant)}: {{json}}"
        ways = (checked.way(place, text, Change((*place, "value"), meant)),) if meant is not None else ()
        message = f"Value {shown(value)} does not fit {given} field '{checked.name_of(known)}'"
        yield QueryError("value_type", (*place, "value"), message, ways)
