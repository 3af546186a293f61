"""Is a structured query valid over a data source, what is wrong or odd, and what would mend it?

Two parts, as the specification has them (section "Validation Flow"). *Basic*: structure, field names in any case,
functions. *Semantic*, where the data source knows roles: measures need a function, dimensions have none, functions
fit types, names are written exactly, and values of filters exist in the database.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": c} for c in ("Region", "Revenue", "Segment")]})
>>> validation = validate({"fields": [{"fieldCaption": "Regoin"}]}, source)
>>> validation.is_valid, validation.validation_errors
(False, ["Field 'Regoin' not found in schema"])
>>> validation.validation_suggestions
["Field 'Regoin' not found. Did you mean: Region, Revenue?"]
>>> apply({"fields": [{"fieldCaption": "Regoin"}]}, validation.errors[0].suggestions[0])
{'fields': [{'fieldCaption': 'Region'}]}

Not covered: whether a valid query can be executed here (``docs/vizql.md``).

>>> from nl2sql.vizql.source import DataSource
>>> parameter = {"parameterCaption": "Top", "dataType": "INTEGER", "parameterType": "QUANTITATIVE_RANGE", "max": 20}
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}], "parameters": [parameter]})
>>> query = {"fields": [], "parameters": [{"parameterCaption": "Top", "value": 50}]}
>>> [error.message for error in parameter_errors(Checked(query, source), ("parameters", 0))]
["Parameter 'Top' must be at most 20; it is 50"]

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "Sales"}]})
>>> warnings_of(Checked({"fields": [{"fieldCaption": "Sales", "sortDirection": "ASC"}]}, source))
["Field 'Sales' has a sortDirection and no sortPriority: it is not sorted by"]
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from nl2sql.config import VizqlConfig
from nl2sql.vizql.filters import is_full_date, is_moment
from nl2sql.vizql.lookup import Checked, value_errors
from nl2sql.vizql.mending import (
    MOST_ERRORS,
    REMOVE,
    Change,
    Place,
    QueryError,
    Suggestion,
    apply,
    did_you_mean,
    part_at,
    shown,
    suggest,
    under,
)
from nl2sql.vizql.query import is_request, luid_missing, request_errors
from nl2sql.vizql.rules import field_name
from nl2sql.vizql.semantics import field_errors, filter_errors
from nl2sql.vizql.shape import nearest_date
from nl2sql.vizql.source import DataSource, ParameterRecord, groups

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

__all__ = ["Validation", "apply", "validate"]


# -------------------------------------------------------------- parameters: name, type, list, range
# Not covered: the periods of date parameters.

_TYPES = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "STRING": (str,),
    "BOOLEAN": (bool,),
    "DATE": (str,),
    "DATETIME": (str,),
}
_DATES = {
    "DATE": (is_full_date, "a date of RFC 3339 (YYYY-MM-DD)"),
    "DATETIME": (is_moment, "a date or a moment of RFC 3339 (YYYY-MM-DDThh:mm:ss)"),
}


def parameter_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    """What is wrong with the parameter at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    caption, here = part["parameterCaption"], (*place, "parameterCaption")
    known = checked.source.parameter(caption)
    if known is None:
        ranked = did_you_mean(caption, [parameter.parameterCaption for parameter in checked.source.parameters])
        text = f"Parameter '{caption}' not found. Did you mean: {', '.join(name for name, _ in ranked)}?"
        ways = [checked.way(place, text, Change(here, name), likelihood=likely) for name, likely in ranked]
        ways.append(checked.way(place, f"Remove parameter '{caption}'", Change(place), likelihood=0.2))
        yield QueryError("not_found", here, f"Parameter '{caption}' not found in schema", tuple(ways))
    elif (wrong := _wrong(known, part["value"])) is not None:
        said, meant = wrong
        here = (*place, "value")
        text = f"Set '{caption}' to {shown(meant)}: {{json}}"
        ways = [checked.way(place, text, Change(here, meant))] if meant is not None else []
        message = f"Parameter '{caption}' must be {said}; it is {shown(part['value'])}"
        yield QueryError("parameter", here, message, tuple(ways))


