"""The service's rules between the values of a query that its models do not hold; no data source is needed.

One function per rule, each over plain JSON whose shape is right (``shape``). A value that the service would drop
without a word is an error here.

>>> field = {"fieldCaption": "Sales"}
>>> filters = [{"field": field, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": "RANGE", "min": 1}]
>>> [error.message for error in query_rules({"fields": [field], "filters": filters}, set(), 20263)]
["The RANGE filter on 'Sales' needs 'max'"]

Not covered: what only a data source knows (``semantics``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nl2sql.vizql.fields import field_kind
from nl2sql.vizql.mending import Change, Place, QueryError, Suggestion, as_json, part_at, suggest

NEWER = {  # keys that the published schema of 20261 does not have and the models of 20263 do
    ("datasource", "workbookDatasourceId"),
    ("options", "withNewSession"),
    ("options", "includeRemoteDatabaseNames"),
}
_ENDS = {"QUANTITATIVE_NUMERICAL": ("min", "max"), "QUANTITATIVE_DATE": ("minDate", "maxDate")}
_NEEDED = {"RANGE": (0, 1), "MIN": (0,), "MAX": (1,), "ONLY_NULL": (), "ONLY_NON_NULL": ()}


def query_rules(query: dict[str, Any], broken: set[Place], api: int) -> Iterator[QueryError]:
    """What breaks a rule in those parts of ``query`` that are not ``broken`` (``(list, index)``, ``(list,)``)."""
    fields = list(_parts(query, "fields", broken))
    filters = list(_parts(query, "filters", broken))
    parameters = list(_parts(query, "parameters", broken))
    yield from (error for place in fields for error in _field_rules(query, place, api))
    yield from _twice(query, [((*p, "sortPriority"), part_at(query, p).get("sortPriority")) for p in fields])
    yield from _repeated(query, fields, _field_key, "field", "twice")
    yield from (error for place in filters for rule in _FILTER_RULES for error in rule(query, place, api))
    yield from _repeated(query, filters, _filter_key, "filter", "more than one filter of the same field and function")
    yield from _repeated(query, parameters, _parameter_key, "parameter", "twice")


def newer_keys(request: dict[str, Any], api: int) -> list[QueryError]:
    """The keys of a request that this version of the service does not know."""
    places = [place for place in sorted(NEWER) if api < 20263 and isinstance(request.get(place[0]), dict)]
    return [_newer(request, place, api) for place in places if place[1] in request[place[0]]]


def field_name(field: Any) -> str:
    """A field or a filter's field as messages name it: ``'Sales'``, ``MONTH of 'Order Date'``."""
    if "calculation" in field and "fieldCaption" not in field:
        return f"'{field['calculation']}'"
    named = f"'{field['fieldCaption']}'"
    return f"{field['function']} of {named}" if "function" in field else named


def _parts(query: dict[str, Any], name: str, broken: set[Place]) -> Iterator[Place]:
    parts = query.get(name)
    for i in range(len(parts) if isinstance(parts, list) and (name,) not in broken else 0):
        if (name, i) not in broken:
            yield (name, i)


def _removal(query: Any, place: Place, text: str, likelihood: float = 0.9) -> Suggestion:
    return suggest(query, text, place[:2], Change(place), likelihood=likelihood)


def _setting(query: Any, place: Place, value: Any, text: str, likelihood: float = 0.9) -> Suggestion:
    return suggest(query, text, place[:2], Change(place, value), likelihood=likelihood)


# ------------------------------------------------------------------------------------------------------- fields


