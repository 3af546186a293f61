"""Any JSON held to the models of a query: every error in the service's words, with what would mend it.

>>> query = {"fields": [{"fieldCaption": "Sales", "function": "SUMM"}]}
>>> [error] = query_errors(query)
>>> error.message, error.suggestions[0].text
("Unknown function 'SUMM' in field 'Sales'", "Function 'SUMM' is not valid. Did you mean: SUM?")
>>> [error.message for error in read_query({"fields": [{"fieldCaption": "Sales", "functoin": "SUM"}]})]
["Unknown key 'functoin' in field 'Sales'"]

The rules here and in ``rules`` need no data source; the service's own Python models leave most of them
out (``docs/vizql.md``). Not covered: names, types and values of a data source (``validator``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import islice
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from nl2sql.vizql import rules
from nl2sql.vizql.autofix import (
    MOST_ERRORS,
    REMOVE,
    Change,
    Place,
    QueryError,
    alternatives,
    did_you_mean,
    part_at,
    removal,
    setting,
    shown,
    suggest,
    under,
)
from nl2sql.vizql.query import (
    API,
    FIELD_MODELS,
    FILTER_MODELS,
    FUNCTIONS,
    LANGUAGE,
    Datasource,
    Options,
    Parameter,
    Query,
    Request,
    as_request,
    field_kind,
    is_request,
)

Errors: TypeAlias = list[QueryError]
DEEPEST = 32  # levels of a document: the service's deepest query has 7
MOST_VALUES = 10_000  # in a document, with lists and objects
MOST_CHARS = 200_000  # of texts, keys and numbers in a document
MOST_PARTS = 500  # fields, filters, parameters, keys of one object


def read_query(data: Any) -> Query | Errors:
    """The query that ``data`` (any JSON) is, or what is wrong with it, ``MOST_ERRORS`` at most. Raises nothing."""
    return list(islice(query_errors(data), MOST_ERRORS)) or Query.model_validate(data)


def read_request(data: Any) -> Request | Errors:
    """The request that ``data`` is, or the draft of one: a query alone, or one without ``datasource``.

    Raises nothing.
    """
    errors = list(islice(request_errors(data), MOST_ERRORS))
    return errors or Request.model_validate(as_request(data))


def request_errors(data: Any, *, api: int = API) -> Iterator[QueryError]:
    """All that is wrong with a request, a draft or a query, without knowing its data source; one by one, so that who
    needs no more looks for no more."""
    if not is_request(data):
        yield from query_errors(data, api=api)
        return
    if (large := _too_large(data)) is not None:
        yield large
        return
    yield from _unknown_keys(data, "the request", Request)
    if "query" not in data:
        yield QueryError("missing", ("query",), "Required field 'query' is missing")
    else:
        yield from (under(error, ("query",)) for error in query_errors(data["query"], api=api))
    if "datasource" in data:
        yield from _part_errors(Datasource, data, ("datasource",), "the data source")
        enough = {"datasourceLuid"} | ({"workbookDatasourceId"} if api >= 20263 else set())
        if isinstance(data["datasource"], dict) and not enough & set(data["datasource"]):
            yield luid_missing()
    if "options" in data:
        yield from _part_errors(Options, data, ("options",), "the options")
    yield from rules.newer_keys(data, api)


def luid_missing(*ways: Any) -> QueryError:
    """The error of a request that does not say which data source it asks."""
    place = ("datasource", "datasourceLuid")
    return QueryError("missing", place, "Required field 'datasource.datasourceLuid' is missing", ways)


def query_errors(data: Any, *, api: int = API) -> Iterator[QueryError]:
    """All that is wrong with a query, without knowing its data source; one by one."""
    if (large := _too_large(data)) is not None:
        yield large
        return
    if not isinstance(data, dict):
        yield QueryError("type", (), f"Expected a query, a JSON object with 'fields'; it is {shown(data)}")
        return
    broken: set[Place] = set()
    for error in _shape_errors(data):
        broken.add(error.place[:2])
        yield error
    yield from rules.query_rules(data, broken, api)


def _shape_errors(data: dict[str, Any]) -> Iterator[QueryError]:
    yield from _unknown_keys(data, "the query", Query)
    if data.get("fields") == [] or "fields" not in data:
        yield QueryError("missing", ("fields",), "Required field 'query.fields' is missing or empty")
    for name, check in _CHECKS.items():
        parts = data.get(name, [])
        if not isinstance(parts, list):
            text = f"Write '{name}' as a list: {{json}}"
            ways = [setting(data, (name,), [parts], text)] if isinstance(parts, dict) else []
            yield QueryError("type", (name,), f"'{name}' must be a list; it is {shown(parts)}", ways)
        elif len(parts) > MOST_PARTS:
            said = f"The query has {len(parts):,} {name}; expected at most {MOST_PARTS}"
            yield QueryError("size", (name,), said)
        else:
            yield from (error for i in range(len(parts)) for error in check(data, (name, i)))


def _unknown_keys(data: dict[str, Any], what: str, model: type[BaseModel]) -> Iterator[QueryError]:
    known = tuple(model.model_fields)
    yield from (_unknown_key(data, (key,), what, known) for key in data if key not in known)


def _too_large(data: Any) -> QueryError | None:
    """The error of a document past the limits; no other check could read it, or not in time."""
    level, values, chars = [data], 0, 0
    for _ in range(DEEPEST + 1):
        values += len(level)
        chars += sum(map(_chars, level))
        keys = max(len(value) if isinstance(value, dict) else 0 for value in level)
        bounds = (
            (MOST_VALUES, values, "values"),
            (MOST_CHARS, chars, "characters"),
            (MOST_PARTS, keys, "keys in one object"),
        )
        for most, found, what in bounds:
            if found > most:
                return QueryError("size", (), f"The query is too large; expected at most {most:,} {what}")
        level = [item for value in level for item in _inside(value)]
        if not level:
            return None
    return QueryError("size", (), f"The query is nested too deeply; expected at most {DEEPEST} levels")


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _chars(value: Any) -> int:
    """About how many characters a value has, without those inside of it."""
    if isinstance(value, str | dict):
        return len(value) if isinstance(value, str) else sum(map(len, value))
    return value.bit_length() // 3 if isinstance(value, int) else 0


# ------------------------------------------------------------------------------------------ one part

_FILTERS_WITH: dict[str, list[str]] = {}  # the types of filters that have a key
for _type, _keys in LANGUAGE["filters"].items():
    for _key in _keys:
        _FILTERS_WITH.setdefault(_key.removesuffix("!"), []).append(_type)


def _field_errors(data: dict[str, Any], place: Place) -> Errors:
    field = part_at(data, place)
    return _part_errors(FIELD_MODELS[field_kind(field)], data, place, _named("field", field))


def _parameter_errors(data: dict[str, Any], place: Place) -> Errors:
    named = _named("parameter", part_at(data, place), "parameterCaption")
    return _part_errors(Parameter, data, place, named)


def _named(kind: str, data: Any, key: str = "fieldCaption") -> str:
    """A part by its caption: ``field 'Sales'``; ``the field`` without one."""
    caption = data.get(key) if isinstance(data, dict) else None
    return f"{kind} {shown(caption)}" if isinstance(caption, str) and caption.strip() else f"the {kind}"


def _filter_errors(data: dict[str, Any], place: Place) -> Errors:
    part = part_at(data, place)
    if not isinstance(part, dict):
        return [QueryError("type", place, f"A filter must be a JSON object; it is {shown(part)}")]
    kind = part.get("filterType")
    if isinstance(kind, str) and kind in FILTER_MODELS:
        return _part_errors(FILTER_MODELS[kind], data, place, f"the {kind} filter")
    here = (*place, "filterType")
    telling = (types for key in part if len(types := _FILTERS_WITH.get(key, [])) == 1)
    ranked = list(dict.fromkeys(name for [name] in telling))
    if not ranked and isinstance(kind, str):
        ranked = [name for name, _ in did_you_mean(kind, FILTER_MODELS)]
    ways = [setting(data, here, name, f"Set the filter's type: {name}: {{json}}") for name in ranked]
    if "filterType" not in part:
        return [QueryError("missing", here, "Required key 'filterType' is missing in the filter", ways)]
    expected = ", ".join(FILTER_MODELS)
    return [QueryError("choice", here, f"Unknown filterType {shown(kind)}; expected one of {expected}", ways)]


_CHECKS = {"fields": _field_errors, "filters": _filter_errors, "parameters": _parameter_errors}


def _part_errors(model: type[BaseModel], data: Any, place: Place, what: str) -> Errors:
    """What is wrong with the shape of the part at ``place`` of ``data``, which ``model`` describes; if that is more
    than ``MOST_ERRORS``, one more than these.

    data: the whole query, so that suggestions can show it mended. what: the part, as messages name it.
    """
    part = part_at(data, place)
    if not isinstance(part, dict):
        ways = _captioned(data, place, part) if "fieldCaption" in model.model_fields else []
        return [QueryError("type", place, f"Expected {what} as a JSON object; it is {shown(part)}", ways)]
    try:
        model.model_validate(part)
    except ValidationError as error:
        distinct: dict[tuple[str, Place], QueryError] = {}
        for item in error.errors(include_url=False):
            one = _query_error(item, model, data, place, what)
            distinct.setdefault((one.kind, one.place), one)
            if len(distinct) > MOST_ERRORS:
                break
        return sorted(distinct.values(), key=_mends_others)
    return []


def _mends_others(error: QueryError) -> tuple[bool, bool]:
    """A key that is renamed mends others: a misspelt one comes first, then one of another kind of field."""
    return (error.kind != "unknown_key", error.place[-1] in _ALL_FIELD_KEYS)


# ---------------------------------------------------------------------------- one error of pydantic's

_EXCLUSIVE = ("function", "calculation", "binSize")
_ALL_FIELD_KEYS = tuple(dict.fromkeys(key for model in FIELD_MODELS.values() for key in model.model_fields))
_JSON_TYPES = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list"}


def _query_error(item: Any, model: type[BaseModel], data: Any, place: Place, what: str) -> QueryError:
    here = _place(part_at(data, place), item["loc"], place)
    key, value, kind = here[-1], part_at(data, here), item["type"]
    of = f"'{key}' in {what}"
    match kind:
        case "extra_forbidden":
            return _unknown_key(data, here, what, _known_keys(model, here[len(place) : -1]))
        case "literal_error" if key == "function":
            return _unknown_function(data, here, what, value)
        case "union_tag_not_found" | "union_tag_invalid" | "literal_error":
            return _choice(item, data, here, what, value)
        case "greater_than_equal" | "less_than_equal":
            return _number(item, data, here, what, value)
        case "missing":
            return QueryError("missing", here, f"Required key '{key}' is missing in {what}")
        case "model_type":  # of a part that refers to a field
            said = f"{of} must be an object; it is {shown(value)}"
            return QueryError("type", here, said, _captioned(data, here, value))
        case "null":
            return QueryError("null", here, f"{of} must not be null", [removal(data, here)])
        case "string_too_short" | "too_short" | "string_pattern_mismatch":
            optional = key in ("fieldAlias", "contains", "startsWith", "endsWith")
            return QueryError("blank", here, f"{of} must not be empty", [removal(data, here)] if optional else [])
        case "date":
            meant = nearest_date(value)
            ways = [setting(data, here, meant, f"Write the date as {meant}: {{json}}")] if meant else []
            said = f"must be a date of RFC 3339 (YYYY-MM-DD); it is {shown(value)}"
            return QueryError("date", here, f"{key} in {what} {said}", ways)
    wanted = kind.removesuffix("_type").replace("string", "str")
    converted = _converted(value, wanted)
    text = f"Write {key} as {shown(converted)}: {{json}}"
    ways = [setting(data, here, converted, text)] if converted is not None else []
    said = f"must be {_JSON_TYPES.get(wanted, 'another value')}; it is {shown(value)}"
    return QueryError("type", here, f"{of} {said}", ways)


def _place(part: Any, loc: tuple[str | int, ...], place: Place) -> Place:
    """Where an error is: pydantic's steps without the names of models and tags among them."""
    here = place
    for i, step in enumerate(loc):
        inside = part_at(part, (step,)) is not REMOVE
        if inside:
            part = part[step]
        if inside or (i == len(loc) - 1 and isinstance(part, dict) and step not in _JSON_TYPES):
            here = (*here, step)
    return here