def _wrong(known: ParameterRecord, value: Any) -> tuple[str, Any] | None:
    """What a value must be that is not, and the nearest one that is."""
    types = _TYPES.get(known.dataType)
    if types and not (isinstance(value, types) and isinstance(value, bool) == (types == (bool,))):
        return f"of type {known.dataType}", _as_type(value, known.dataType)
    is_one, said = _DATES.get(known.dataType, (None, ""))
    if is_one is not None and not is_one(value):
        return said, nearest_date(value)
    if known.parameterType == "LIST":
        return _not_listed(known, value)
    if known.parameterType == "QUANTITATIVE_DATE" and isinstance(value, str) and is_moment(value):
        return _outside_days(known, value)
    if known.parameterType == "QUANTITATIVE_RANGE" and isinstance(value, int | float):
        return _outside(known.min, known.max, value) or _off_step(known, value)
    return None


def _not_listed(known: ParameterRecord, value: Any) -> tuple[str, Any] | None:
    listed = [member.get("value") for member in known.members]
    if value in listed or not listed:
        return None
    near = did_you_mean(str(value), [str(member) for member in listed])[0][0]
    return f"one of {shown(listed)}", next(member for member in listed if str(member) == near)


def _outside(least: Any, most: Any, value: Any, key: Callable[[Any], Any] = lambda end: end) -> tuple[str, Any] | None:
    if least is not None and key(value) < key(least):
        return f"at least {_plain(least)}", _plain(least)
    if most is not None and key(value) > key(most):
        return f"at most {_plain(most)}", _plain(most)
    return None


def _outside_days(known: ParameterRecord, value: str) -> tuple[str, Any] | None:
    """The same of dates and moments, without their time zones; an end that is none says nothing."""
    least, most = (end if end is not None and is_moment(end) else None for end in (known.minDate, known.maxDate))
    return _outside(least, most, value, lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=None))


def _off_step(known: ParameterRecord, value: float) -> tuple[str, Any] | None:
    """Values go up from ``min`` (without one, 0) by ``step``; a billionth of a step off is rounding."""
    if not known.step:
        return None
    start, step = known.min or 0, known.step
    if isinstance(start, int) and isinstance(step, int) and isinstance(value, int):
        steps = (2 * (value - start) + step) // (2 * step)  # rounded in whole numbers: a float has 53 bits
    else:
        steps = round((value - start) / step)
    nearest = start + steps * step
    if abs(nearest - value) <= 1e-9 * step:
        return None
    return f"{_plain(start)} and steps of {_plain(step)}", _plain(nearest)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_type(value: Any, data_type: str) -> Any:
    text = str(value).strip()
    try:
        if data_type == "INTEGER":
            return int(text) if text.lstrip("+-").isdecimal() else round(float(text))
        if data_type == "REAL":
            return float(text)
    except (ValueError, OverflowError):
        return None
    if data_type == "BOOLEAN":
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    return nearest_date(value) if data_type in _DATES else text if data_type == "STRING" else None


# -------------------------------------------------------------- warnings never make a query invalid
# Not covered: what a result shows (no rows, all NULL); that is seen after execution.


def warnings_of(checked: Checked) -> list[str]:
    """One line for each oddity of a query whose shape is right."""
    return [line for rule in _RULES for line in rule(checked)]


def _sorted_by_nothing(checked: Checked) -> Iterator[str]:
    for part in checked.query["fields"]:
        if "sortDirection" in part and "sortPriority" not in part:
            yield f"Field {field_name(part)} has a sortDirection and no sortPriority: it is not sorted by"


def _top_beside_others(checked: Checked) -> Iterator[str]:
    filters = checked.query.get("filters") or []
    tops = [part for part in filters if part["filterType"] == "TOP"]
    for part in filters if tops else ():
        if part["filterType"] != "TOP" and not part.get("context") and groups(part["field"].get("function")):
            about = f"the TOP filter on {field_name(tops[0]['field'])}"
            said = f"The filter on {field_name(part['field'])} is applied beside {about}"
            yield f"{said}; context: true applies it before"


def _disaggregated(checked: Checked) -> Iterator[str]:
    if checked.options.get("disaggregate") is not True:
        return
    for part in checked.query["fields"]:
        if not groups(part.get("function")) and "tableCalculation" not in part:
            yield f"disaggregate gives rows as they are; {field_name(part)} is aggregated over one row each"


def _one_alias_twice(checked: Checked) -> Iterator[str]:
    names = Counter(part["fieldAlias"] for part in checked.query["fields"] if "fieldAlias" in part)
    for name, times in names.items():
        if times > 1:
            yield f"Alias '{name}' is given {times} times: a result as objects keeps one of them"


