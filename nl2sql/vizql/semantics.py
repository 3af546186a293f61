"""A query's fields and filters held to its data source: names, roles, functions, formulas, types.

The wording is the specification's where it gives one: "MEASURE field 'Sales' requires aggregation function".

>>> field = {"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL", "defaultAggregation": "SUM"}
>>> checked = Checked({"fields": [{"fieldCaption": "Sales"}]}, DataSource.model_validate({"fields": [field]}))
>>> [error] = field_errors(checked, ("fields", 0))
>>> error.message, error.suggestions[0].snippet
("MEASURE field 'Sales' requires aggregation function", '{"fieldCaption": "Sales", "function": "SUM"}')

Not covered: whether values exist in the database (``validator``); the types of formulas in filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from nl2sql.config import VizqlConfig
from nl2sql.vizql.autofix import (
    Change,
    Place,
    QueryError,
    Suggestion,
    did_you_mean,
    part_at,
    removal,
    setting,
    shown,
    suggest,
)
from nl2sql.vizql.formula_tree import FormulaError, NotExecutable, bracketed, called, parse_formula, references
from nl2sql.vizql.query import (
    FUNCTIONS,
    field_kind,
    is_full_date,
    is_moment,
)
from nl2sql.vizql.query_errors import nearest_date
from nl2sql.vizql.rules import field_name
from nl2sql.vizql.scope import Grouping, Scope, Value
from nl2sql.vizql.source import (
    DATES,
    IN_FORMULAS,
    NUMBERS,
    ON_DIMENSIONS,
    UNKNOWN,
    DataSource,
    FieldMetadata,
    fits,
    groups,
    is_known,
    likely_functions,
    result_type,
)

Errors = Iterator[QueryError]


@dataclass(frozen=True)
class Checked:
    """A query that is being checked against a data source, with the request's options."""

    query: dict[str, Any]
    source: DataSource
    settings: VizqlConfig = field(default_factory=VizqlConfig)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_name(self) -> bool:
        """Does the query name fields by ``fieldName``, and not by caption?"""
        return self.options.get("interpretFieldCaptionsAsFieldNames") is True

    @cached_property
    def calculations(self) -> dict[str, str]:
        """The formulas of the query's own calculations, by caption."""
        fields = (part for part in self.query["fields"] if isinstance(part, dict))
        named = [(part.get("fieldCaption"), part.get("calculation")) for part in fields]
        return {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}

    @cached_property
    def names_in_formulas(self) -> dict[str, str]:
        """Whatever a formula can name: fields, parameters, tables (``COUNT([Orders])``), the query's calculations.

        Where the query names its fields by ``fieldName``, a caption is no name, in formulas neither.
        """
        source = self.source
        names = [
            *self.calculations,
            *(table.caption for table in source.logicalTables),
            *(name for p in source.parameters for name in (p.parameterName, p.parameterCaption)),
            *(known.fieldName for known in source.fields),
            *(() if self.by_name else source.captions),
        ]
        return {name.casefold(): name for name in names if name}

    @cached_property
    def scope(self) -> Scope:
        """What the names of the query's formulas mean to the compiler, in any dialect."""
        own = [(name, text) for name, text in self.calculations.items() if self.source.field_any_case(name) is None]
        parts = (part for part in self.query.get("parameters") or () if isinstance(part, dict))
        given = [(p["parameterCaption"], p["value"]) for p in parts if {"parameterCaption", "value"} <= set(p)]
        return Scope(self.source, "sqlite", own, given, self.by_name)

    def field_at(self, place: Place) -> FieldMetadata | None:
        """The field of the data source that the part at ``place`` names, upper or lower case."""
        caption = part_at(self.query, (*place, "fieldCaption"))
        if not isinstance(caption, str):
            return None
        return self.source.meant(caption, self.by_name)

    def name_of(self, known: FieldMetadata) -> str:
        """The name by which the query names this field."""
        return known.fieldName if self.by_name else known.fieldCaption

    def put(self, place: Place, value: Any, text: str, likelihood: float = 0.9) -> Suggestion:
        """The suggestion of ``value`` at ``place``."""
        return setting(self.query, place, value, text, likelihood)

    def away(self, place: Place, text: str = "", likelihood: float = 0.9) -> Suggestion:
        """The suggestion to take out what is at ``place``."""
        return removal(self.query, place, text, likelihood)

    def needs_function(self, place: Place, known: FieldMetadata) -> bool:
        """Is the field at ``place`` a measure as it is, where the result is aggregated?"""
        part = part_at(self.query, place)
        if known.fieldRole != "MEASURE" or {"function", "binSize", "calculation"} & set(part):
            return False
        if self.settings.strict:
            return True
        raw = self.options.get("disaggregate") is True
        return not (raw or known.is_aggregate or known.columnClass == "TABLE_CALCULATION")