def _known_keys(model: type[BaseModel], inside: Place) -> tuple[str, ...]:
    if inside:
        return ("fieldCaption", "function", "calculation", "direction", "dimensions", "levelAddress")
    return _ALL_FIELD_KEYS if model in FIELD_MODELS.values() else tuple(model.model_fields)


def _unknown_key(data: Any, here: Place, what: str, known: tuple[str, ...]) -> QueryError:
    key, parent = here[-1], here[:-1]
    siblings = part_at(data, parent)
    together = [other for other in (*_EXCLUSIVE, "tableCalculation") if other in siblings]
    if key in _EXCLUSIVE and len(together) > 1:
        return _exclusive(data, parent, what, together)
    ways = []
    if key == "function" and isinstance(siblings.get("field"), dict) and "function" not in siblings["field"]:
        moved = Change((*parent, "field", key), siblings[key]), Change(here)
        ways.append(suggest(data, f"Move '{key}' into 'field': {{json}}", parent[:2], *moved))
    ways += [
        suggest(data, f"Write '{name}' in place of '{key}': {{json}}", parent[:2], *_renamed(here, name, siblings))
        for name, likelihood in did_you_mean(str(key), [name for name in known if name not in siblings], least=0.6)
        if likelihood >= 0.6 and key not in known
    ]
    ways.append(removal(data, here, likelihood=0.4))
    return QueryError("unknown_key", here, f"Unknown key '{key}' in {what}", ways[:3])