def _date_and_its_part(checked: Checked) -> Iterator[str]:
    plain = {
        part["fieldCaption"] for part in checked.query["fields"] if set(part) & {"function", "calculation"} == set()
    }
    for part in checked.query["fields"]:
        if part.get("function") and groups(part["function"]) and part["fieldCaption"] in plain:
            yield f"{field_name(part)} stands beside '{part['fieldCaption']}' itself: each date is a group of its own"


def _along_fields_that_are_asked(checked: Checked) -> Iterator[str]:
    asked = {part["fieldCaption"] for part in checked.query["fields"]}
    for part in checked.query["fields"]:
        for reference in part.get("tableCalculation", {}).get("dimensions", ()):
            if reference["fieldCaption"] not in asked:
                yield f"{field_name(part)} runs along '{reference['fieldCaption']}', which the query does not ask for"


def _of_two_fields(checked: Checked) -> Iterator[str]:
    """A service may describe two fields of one name; the first is meant, whichever was."""
    of = Counter(map(checked.name_of, checked.source.fields))
    places: list[Place] = [("fields", i) for i in range(len(checked.query["fields"]))]
    places += [("filters", i, "field") for i in range(len(checked.query.get("filters") or ()))]
    known = [field for place in places if (field := checked.field_at(place)) is not None]
    for field in {checked.name_of(field): field for field in known if of[checked.name_of(field)] > 1}.values():
        table = checked.source.table_of(field) or field.logicalTableId
        name = checked.name_of(field)
        yield f"'{name}' is the name of {of[name]} fields; that of table '{table}' is meant"


def _unrelated_tables(checked: Checked) -> Iterator[str]:
    source = checked.source
    fields = [checked.field_at(("fields", i)) for i in range(len(checked.query["fields"]))]
    ids = dict.fromkeys(known.logicalTableId for known in fields if known and known.logicalTableId)
    near: dict[str, set[str]] = {}
    for relation in source.logicalTableRelationships:
        one, other = relation.fromLogicalTable.logicalTableId, relation.toLogicalTable.logicalTableId
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    for first, second in pairwise(ids):
        if second not in _reached(first, near):
            yield f"No relationship leads from table '{first}' to '{second}'"


def _reached(start: str, near: dict[str, set[str]]) -> set[str]:
    reached, open_ = {start}, [start]
    while open_:
        further = near.get(open_.pop(), set()) - reached
        reached |= further
        open_ += further
    return reached


_RULES = (
    _sorted_by_nothing,
    _top_beside_others,
    _disaggregated,
    _one_alias_twice,
    _date_and_its_part,
    _along_fields_that_are_asked,
    _of_two_fields,
    _unrelated_tables,
)


# ---------------------------------------------------------------------------------- the whole query

_ORDER = ("", "datasource", "fields", "filters", "parameters", "options")
_CHECKS = {"fields": field_errors, "filters": filter_errors, "parameters": parameter_errors}


