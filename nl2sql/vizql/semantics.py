"""A query's fields and filters held to its data source: roles, functions, formulas, types.

The wording is the specification's where it gives one: "MEASURE field 'Sales' requires aggregation function".

>>> from nl2sql.vizql.source import DataSource
>>> field = {"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL", "defaultAggregation": "SUM"}
>>> source = DataSource.model_validate({"fields": [field]})
>>> [error] = field_errors(Checked({"fields": [{"fieldCaption": "Sales"}]}, source), ("fields", 0))
>>> error.message, error.suggestions[0].snippet
("MEASURE field 'Sales' requires aggregation function", '{"fieldCaption": "Sales", "function": "SUM"}')

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate(
...     {"fields": [{"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL"}]}
... )
>>> part = {"field": {"fieldCaption": "Sales"}, "filterType": "MATCH", "contains": "1"}
>>> [error.message for error in filter_errors(Checked({"fields": [], "filters": [part]}, source), ("filters", 0))]
["A MATCH filter needs a STRING field; 'Sales' is REAL"]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nl2sql.vizql.fields import DATE_PARTS, DATE_TRUNCATIONS, field_kind
from nl2sql.vizql.filters import is_full_date, is_moment
from nl2sql.vizql.formula_tree import FormulaError, NotExecutable, bracketed, called, parse_formula, references
from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import Change, Place, QueryError, did_you_mean, part_at, shown
from nl2sql.vizql.rules import field_name
from nl2sql.vizql.shape import nearest_date
from nl2sql.vizql.source import (
    IN_FORMULAS,
    ON_DIMENSIONS,
    FieldMetadata,
    fits,
    groups,
    is_known,
    likely_functions,
    result_type,
)


def field_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    """What is wrong with the field at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    if "calculation" in part:
        yield from formula_errors(checked, (*place, "calculation"), caption=part["fieldCaption"])
        yield from _caption_is_new(checked, place)
    else:
        known, errors = checked.look_up(place)
        yield from errors
        if known is not None and checked.semantic:
            yield from _bin_errors(checked, place, known)
            yield from role_errors(checked, place, known)
    if field_kind(part) == "table_calculation":
        nested = range(len(part.get("nestedTableCalculations") or ()))
        for inside in (("tableCalculation",), *(("nestedTableCalculations", i) for i in nested)):
            yield from _table_calculation_errors(checked, (*place, *inside))


def role_errors(checked: Checked, place: Place, known: FieldMetadata) -> Iterator[QueryError]:
    """Whether role, type and function of a field go together. A filter's field needs no function."""
    part = part_at(checked.query, place)
    function, name = part.get("function"), checked.name_of(known)
    if function is None:
        if place[0] == "fields" and len(place) == 2 and checked.needs_function(place, known):
            yield _measure_needs_function(checked, place, known)
        return
    forbidden = checked.settings.strict or function not in ON_DIMENSIONS
    if known.fieldRole == "DIMENSION" and forbidden and (checked.settings.strict or not _of_dates(function)):
        yield _dimension_without(checked, place, known)
    elif known.is_aggregate and function != "AGG":
        way = checked.way(place, f"Remove 'function' from '{name}': {{json}}", Change((*place, "function")))
        message = f"Calculated field '{name}' aggregates by itself and must not have a function"
        yield QueryError("function", (*place, "function"), message, (way,))
    elif not known.is_aggregate and (function == "AGG" or not fits(function, known.dataType)):
        yield _does_not_fit(checked, place, known, function)


def formula_errors(
    checked: Checked, place: Place, *, caption: str = "", aggregate: bool = False, kind: str = ""
) -> Iterator[QueryError]:
    """What is wrong with the formula at ``place``: what cannot be read, names and functions that there
    are not, and what no engine takes.

    caption: of the calculation, which it must not name. aggregate: whether it must be one. kind: the
    type that it must have.
    """
    formula = part_at(checked.query, place)
    try:
        parse_formula(formula)
    except FormulaError as reason:
        yield _refused(place, formula, reason)
        return
    names = [name for name in references(formula) if name[0].casefold() not in checked.names_in_formulas]
    for name, span in names:
        known = checked.names_in_formulas.values()
        said = f"Field '{name}' not found"
        yield _misspelt(
            checked,
            place,
            span,
            (said, f"{said} in schema"),
            [(bracketed(n), n, s) for n, s in did_you_mean(name, known)],
        )
    functions = [(name, span) for name, span in called(formula) if not is_known(name)]
    for name, span in functions:
        said = f"Function '{name}' not found"
        yield _misspelt(
            checked,
            place,
            span,
            (said, f"{said} in calculation {shown(formula)}"),
            [(n, n, s) for n, s in did_you_mean(name.upper(), IN_FORMULAS)],
        )
    owned = [name.casefold() for name, span in references(formula) if "].[" not in formula[slice(*span)]]
    if caption and caption.casefold() in owned and checked.source.field_any_case(caption) is None:
        yield QueryError("formula", place, f"Calculation '{caption}' names itself")
    elif checked.semantic and not names and not functions:
        try:
            value = checked.evaluate(formula)
            if aggregate and value.level != "aggregate":
                yield _refused(place, formula, "no aggregate, and needs one")
            elif kind and value.kind not in (kind, "UNKNOWN", "UNSPECIFIED"):
                yield _refused(place, formula, f"values of type {value.kind}; expected {kind}")
        except FormulaError as reason:
            yield _refused(place, formula, reason)
        except NotExecutable:
            pass  # it is valid, and the compiler says why it is not executed
        except RecursionError:
            yield _refused(place, formula, "calculations that are nested too deeply")