# --------------------------------------------------------------------------------------------- names


def _known(checked: Checked, place: Place) -> Iterator[QueryError | FieldMetadata]:
    """The field that the part at ``place`` names, and the error where there is none or its case is another."""
    known = checked.field_at(place)
    caption = part_at(checked.query, (*place, "fieldCaption"))
    loose = checked.by_name or not checked.source.enriched
    if known is None or not (loose or known.fieldCaption == caption):
        ranked = _meant_names(checked, place, caption)[: 1 if known else None]
        text = f"Field '{caption}' not found. Did you mean: {', '.join(name for name, _ in ranked)}?"
        ways = [
            suggest(checked.query, text, place[:2], *_to(checked, place, name), likelihood=likelihood)
            for name, likelihood in ranked
        ]
        kind = "case" if known else "not_found"
        yield QueryError(kind, (*place, "fieldCaption"), f"Field '{caption}' not found in schema", ways)
    if known is not None and checked.source.enriched:
        yield known


def _meant_names(checked: Checked, place: Place, caption: str) -> list[tuple[str, float]]:
    """The likely captions; one whose role does not go with the function that is given comes later."""
    if checked.by_name:
        return did_you_mean(caption, [known.fieldName for known in checked.source.fields if known.fieldName])
    function = part_at(checked.query, (*place, "function"))

    def goes(name: str) -> bool:
        known = checked.source.field(name)
        if known is None or function not in FUNCTIONS:
            return True
        return fits(function, known.dataType) and (known.fieldRole != "DIMENSION" or function in ON_DIMENSIONS)

    ranked = [
        (name, likelihood if goes(name) else likelihood - 0.1) for name, likelihood in checked.source.like(caption)
    ]
    return sorted(ranked, key=lambda pair: -pair[1])


def _to(checked: Checked, place: Place, caption: str) -> list[Change]:
    """The changes to another field: its caption, and the function that a measure needs."""
    change, known = Change((*place, "fieldCaption"), caption), checked.source.field(caption)
    if not (known and place[0] == "fields" and len(place) == 2 and checked.needs_function(place, known)):
        return [change]
    return [change, *(Change((*place, "function"), name) for name in likely_functions(known)[:1])]


# -------------------------------------------------------------------------------------------- fields