@dataclass(frozen=True)
class Validation:
    """What was said about a query: its errors, those first that are mended most likely, and warnings, which never fail.

    Errors of one likelihood have the query's order; those that nothing is suggested for come last.
    """

    errors: tuple[QueryError, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        return not self.errors

    @property
    def validation_errors(self) -> list[str]:
        """The errors as lines."""
        return [error.message for error in self.errors]

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Every suggestion, the likeliest of the whole query first."""
        return tuple(sorted((way for error in self.errors for way in error.suggestions), key=_unlikely))

    @property
    def validation_suggestions(self) -> list[str]:
        """The suggestions as lines, one line once."""
        return list(dict.fromkeys(way.text for way in self.suggestions))

    @property
    def broken(self) -> frozenset[Place]:
        """The parts of the query that have errors, as ``("fields", 0)``; all others can be kept as they are."""
        about = [*(error.place for error in self.errors), *(error.beside for error in self.errors if error.beside)]
        return frozenset((place[1:] if place[:1] == ("query",) else place)[:2] for place in about)

    def to_dict(self) -> dict[str, Any]:
        """The specification's three values, warnings, and each error with all that would mend it, as plain data."""
        return {
            "is_valid": self.is_valid,
            "validation_errors": self.validation_errors,
            "validation_suggestions": self.validation_suggestions,
            "warnings": list(self.warnings),
            "errors": [error.to_dict() for error in self.errors],
        }


def validate(
    document: Any,
    source: DataSource | None = None,
    settings: VizqlConfig | None = None,
    database: Database | None = None,
) -> Validation:
    """Validate a query, a draft or a request: any JSON. Raises nothing of its own.

    source: without one, only the structure is checked. settings: ``vizql.*``. database: the one behind the data
    source, for values of filters; without it, or with ``vizql.check_values`` off, values are taken as they are.
    """
    settings = settings or VizqlConfig()
    found = list(islice(_errors(document, source, settings, database), MOST_ERRORS + 1))
    if not found:
        return Validation((), tuple(_warnings(document, source, settings)))
    head = _head(document)
    errors = sorted(found[:MOST_ERRORS], key=lambda error: _rank(error.place, head))
    errors.sort(key=lambda error: _unlikely(*error.suggestions[:1]))
    if len(found) > MOST_ERRORS:
        said = f"There are more errors than these {MOST_ERRORS}; mend these and validate the query again"
        errors.append(QueryError("more", (), said))
    return Validation(tuple(errors))


def _errors(
    document: Any, source: DataSource | None, settings: VizqlConfig, database: Database | None
) -> Iterator[QueryError]:
    """What is wrong, one by one: who has enough of them looks for no more."""
    head, broken = _head(document), set()
    for error in chain(request_errors(document, api=settings.api), _no_datasource(document, source)):
        yield error
        broken.add(error.place[len(head) :][:2])
        if error.place == ():
            return  # nothing in it can be looked at
    checked = _checked(document, source, settings)
    if checked is None:
        return
    places = [place for place in _places(checked.query) if place not in broken and (place[0],) not in broken]
    wrong: set[Place] = set()
    for place in places:
        for error in _CHECKS[str(place[0])](checked, place):
            wrong.add(error.place[:2])
            yield under(error, head)
    if database is not None and settings.check_values and checked.semantic:
        sound = [place for place in places if place[0] == "filters" and place not in wrong]
        yield from (under(error, head) for error in value_errors(checked, sound, database))


def _head(document: Any) -> Place:
    return ("query",) if is_request(document) else ()


def _checked(document: Any, source: DataSource | None, settings: VizqlConfig) -> Checked | None:
    """The query with its data source; None where either cannot be looked into."""
    query = document.get("query") if _head(document) else document
    if source is None or not isinstance(query, dict) or not isinstance(query.get("fields"), list):
        return None
    options = document.get("options") if _head(document) else None
    return Checked(query, source, settings, options if isinstance(options, dict) else {})


def _warnings(document: Any, source: DataSource | None, settings: VizqlConfig) -> list[str]:
    checked = _checked(document, source, settings)
    return [] if checked is None else [*_other_datasource(document, checked.source), *warnings_of(checked)]


def _unlikely(*ways: Suggestion) -> float:
    return -ways[0].likelihood if ways else 0.0


def _rank(place: Place, head: Place) -> tuple[int, int]:
    inside = place[len(head) :] if head and place[:1] == head else place
    name = str(inside[0]) if inside else ""
    index = inside[1] if len(inside) > 1 and isinstance(inside[1], int) else -1
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), index)


def _places(query: dict[str, Any]) -> list[Place]:
    lists = ((name, query.get(name)) for name in _CHECKS)
    return [(name, i) for name, parts in lists if isinstance(parts, list) for i in range(len(parts))]


def _no_datasource(document: Any, source: DataSource | None) -> list[QueryError]:
    """A request must say which data source it asks. One of which only the luid is missing is completed with it."""
    if not is_request(document) or "datasource" in document or (source is not None and source.luid):
        return []
    change = Change(("datasource",), {"datasourceLuid": source.name if source and source.name else "LUID"})
    return [luid_missing(suggest(document, "Add the data source: {json}", ("datasource",), change))]


def _other_datasource(document: Any, source: DataSource) -> list[str]:
    """A request may name another data source: a service refuses it, a file is asked in its place."""
    asked = part_at(document, ("datasource", "datasourceLuid")) if is_request(document) else None
    if not source.luid or not isinstance(asked, str) or asked in (REMOVE, source.luid):
        return []
    return [f"The request asks data source '{asked}', and this is '{source.luid}'"]