def _refused(place: Place, formula: str, reason: object) -> QueryError:
    return QueryError("formula", place, f"The calculation {shown(formula)} has {reason}")


def _misspelt(
    checked: Checked, place: Place, span: tuple[int, int], said: tuple[str, str], ranked: list[tuple[str, str, float]]
) -> QueryError:
    """A name in a formula that there is not; ``ranked``: what it may be, as the formula has it and as it is said."""
    formula, (start, end) = part_at(checked.query, place), span
    text = f"{said[0]}. Did you mean: {', '.join(name for _, name, _ in ranked)}?"
    ways = [
        checked.way(place, text, Change(place, formula[:start] + written + formula[end:]), likelihood=likely)
        for written, _, likely in ranked
    ]
    return QueryError("not_found", place, said[1], tuple(ways))


def _caption_is_new(checked: Checked, place: Place) -> Iterator[QueryError]:
    caption = part_at(checked.query, (*place, "fieldCaption"))
    taken = checked.source.field_any_case(caption)
    if taken is None:
        return
    here = (*place, "fieldCaption")
    new = f"{caption} (calculated)"
    ways = [checked.way(place, "Give the calculation a caption of its own: {json}", Change(here, new))]
    plain = [Change((*place, "calculation"))]
    if taken.fieldRole == "MEASURE" and not taken.is_aggregate and "function" not in part_at(checked.query, place):
        plain += [Change((*place, "function"), name) for name in likely_functions(taken)[:1]]
    ways.append(checked.way(place, "Use the data source's field: {json}", *plain, likelihood=0.5))
    yield QueryError("caption", here, f"Calculation '{caption}' has the caption of a field", tuple(ways))


def _measure_needs_function(checked: Checked, place: Place, known: FieldMetadata) -> QueryError:
    name = checked.name_of(known)
    change = Change((*place, "function"), (likely_functions(known) or ["SUM"])[0])
    # less likely than a name that is nearly right: which function was meant is a guess
    ways = (checked.way(place, f"Add aggregation to '{name}': {{json}}", change, likelihood=0.85),)
    return QueryError("measure", place, f"MEASURE field '{name}' requires aggregation function", ways)


def _dimension_without(checked: Checked, place: Place, known: FieldMetadata) -> QueryError:
    name, here = checked.name_of(known), (*place, "function")
    ways = [checked.way(place, f"Remove 'function' from '{name}': {{json}}", Change(here))]
    message = f"DIMENSION field '{name}' should not have aggregation function"
    return QueryError("dimension", here, message, tuple(ways))


def _does_not_fit(checked: Checked, place: Place, known: FieldMetadata, function: str) -> QueryError:
    name, here = checked.name_of(known), (*place, "function")
    ways = []
    if known.fieldRole == "DIMENSION":
        ways.append(checked.way(place, f"Remove 'function' from '{name}': {{json}}", Change(here)))
    for i, other in enumerate(likely_functions(known)[:2]):
        text = f"Use {other} for '{name}': {{json}}"
        ways.append(checked.way(place, text, Change(here, other), likelihood=0.8 - 0.2 * i))
    message = f"Function '{function}' cannot be applied to {known.dataType} field '{name}'"
    return QueryError("function", here, message, tuple(ways))


def _of_dates(function: str) -> bool:
    return function in DATE_PARTS or function in DATE_TRUNCATIONS


def _bin_errors(checked: Checked, place: Place, known: FieldMetadata) -> Iterator[QueryError]:
    part, name = part_at(checked.query, place), checked.name_of(known)
    if "binSize" not in part:
        return
    away = checked.way(place, f"Remove 'binSize' from '{name}': {{json}}", Change((*place, "binSize")))
    if known.columnClass == "BIN":
        message = f"Bin field '{name}' has its size in the data source"
        yield QueryError("bin", (*place, "binSize"), message, (away,))
    elif known.dataType not in ("INTEGER", "REAL", "UNKNOWN", "UNSPECIFIED"):
        message = f"Bins need a number; '{name}' is {known.dataType}"
        yield QueryError("bin", (*place, "binSize"), message, (away,))


def _table_calculation_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    """The fields that a table calculation names, at any depth, must be the data source's or the query's own."""
    part = part_at(checked.query, place)
    own = {caption.casefold() for caption in map(_caption, checked.query["fields"]) if caption}
    for here in _references_in(part, place):
        caption = part_at(checked.query, (*here, "fieldCaption"))
        if caption.casefold() not in own or checked.field_at(here) is not None:
            known, errors = checked.look_up(here)
            yield from errors
            if known is not None and checked.semantic:
                yield from role_errors(checked, here, known)


def _caption(part: Any) -> str:
    caption = part.get("fieldCaption") if isinstance(part, dict) else None
    return caption if isinstance(caption, str) else ""


def _references_in(part: Any, place: Place) -> Iterator[Place]:
    keys = ("levelAddress", "restartEvery", "customSort")
    yield from ((*place, "dimensions", i) for i in range(len(part["dimensions"])))
    yield from ((*place, key) for key in keys if key in part)
    if "secondaryTableCalculation" in part:
        yield from _references_in(part["secondaryTableCalculation"], (*place, "secondaryTableCalculation"))


# ------------------------------------------------------------------------------------------ filters
# A measure without a function is filtered row by row. Not covered: the types of formulas; whether
# values exist (``values``).

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