def _renamed(here: Place, name: str, siblings: Any) -> tuple[Change, Change]:
    value = siblings[here[-1]]
    value = {"fieldCaption": value} if name == "field" and isinstance(value, str) else value
    return Change((*here[:-1], name), value), Change(here)


def _exclusive(data: Any, parent: Place, what: str, keys: Sequence[str]) -> QueryError:
    names = " and ".join(f"'{key}'" for key in keys)
    order = sorted(keys, key=lambda key: key != "function")
    ways = [removal(data, (*parent, key), f"Remove '{key}' from {what}: {{json}}", 0.7) for key in order]
    message = f"{what[:1].upper()}{what[1:]} has {names}, which exclude each other"
    return QueryError("exclusive", parent, message, ways)


def _unknown_function(data: Any, here: Place, what: str, value: Any) -> QueryError:
    message = f"Unknown function {shown(value)} in {what}"
    names: list[str] = []
    if isinstance(value, str) and value not in ("NONE", "UNSPECIFIED"):  # the service lists them, and they name none
        plain = value.strip().upper().replace(" ", "_")
        plain = LANGUAGE["synonyms"].get(plain, plain)
        names = [plain] if plain in FUNCTIONS else [name for name, _ in did_you_mean(plain, FUNCTIONS)]
    ranked = [(name, 0.9 - 0.2 * i) for i, name in enumerate(names)]
    ways = alternatives(data, here, f"Function {shown(value)} is not valid", ranked)
    ways.append(removal(data, here, "Remove the function: {json}", 0.3))
    return QueryError("unknown_function", here, message, ways)