def field_errors(checked: Checked, place: Place) -> Errors:
    """What is wrong with the field at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    if "calculation" in part:
        yield from formula_errors(checked, (*place, "calculation"), caption=part["fieldCaption"])
        yield from _caption_is_new(checked, place)
    else:
        yield from _named_errors(checked, place, _bin_errors, role_errors)
    if field_kind(part) == "table_calculation":
        nested = range(len(part.get("nestedTableCalculations") or ()))
        for inside in (("tableCalculation",), *(("nestedTableCalculations", i) for i in nested)):
            yield from _table_calculation_errors(checked, (*place, *inside))


def _named_errors(checked: Checked, place: Place, *checks: Callable[[Checked, Place, FieldMetadata], Errors]) -> Errors:
    """The error of the name at ``place``, and what ``checks`` say of the field that it means."""
    for found in _known(checked, place):
        if isinstance(found, QueryError):
            yield found
        else:
            yield from (error for check in checks for error in check(checked, place, found))


def role_errors(checked: Checked, place: Place, known: FieldMetadata) -> Errors:
    """Whether role, type and function of a field go together. A filter's field needs no function."""
    function, name = part_at(checked.query, place).get("function"), checked.name_of(known)
    here, strict = (*place, "function"), checked.settings.strict
    if function is None:
        if place[0] == "fields" and len(place) == 2 and checked.needs_function(place, known):
            meant = (likely_functions(known) or ["SUM"])[0]
            # less likely than a name that is nearly right: which function was meant is a guess
            way = checked.put(here, meant, f"Add aggregation to '{name}': {{json}}", 0.85)
            yield QueryError("measure", place, f"MEASURE field '{name}' requires aggregation function", [way])
        return
    way = checked.away(here, f"Remove 'function' from '{name}': {{json}}")
    if known.fieldRole == "DIMENSION" and (strict or function not in ON_DIMENSIONS):
        yield QueryError("dimension", here, f"DIMENSION field '{name}' should not have aggregation function", [way])
    elif known.is_aggregate and function != "AGG":
        message = f"Calculated field '{name}' aggregates by itself and must not have a function"
        yield QueryError("function", here, message, [way])
    elif not known.is_aggregate and (function == "AGG" or not fits(function, known.dataType)):
        ways = [way] if known.fieldRole == "DIMENSION" else []
        for i, other in enumerate(likely_functions(known)[:2]):
            ways.append(checked.put(here, other, f"Use {other} for '{name}': {{json}}", 0.8 - 0.2 * i))
        message = f"Function '{function}' cannot be applied to {known.dataType} field '{name}'"
        yield QueryError("function", here, message, ways)


def formula_errors(
    checked: Checked, place: Place, *, caption: str = "", aggregate: bool = False, kind: str = ""
) -> Errors:
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
    known = checked.names_in_formulas
    names = [name for name in references(formula) if name[0].casefold() not in known]
    functions = [name for name in called(formula) if not is_known(name[0])]
    for name, span in names:
        ranked = [(bracketed(n), n, likelihood) for n, likelihood in did_you_mean(name, known.values())]
        yield _misspelt(checked, place, span, f"Field '{name}' not found", " in schema", ranked)
    for name, span in functions:
        ranked = [(n, n, likelihood) for n, likelihood in did_you_mean(name.upper(), IN_FORMULAS)]
        said, behind = f"Function '{name}' not found", f" in calculation {shown(formula)}"
        yield _misspelt(checked, place, span, said, behind, ranked)
    owned = [name.casefold() for name, span in references(formula) if "].[" not in formula[slice(*span)]]
    if caption and caption.casefold() in owned and checked.source.field_any_case(caption) is None:
        yield QueryError("formula", place, f"Calculation '{caption}' names itself")
    elif checked.source.enriched and not names and not functions:
        try:
            value: Value = checked.scope.formula(formula, Grouping())
            if aggregate and value.level != "aggregate":
                yield _refused(place, formula, "no aggregate, and needs one")
            elif kind and value.kind not in (kind, *UNKNOWN):
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
    checked: Checked, place: Place, span: tuple[int, int], said: str, behind: str, ranked: list[tuple[str, str, float]]
) -> QueryError:
    """A name in a formula that there is not; ``ranked``: what it may be, as the formula has it and as it is said."""
    formula, (start, end) = part_at(checked.query, place), span
    text = f"{said}. Did you mean: {', '.join(name for _, name, _ in ranked)}?"
    ways = [
        checked.put(place, formula[:start] + new + formula[end:], text, likelihood) for new, _, likelihood in ranked
    ]
    return QueryError("not_found", place, said + behind, ways)


