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

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nl2sql.vizql.autofix import Change, Place, QueryError, Suggestion, as_json, part_at, removal, setting, suggest
from nl2sql.vizql.query import API, field_kind

NEWER = {  # keys that the published schema of 20261 does not have and the models of 20263 do
    ("datasource", "workbookDatasourceId"),
    ("options", "withNewSession"),
    ("options", "includeRemoteDatabaseNames"),
}


def query_rules(query: dict[str, Any], broken: set[Place], api: int) -> Iterator[QueryError]:
    """What breaks a rule in those parts of ``query`` that are not ``broken`` (``(list, index)``, ``(list,)``)."""
    fields, filters, parameters = (_parts(query, name, broken) for name in ("fields", "filters", "parameters"))
    for place, field in fields.items():
        yield from _table_calculation(query, place, field, api)
    priorities = {(*p, "sortPriority"): field.get("sortPriority") for p, field in fields.items()}
    yield from _sort_priorities(query, {p: n for p, n in priorities.items() if n is not None})
    yield from _repeated(query, fields, _field_key, "field", "twice")
    for place, part in filters.items():
        if api < API:
            yield from _older_service(query, place, part, api)
        if part["filterType"] in _FILTER_RULES:
            yield from _FILTER_RULES[part["filterType"]](query, place, part)
    yield from _repeated(query, filters, _filter_key, "filter", "more than one filter of the same field and function")
    yield from _repeated(query, parameters, lambda part: part["parameterCaption"].casefold(), "parameter", "twice")


def newer_keys(request: dict[str, Any], api: int) -> list[QueryError]:
    """The keys of a request that this version of the service does not know."""
    places = [place for place in sorted(NEWER) if api < API and isinstance(request.get(place[0]), dict)]
    return [_newer(request, place, api) for place in places if place[1] in request[place[0]]]


def field_name(field: Any) -> str:
    """A field or a filter's field as messages name it: ``'Sales'``, ``MONTH of 'Order Date'``."""
    if "calculation" in field and "fieldCaption" not in field:
        return f"'{field['calculation']}'"
    named = f"'{field['fieldCaption']}'"
    return f"{field['function']} of {named}" if "function" in field else named


def _parts(query: dict[str, Any], name: str, broken: set[Place]) -> dict[Place, Any]:
    parts = query.get(name)
    sound = parts if isinstance(parts, list) and (name,) not in broken else []
    return {(name, i): part for i, part in enumerate(sound) if (name, i) not in broken}


# -------------------------------------------------------------------------------------------- fields


def _table_calculation(query: Any, place: Place, field: Any, api: int) -> Iterator[QueryError]:
    if field_kind(field) != "table_calculation":
        return
    if "function" in field and "calculation" in field:
        message = f"Field {field_name(field)} has 'function' and 'calculation', which exclude each other"
        ways = [removal(query, (*place, key), likelihood=0.7) for key in ("function", "calculation")]
        yield QueryError("exclusive", place, message, ways)
    for here in _unspecified(field, place) if api < API else ():
        yield _newer(query, here, api)


def _unspecified(part: Any, place: Place) -> Iterator[Place]:
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in items:
        if value == "UNSPECIFIED" and key in ("relativeTo", "rankType", "aggregation"):
            yield (*place, key)
        yield from _unspecified(value, (*place, key))


def _newer(data: Any, place: Place, api: int) -> QueryError:
    said = f"{place[-1]} UNSPECIFIED" if part_at(data, place) == "UNSPECIFIED" else f"'{place[-1]}'"
    message = f"{said} is known since version 20263; vizql.api is {api}"
    return QueryError("newer", place, message, [removal(data, place)])


def _sort_priorities(query: Any, given: dict[Place, int]) -> Iterator[QueryError]:
    seen: dict[int, Place] = {}
    used = set(given.values())
    for place, value in given.items():
        if value in seen:
            free = next(n for n in range(1, len(used) + 2) if n not in used)
            later = max(used) + 1
            used.add(later)
            ways = [
                setting(query, place, n, f"Set sortPriority to {n}: {{json}}", 0.9 - 0.3 * i)
                for i, n in enumerate(dict.fromkeys((later, free)))
            ]
            yield QueryError("sort_priority", place, f"sortPriority {value} is given twice", ways, seen[value])
        seen.setdefault(value, place)


def _repeated(
    query: Any, parts: dict[Place, Any], key: Callable[[Any], Any], what: str, said: str
) -> Iterator[QueryError]:
    seen: dict[Any, Place] = {}
    for place, part in parts.items():
        if key(part) in seen:
            name = field_name(part.get("field", part)) if what != "parameter" else f"'{part['parameterCaption']}'"
            way = removal(query, place, f"Remove the second {what} {name}")
            message = f"{what.capitalize()} {name} is given {said}"
            yield QueryError("repeated", place, message, [way], seen[key(part)])
        seen.setdefault(key(part), place)