def _choice(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    if item["type"].startswith("union_tag"):
        here = (*here, item["ctx"]["discriminator"].strip("'"))
        value = part_at(data, here)
    names = re.findall(r"'([^']+)'", item["ctx"].get("expected") or "") or list(LANGUAGE["tableCalculations"])
    ranked = did_you_mean(str(value).upper(), names) if value is not REMOVE else []
    ways = [setting(data, here, name, f"Set {here[-1]} to {name}: {{json}}") for name, _ in ranked]
    said = f"Required key '{here[-1]}' is missing" if value is REMOVE else f"Unknown {here[-1]} {shown(value)}"
    return QueryError("choice", here, f"{said} in {what}; expected one of {', '.join(names)}", ways)


def _number(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    sign, key = (">=", "ge") if item["type"] == "greater_than_equal" else ("<=", "le")
    limit = item["ctx"][key]
    bound = int(limit) if limit == int(limit) else limit
    way = setting(data, here, bound, f"Set {here[-1]} to {bound}: {{json}}")
    message = f"{here[-1]} in {what} must be {sign} {bound}; it is {shown(value)}"
    return QueryError("number", here, message, [way, removal(data, here, likelihood=0.5)])


def _captioned(data: Any, here: Place, value: Any) -> Sequence[Any]:
    """Where a text stands in place of a field: the field of that caption."""
    text = "Write it as an object: {json}"
    return [setting(data, here, {"fieldCaption": value}, text)] if isinstance(value, str) else []


def nearest_date(value: Any) -> str | None:
    """The date that a text or date-time means, as RFC 3339 has it; None where it is not clear."""
    text = str(value).strip()
    parts = re.match(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)", text) or re.match(r"(\d{4})(\d\d)(\d\d)$", text)
    parts = parts or re.match(r"(\d{4})(?:-(\d\d))?$", text)
    if parts is None:
        return None
    year, month, day = ([int(part or 1) for part in parts.groups()] + [1])[:3]
    for last in (day, 30, 29, 28):  # 2024-02-31: the last of the month
        try:
            return date(year, month, min(day, last)).isoformat()
        except ValueError:
            continue
    return None


_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


def _converted(value: Any, wanted: str) -> Any:
    """``value`` as the wanted type where it says the same; None where it does not."""
    text = str(value).strip()
    if wanted == "bool":
        return _TRUTHS.get(text.lower())
    if wanted in ("int", "int_from_float") and re.fullmatch(r"-?\d{1,15}(\.0+)?", text):
        return int(float(text))
    if wanted == "float" and re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", text):
        return float(text) if "." in text else int(text)
    if wanted == "str" and isinstance(value, int | float) and not isinstance(value, bool):
        return text
    return [value] if wanted == "list" and not isinstance(value, dict | list) and value is not None else None