def _caption_is_new(checked: Checked, place: Place) -> Errors:
    here = (*place, "fieldCaption")
    caption = part_at(checked.query, here)
    taken = checked.source.field_any_case(caption)
    if taken is None:
        return
    new = checked.put(here, f"{caption} (calculated)", "Give the calculation a caption of its own: {json}")
    plain = [Change((*place, "calculation"))]
    if taken.fieldRole == "MEASURE" and not taken.is_aggregate and "function" not in part_at(checked.query, place):
        plain += [Change((*place, "function"), name) for name in likely_functions(taken)[:1]]
    use = suggest(checked.query, "Use the data source's field: {json}", place, *plain, likelihood=0.5)
    yield QueryError("caption", here, f"Calculation '{caption}' has the caption of a field", [new, use])


def _bin_errors(checked: Checked, place: Place, known: FieldMetadata) -> Errors:
    here, name = (*place, "binSize"), checked.name_of(known)
    if "binSize" not in part_at(checked.query, place):
        return
    ways = [checked.away(here, f"Remove 'binSize' from '{name}': {{json}}")]
    if known.columnClass == "BIN":
        yield QueryError("bin", here, f"Bin field '{name}' has its size in the data source", ways)
    elif known.dataType not in (*NUMBERS, *UNKNOWN):
        yield QueryError("bin", here, f"Bins need a number; '{name}' is {known.dataType}", ways)


def _table_calculation_errors(checked: Checked, place: Place) -> Errors:
    """The fields that a table calculation names, at any depth, must be the data source's or the query's own."""
    fields = [part for part in checked.query["fields"] if isinstance(part, dict)]
    own = {part["fieldCaption"].casefold() for part in fields if isinstance(part.get("fieldCaption"), str)}
    for here in _references_in(part_at(checked.query, place), place):
        caption = part_at(checked.query, (*here, "fieldCaption"))
        if caption.casefold() not in own or checked.field_at(here) is not None:
            yield from _named_errors(checked, here, role_errors)


def _references_in(part: Any, place: Place) -> Iterator[Place]:
    yield from ((*place, "dimensions", i) for i in range(len(part["dimensions"])))
    yield from ((*place, key) for key in ("levelAddress", "restartEvery", "customSort") if key in part)
    if (inside := "secondaryTableCalculation") in part:
        yield from _references_in(part[inside], (*place, inside))


# ------------------------------------------------------------------------------------------- filters
# A measure without a function is filtered row by row.

_NEEDS = {"MATCH": ("STRING",), "QUANTITATIVE_NUMERICAL": NUMBERS, "QUANTITATIVE_DATE": DATES, "DATE": DATES}
_ANY = (*UNKNOWN, "SPATIAL")


def filter_errors(checked: Checked, place: Place) -> Errors:
    """What is wrong with the filter at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    if "calculation" in part["field"]:
        yield from formula_errors(checked, (*place, "field", "calculation"))
    else:
        yield from _named_errors(checked, (*place, "field"), role_errors, _kind_errors, _set_errors)
    if "calculation" in part:
        yield from formula_errors(checked, (*place, "calculation"), aggregate=True, kind="BOOLEAN")
    if "fieldToMeasure" in part:
        here = (*place, "fieldToMeasure")
        if "calculation" in part["fieldToMeasure"]:
            yield from formula_errors(checked, (*here, "calculation"), aggregate=True)
        else:
            yield from _named_errors(checked, here, role_errors, _measured)
    if "condition" in part:
        yield from _named_errors(checked, (*place, "condition"), role_errors, _condition_errors)


def type_at(checked: Checked, place: Place, known: FieldMetadata) -> str:
    """The type of what a filter's field at ``place`` gives."""
    return result_type(part_at(checked.query, place).get("function"), known.dataType)