def _field_key(field: Any) -> Any:
    """What two fields must not share: the caption of a calculation, else caption and what is done with it."""
    done = {key: field.get(key) for key in ("function", "binSize", "tableCalculation", "calculation")}
    return (field["fieldCaption"].casefold(), "" if field_kind(field) == "calculation" else as_json(done))


def _filter_key(part: Any) -> Any:
    field = part["field"]
    if "calculation" in field:
        return ("", field["calculation"])
    return (field["fieldCaption"].casefold(), field.get("function"))


# ------------------------------------------------------------------------------------------- filters


def _older_service(query: Any, place: Place, part: Any, api: int) -> Iterator[QueryError]:
    if part["filterType"] not in ("SET", "MATCH", "DATE"):
        return
    for key in ("function", "calculation"):
        if key in part["field"]:
            here = (*place, "field", key)
            ways = [removal(query, here)] if key == "function" else []
            message = f"A {part['filterType']} filter must not have a {key} before version 20263"
            yield QueryError("newer", here, f"{message}; vizql.api is {api}", ways)


def _match(query: Any, place: Place, part: Any) -> Iterator[QueryError]:
    if not {"contains", "startsWith", "endsWith"} & set(part):
        message = f"The MATCH filter on {field_name(part['field'])} needs 'contains', 'startsWith' or 'endsWith'"
        yield QueryError("missing", (*place, "contains"), message)


def _ends(query: Any, place: Place, part: Any) -> Iterator[QueryError]:
    ends = ["min", "max"] if part["filterType"] == "QUANTITATIVE_NUMERICAL" else ["minDate", "maxDate"]
    kind, there = part["quantitativeFilterType"], [end for end in ends if end in part]
    needed = {"RANGE": ends, "MIN": ends[:1], "MAX": ends[1:]}.get(kind, [])
    about = f"The {kind} filter on {field_name(part['field'])}"
    fitting: Sequence[Suggestion] = []
    if there:  # the kind of filter for the ends that are given
        name = "RANGE" if there == ends else "MIN" if there == ends[:1] else "MAX"
        text = f"Set quantitativeFilterType to {name}: {{json}}"
        fitting = [setting(query, (*place, "quantitativeFilterType"), name, text, 0.8)]
    for end in needed:
        if end not in part:
            yield QueryError("missing", (*place, end), f"{about} needs '{end}'", fitting)
    for end in there:
        if end not in needed:
            ways = [*fitting, removal(query, (*place, end), likelihood=0.6)]
            yield QueryError("unused", (*place, end), f"{about} does not use '{end}'", ways)
    if kind.startswith("ONLY") and "includeNulls" in part:
        here = (*place, "includeNulls")
        yield QueryError("unused", here, f"{about} does not use 'includeNulls'", [removal(query, here)])
    if there == ends == needed and part[ends[0]] > part[ends[1]]:
        swap = (Change((*place, ends[0]), part[ends[1]]), Change((*place, ends[1]), part[ends[0]]))
        way = suggest(query, "Swap the two ends: {json}", place, *swap)
        yield QueryError("order", place, f"{about} has its ends in the wrong order", [way])


def _range_n(query: Any, place: Place, part: Any) -> Iterator[QueryError]:
    kind, about = part["dateRangeType"], f"The filter on {field_name(part['field'])}"
    here, there = (*place, "dateRangeType"), (*place, "rangeN")
    if kind in ("LASTN", "NEXTN") and "rangeN" not in part:
        one = setting(query, here, kind[:-1], f"Use {kind[:-1]} for one period: {{json}}")
        yield QueryError("missing", there, f"{about} needs 'rangeN' for {kind}", [one])
    if kind not in ("LASTN", "NEXTN") and "rangeN" in part:
        ways = [setting(query, here, f"{kind}N", f"Use {kind}N: {{json}}")] if kind in ("LAST", "NEXT") else []
        ways.append(removal(query, there, likelihood=0.6))
        yield QueryError("unused", there, f"{about} does not use 'rangeN' for {kind}", ways)


def _one_condition(query: Any, place: Place, part: Any) -> Iterator[QueryError]:
    about = f"The CONDITION filter on {field_name(part['field'])}"
    if "condition" not in part and "calculation" not in part:
        yield QueryError("missing", (*place, "condition"), f"{about} needs 'condition' or 'calculation'")
    if "condition" in part and "calculation" in part:
        ways = [removal(query, (*place, key), likelihood=0.7) for key in ("calculation", "condition")]
        yield QueryError("exclusive", place, f"{about} has 'condition' and 'calculation'; give one", ways)


_FILTER_RULES = {
    "MATCH": _match,
    "QUANTITATIVE_NUMERICAL": _ends,
    "QUANTITATIVE_DATE": _ends,
    "DATE": _range_n,
    "CONDITION": _one_condition,
}