def _field_rules(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    field = part_at(query, place)
    if field_kind(field) != "table_calculation":
        return
    if "function" in field and "calculation" in field:
        message = f"Field {field_name(field)} has 'function' and 'calculation', which exclude each other"
        keys = ("function", "calculation")
        ways = [_removal(query, (*place, key), f"Remove '{key}': {{json}}", 0.7) for key in keys]
        yield QueryError("exclusive", place, message, tuple(ways))
    for here in _unspecified(field, place) if api < 20263 else ():
        yield _newer(query, here, api)


def _unspecified(part: Any, place: Place) -> Iterator[Place]:
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in items:
        if value == "UNSPECIFIED" and key in ("relativeTo", "rankType", "aggregation"):
            yield (*place, key)
        yield from _unspecified(value, (*place, key))


def _newer(data: Any, place: Place, api: int) -> QueryError:
    value = part_at(data, place)
    said = f"{place[-1]} UNSPECIFIED" if value == "UNSPECIFIED" else f"'{place[-1]}'"
    way = _removal(data, place, f"Remove '{place[-1]}': {{json}}")
    return QueryError("newer", place, f"{said} is known since version 20263; vizql.api is {api}", (way,))


def _twice(query: Any, places: list[tuple[Place, Any]]) -> Iterator[QueryError]:
    seen: dict[Any, Place] = {}
    used = {value for _, value in places if value is not None}
    for place, value in places:
        if value is not None and value in seen:
            free = next(n for n in range(1, len(used) + 2) if n not in used)
            later = max(used) + 1
            used.add(later)
            ways = tuple(
                _setting(query, place, n, f"Set sortPriority to {n}: {{json}}", 0.9 - 0.3 * i)
                for i, n in enumerate(dict.fromkeys((later, free)))
            )
            yield QueryError("sort_priority", place, f"sortPriority {value} is given twice", ways, seen[value])
        seen.setdefault(value, place)


def _repeated(query: Any, places: list[Place], key: Callable[[Any], Any], what: str, said: str) -> Iterator[QueryError]:
    seen: dict[Any, Place] = {}
    for place in places:
        part = part_at(query, place)
        if key(part) in seen:
            name = field_name(part.get("field", part)) if what != "parameter" else f"'{part['parameterCaption']}'"
            way = _removal(query, place, f"Remove the second {what} {name}")
            message = f"{what.capitalize()} {name} is given {said}"
            yield QueryError("repeated", place, message, (way,), seen[key(part)])
        seen.setdefault(key(part), place)


def _field_key(field: Any) -> Any:
    """What two fields must not share: the caption of a calculation, else caption and what is done with it."""
    kind = field_kind(field)
    done = {key: field.get(key) for key in ("function", "binSize", "tableCalculation", "calculation")}
    return (field["fieldCaption"].casefold(), "" if kind == "calculation" else as_json(done))


def _filter_key(part: Any) -> Any:
    field = part["field"]
    if "calculation" in field:
        return ("", field["calculation"])
    return (field["fieldCaption"].casefold(), field.get("function"))


def _parameter_key(part: Any) -> Any:
    return part["parameterCaption"].casefold()


# ------------------------------------------------------------------------------------------------------ filters


def _older_service(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    part = part_at(query, place)
    if api >= 20263 or part["filterType"] not in ("SET", "MATCH", "DATE"):
        return
    for key in ("function", "calculation"):
        if key in part["field"]:
            message = f"A {part['filterType']} filter must not have a {key} before version 20263"
            here = (*place, "field", key)
            ways = (_removal(query, here, f"Remove '{key}': {{json}}"),) if key == "function" else ()
            yield QueryError("newer", here, f"{message}; vizql.api is {api}", ways)


def _match_has_a_text(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    part = part_at(query, place)
    if part["filterType"] == "MATCH" and not {"contains", "startsWith", "endsWith"} & set(part):
        message = f"The MATCH filter on {field_name(part['field'])} needs 'contains', 'startsWith' or 'endsWith'"
        yield QueryError("missing", (*place, "contains"), message)


def _ends(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    part = part_at(query, place)
    if part["filterType"] not in _ENDS:
        return
    kind, ends = part["quantitativeFilterType"], _ENDS[part["filterType"]]
    needed = [ends[i] for i in _NEEDED[kind]]
    there = [end for end in ends if end in part]
    about = f"The {kind} filter on {field_name(part['field'])}"
    for end in needed:
        if end not in part:
            ways = _kinds_that_fit(query, place, ends, there)
            yield QueryError("missing", (*place, end), f"{about} needs '{end}'", ways)
    for end in there:
        if end not in needed:
            away = _removal(query, (*place, end), f"Remove '{end}': {{json}}", 0.6)
            ways = (*_kinds_that_fit(query, place, ends, there), away)
            yield QueryError("unused", (*place, end), f"{about} does not use '{end}'", ways)
    if kind.startswith("ONLY") and "includeNulls" in part:
        away = _removal(query, (*place, "includeNulls"), "Remove 'includeNulls': {json}")
        yield QueryError("unused", (*place, "includeNulls"), f"{about} does not use 'includeNulls'", (away,))
    if there == list(ends) == needed and part[ends[0]] > part[ends[1]]:
        swap = (Change((*place, ends[0]), part[ends[1]]), Change((*place, ends[1]), part[ends[0]]))
        way = suggest(query, "Swap the two ends: {json}", place, *swap)
        yield QueryError("order", place, f"{about} has its ends in the wrong order", (way,))


def _kinds_that_fit(query: Any, place: Place, ends: tuple[str, ...], there: list[str]) -> tuple[Suggestion, ...]:
    """The kind of filter for the ends that are given."""
    fitting = {2: "RANGE", 1: "MIN" if there[:1] == [ends[0]] else "MAX"}.get(len(there))
    if fitting is None:
        return ()
    here = (*place, "quantitativeFilterType")
    return (_setting(query, here, fitting, f"Set quantitativeFilterType to {fitting}: {{json}}", 0.8),)


def _range_n(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    part = part_at(query, place)
    if part["filterType"] != "DATE":
        return
    kind, about = part["dateRangeType"], f"The filter on {field_name(part['field'])}"
    if kind in ("LASTN", "NEXTN") and "rangeN" not in part:
        one = _setting(query, (*place, "dateRangeType"), kind[:-1], f"Use {kind[:-1]} for one period: {{json}}")
        yield QueryError("missing", (*place, "rangeN"), f"{about} needs 'rangeN' for {kind}", (one,))
    if kind not in ("LASTN", "NEXTN") and "rangeN" in part:
        many = f"{kind}N" if kind in ("LAST", "NEXT") else None
        ways = [_setting(query, (*place, "dateRangeType"), many, f"Use {many}: {{json}}")] if many else []
        ways.append(_removal(query, (*place, "rangeN"), "Remove 'rangeN': {json}", 0.6))
        yield QueryError("unused", (*place, "rangeN"), f"{about} does not use 'rangeN' for {kind}", tuple(ways))


def _one_condition(query: Any, place: Place, api: int) -> Iterator[QueryError]:
    part = part_at(query, place)
    if part["filterType"] != "CONDITION":
        return
    about = f"The CONDITION filter on {field_name(part['field'])}"
    if "condition" not in part and "calculation" not in part:
        yield QueryError("missing", (*place, "condition"), f"{about} needs 'condition' or 'calculation'")
    if "condition" in part and "calculation" in part:
        keys = ("calculation", "condition")
        ways = [_removal(query, (*place, key), f"Remove '{key}': {{json}}", 0.7) for key in keys]
        yield QueryError("exclusive", place, f"{about} has 'condition' and 'calculation'; give one", tuple(ways))


_FILTER_RULES = (_older_service, _match_has_a_text, _ends, _range_n, _one_condition)