def _kind_errors(checked: Checked, here: Place, known: FieldMetadata) -> Errors:
    place = here[:2]
    part = part_at(checked.query, place)
    kind, name = part["filterType"], field_name(part["field"])
    away = checked.away(place, f"Remove the filter on {name}", 0.3)
    if known.columnClass in ("BIN", "GROUP"):
        yield QueryError("filter_type", place, f"The {known.columnClass.lower()} {name} cannot be filtered", [away])
        return
    given = type_at(checked, here, known)
    wanted = _NEEDS.get(kind, (given,))
    if given not in wanted and given not in _ANY:
        message = f"A {kind} filter needs a {' or '.join(wanted)} field; {name} is {given}"
        yield QueryError("filter_type", place, message, [*_other_fields(checked, here, wanted), away])
    function = part["field"].get("function")
    if kind in ("TOP", "CONDITION") and not (groups(function) and known.fieldRole != "MEASURE"):
        message = f"A {kind} filter picks values of a dimension; {name} is a measure"
        yield QueryError("filter_type", place, message, [away])


def _other_fields(checked: Checked, here: Place, wanted: tuple[str, ...]) -> list[Suggestion]:
    """The field of a right type whose caption is most alike."""
    caption = part_at(checked.query, (*here, "fieldCaption"))
    fitting = [known for known in checked.source.fields if known.dataType in wanted and not known.hidden]
    names = [checked.name_of(known) for known in fitting]
    alike = [name for name, _ in checked.source.like(caption, least=0.0) if name in names]
    best = alike[:1] or names[:1]
    return [checked.put(here, {"fieldCaption": n}, "Filter another field: {json}", 0.4) for n in best]


def _set_errors(checked: Checked, about: Place, known: FieldMetadata) -> Errors:
    place = about[:2]
    part = part_at(checked.query, place)
    if part["filterType"] != "SET":
        return
    given = type_at(checked, about, known)
    for i, value in enumerate(part["values"]):
        if value is not None and not is_of(value, given):
            here = (*place, "values", i)
            ways = _as_written(checked, here, given)
            if len(part["values"]) > 1:
                ways.append(checked.away(here, f"Remove {shown(value)}: {{json}}", 0.4))
            message = f"Value {shown(value)} does not fit {given} field {field_name(part['field'])}"
            yield QueryError("value_type", here, message, ways)


def _measured(checked: Checked, place: Place, known: FieldMetadata) -> Errors:
    if "function" in part_at(checked.query, place) or known.is_aggregate:
        return
    name = checked.name_of(known)
    meant = [n for n in likely_functions(known) if not groups(n)][:1]
    ways = [checked.put((*place, "function"), n, f"Add aggregation to '{name}': {{json}}") for n in meant]
    said = "MEASURE" if known.fieldRole == "MEASURE" else "fieldToMeasure"
    yield QueryError("measure", place, f"{said} field '{name}' requires aggregation function", ways)


def _condition_errors(checked: Checked, place: Place, known: FieldMetadata) -> Errors:
    here, given = (*place, "value"), type_at(checked, place, known)
    value = part_at(checked.query, here)
    if given in NUMBERS + DATES and not is_of(value, given):
        message = f"Value {shown(value)} does not fit {given} field '{checked.name_of(known)}'"
        yield QueryError("value_type", here, message, _as_written(checked, here, given))


# ---------------------------------------------------------------------------------- values and types


def is_of(value: Any, kind: str) -> bool:
    """Is ``value`` of this type, and not only a text that says one?"""
    if kind in _ANY:
        return True
    if kind == "BOOLEAN" or isinstance(value, bool):
        return kind == "BOOLEAN" and isinstance(value, bool)
    if kind in NUMBERS:
        return isinstance(value, int | float)
    return isinstance(value, str) and (kind not in DATES or (is_full_date if kind == "DATE" else is_moment)(value))


def _as_written(checked: Checked, here: Place, kind: str) -> list[Suggestion]:
    meant = meant_as(part_at(checked.query, here), kind)
    return [checked.put(here, meant, f"Write {shown(meant)}: {{json}}")] if meant is not None else []


def meant_as(value: Any, kind: str) -> Any:
    """``value`` as it is written for this type; None where it says nothing of the kind."""
    text = str(value).strip()
    if kind == "BOOLEAN":
        truths = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        return truths.get(text.lower())
    if kind in DATES:
        return nearest_date(value)
    if kind == "STRING":
        return text
    try:
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
