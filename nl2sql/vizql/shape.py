"""Parts of a query held to their models: every error of pydantic's in the service's words, with what would mend it.

>>> query = {"fields": [{"fieldCaption": "Sales", "function": "SUMM"}]}
>>> [error] = part_errors(FIELD_MODELS["measure"], query, ("fields", 0), "field 'Sales'")
>>> error.message, error.suggestions[0].text
("Unknown function 'SUMM' in field 'Sales'", "Function 'SUMM' is not valid. Did you mean: SUM?")

Not covered: rules between the values of a part (``rules``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from nl2sql.vizql.fields import FIELD_MODELS, FUNCTIONS, NO_FUNCTIONS
from nl2sql.vizql.filters import FILTER_MODELS
from nl2sql.vizql.mending import (
    MOST_ERRORS,
    REMOVE,
    Change,
    Place,
    QueryError,
    Suggestion,
    did_you_mean,
    part_at,
    shown,
    suggest,
)

Errors: TypeAlias = list[QueryError]
SYNONYMS = {  # what other query languages call a function
    "AVERAGE": "AVG",
    "MEAN": "AVG",
    "TOTAL": "SUM",
    "CNT": "COUNT",
    "DISTINCT": "COUNTD",
    "COUNT_DISTINCT": "COUNTD",
    "COUNTDISTINCT": "COUNTD",
    "UNIQUE": "COUNTD",
    "MAXIMUM": "MAX",
    "MINIMUM": "MIN",
    "STDDEV": "STDEV",
    "STD": "STDEV",
    "VARIANCE": "VAR",
}
_FILTER_TYPE_OF = {  # a key that only filters of one type have
    "values": "SET",
    "contains": "MATCH",
    "startsWith": "MATCH",
    "endsWith": "MATCH",
    "min": "QUANTITATIVE_NUMERICAL",
    "max": "QUANTITATIVE_NUMERICAL",
    "minDate": "QUANTITATIVE_DATE",
    "maxDate": "QUANTITATIVE_DATE",
    "periodType": "DATE",
    "dateRangeType": "DATE",
    "howMany": "TOP",
    "condition": "CONDITION",
}
_EXCLUSIVE = ("function", "calculation", "binSize")
_ALL_FIELD_KEYS = tuple(dict.fromkeys(key for model in FIELD_MODELS.values() for key in model.model_fields))
_NUMBERS = {"greater_than_equal": "ge", "less_than_equal": "le"}
_JSON_TYPES = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list"}


def named(kind: str, data: Any, key: str = "fieldCaption") -> str:
    """A part by its caption: ``field 'Sales'``; ``the field`` without one."""
    caption = data.get(key) if isinstance(data, dict) else None
    return f"{kind} {shown(caption)}" if isinstance(caption, str) and caption.strip() else f"the {kind}"


def filter_errors(data: dict[str, Any], place: Place) -> Errors:
    """What is wrong with the shape of the filter at ``place`` of a query."""
    part = part_at(data, place)
    if not isinstance(part, dict):
        return [QueryError("type", place, f"A filter must be a JSON object; it is {shown(part)}")]
    kind = part.get("filterType")
    if isinstance(kind, str) and kind in FILTER_MODELS:
        return part_errors(FILTER_MODELS[kind], data, place, f"the {kind} filter")
    here = (*place, "filterType")
    meant = dict.fromkeys(_FILTER_TYPE_OF[key] for key in part if key in _FILTER_TYPE_OF)
    ranked = list(meant) or ([n for n, _ in did_you_mean(kind, FILTER_MODELS)] if isinstance(kind, str) else [])
    ways = tuple(_replacement(data, here, name, f"Set the filter's type: {name}: {{json}}") for name in ranked)
    if "filterType" not in part:
        return [QueryError("missing", here, "Required key 'filterType' is missing in the filter", ways)]
    expected = ", ".join(FILTER_MODELS)
    return [QueryError("choice", here, f"Unknown filterType {shown(kind)}; expected one of {expected}", ways)]


def unknown_keys(data: dict[str, Any], place: Place, what: str, known: Iterable[str]) -> Iterator[QueryError]:
    """The keys of the part at ``place`` that are not ``known``."""
    part, names = part_at(data, place), tuple(known)
    yield from (_unknown_key(data, (*place, key), what, names) for key in part if key not in names)


def part_errors(model: type[BaseModel], data: Any, place: Place, what: str) -> Errors:
    """What is wrong with the shape of the part at ``place`` of ``data``, which ``model`` describes; if that is more
    than ``MOST_ERRORS``, one more than these.

    data: the whole query, so that suggestions can show it mended. what: the part, as messages name it.
    """
    part = part_at(data, place)
    if not isinstance(part, dict):
        ways = _captioned(data, place, part) if "fieldCaption" in model.model_fields else ()
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


def _query_error(item: Any, model: type[BaseModel], data: Any, place: Place, what: str) -> QueryError:
    kind, here = item["type"], _place(part_at(data, place), item["loc"], place)
    value = part_at(data, here)
    if kind == "extra_forbidden":
        return _unknown_key(data, here, what, _known_keys(model, here[len(place) : -1]))
    if kind == "missing":
        return QueryError("missing", here, f"Required key '{here[-1]}' is missing in {what}")
    if kind == "literal_error" and here[-1] == "function":
        return _unknown_function(data, here, what, value)
    if kind in ("union_tag_not_found", "union_tag_invalid") or kind == "literal_error":
        return _choice(item, data, here, what)
    make = _MADE.get(kind, _wrong_type)
    return make(item, data, here, what, value)


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
    if not inside and model in FIELD_MODELS.values():
        return _ALL_FIELD_KEYS
    if inside:
        return ("fieldCaption", "function", "calculation", "direction", "dimensions", "levelAddress")
    return tuple(model.model_fields)


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
        for name, likely in did_you_mean(str(key), [name for name in known if name not in siblings], least=0.6)
        if likely >= 0.6 and key not in known
    ]
    ways.append(_removal(data, here, f"Remove '{key}': {{json}}", likelihood=0.4))
    return QueryError("unknown_key", here, f"Unknown key '{key}' in {what}", tuple(ways[:3]))


def _renamed(here: Place, name: str, siblings: Any) -> tuple[Change, Change]:
    value = siblings[here[-1]]
    value = {"fieldCaption": value} if name == "field" and isinstance(value, str) else value
    return Change((*here[:-1], name), value), Change(here)


def _exclusive(data: Any, parent: Place, what: str, keys: list[str]) -> QueryError:
    names = " and ".join(f"'{key}'" for key in keys)
    order = sorted(keys, key=lambda key: key not in ("function",))
    ways = [_removal(data, (*parent, key), f"Remove '{key}' from {what}: {{json}}", likelihood=0.7) for key in order]
    message = f"{what[:1].upper()}{what[1:]} has {names}, which exclude each other"
    return QueryError("exclusive", parent, message, tuple(ways))


def _unknown_function(data: Any, here: Place, what: str, value: Any) -> QueryError:
    message = f"Unknown function {shown(value)} in {what}"
    names: list[str] = []
    if isinstance(value, str) and value not in NO_FUNCTIONS:
        plain = value.strip().upper().replace(" ", "_")
        exact = [plain] if plain in FUNCTIONS else [SYNONYMS[plain]] if plain in SYNONYMS else []
        names = exact or [name for name, _ in did_you_mean(plain, FUNCTIONS)]
    text = f"Function {shown(value)} is not valid. Did you mean: {', '.join(names)}?"
    ways = [_replacement(data, here, name, text, likelihood=0.9 - 0.2 * i) for i, name in enumerate(names)]
    removal = _removal(data, here, "Remove the function: {json}", likelihood=0.3)
    return QueryError("unknown_function", here, message, (*ways, removal))


def _choice(item: Any, data: Any, here: Place, what: str) -> QueryError:
    tagged = item["type"].startswith("union_tag")
    here = (*here, item["ctx"]["discriminator"].strip("'")) if tagged else here
    value = part_at(data, here)
    text = item["ctx"].get("expected") or item["ctx"].get("expected_tags") or ""
    names = re.findall(r"'([^']+)'", text) or list(_TABLE_CALCULATIONS)
    ranked = did_you_mean(str(value).upper(), names) if value is not REMOVE else []
    ways = tuple(_replacement(data, here, name, f"Set {here[-1]} to {name}: {{json}}") for name, _ in ranked)
    said = f"Required key '{here[-1]}' is missing" if value is REMOVE else f"Unknown {here[-1]} {shown(value)}"
    return QueryError("choice", here, f"{said} in {what}; expected one of {', '.join(names)}", ways)


_TABLE_CALCULATIONS = (
    *("CUSTOM", "NESTED", "DIFFERENCE_FROM", "PERCENT_DIFFERENCE_FROM", "PERCENT_FROM", "PERCENT_OF_TOTAL"),
    *("RANK", "PERCENTILE", "RUNNING_TOTAL", "MOVING_CALCULATION"),
)


def _null(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    way = _removal(data, here, f"Remove '{here[-1]}': {{json}}")
    return QueryError("null", here, f"'{here[-1]}' in {what} must not be null", (way,))


def _blank(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    optional = here[-1] in ("fieldAlias", "contains", "startsWith", "endsWith")
    ways = (_removal(data, here, f"Remove '{here[-1]}': {{json}}"),) if optional else ()
    return QueryError("blank", here, f"'{here[-1]}' in {what} must not be empty", ways)


def _number(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    limit = item["ctx"][_NUMBERS[item["type"]]]
    bound = int(limit) if limit == int(limit) else limit
    sign = ">=" if item["type"] == "greater_than_equal" else "<="
    way = _replacement(data, here, bound, f"Set {here[-1]} to {bound}: {{json}}")
    away = _removal(data, here, f"Remove '{here[-1]}': {{json}}", likelihood=0.5)
    message = f"{here[-1]} in {what} must be {sign} {bound}; it is {shown(value)}"
    return QueryError("number", here, message, (way, away))


def _date(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    meant = nearest_date(value)
    ways = (_replacement(data, here, meant, f"Write the date as {meant}: {{json}}"),) if meant else ()
    message = f"{here[-1]} in {what} must be a date of RFC 3339 (YYYY-MM-DD); it is {shown(value)}"
    return QueryError("date", here, message, ways)


def _wrong_type(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    wanted = item["type"].removesuffix("_type").replace("string", "str")
    meant = _converted(value, wanted)
    ways = (
        (_replacement(data, here, meant, f"Write {here[-1]} as {shown(meant)}: {{json}}"),) if meant is not None else ()
    )
    expected = _JSON_TYPES.get(wanted, "another value")
    return QueryError("type", here, f"'{here[-1]}' in {what} must be {expected}; it is {shown(value)}", ways)


def _no_object(item: Any, data: Any, here: Place, what: str, value: Any) -> QueryError:
    message = f"'{here[-1]}' in {what} must be an object; it is {shown(value)}"
    return QueryError("type", here, message, _captioned(data, here, value))


_MADE: dict[str, Callable[..., QueryError]] = {
    "model_type": _no_object,  # of a part that refers to a field
    "null": _null,
    "string_too_short": _blank,
    "too_short": _blank,
    "greater_than_equal": _number,
    "less_than_equal": _number,
    "date": _date,
}


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


def _converted(value: Any, wanted: str) -> Any:
    """``value`` as the wanted type where it says the same; None where it does not."""
    text = str(value).strip()
    if wanted == "bool":
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if wanted in ("int", "int_from_float") and re.fullmatch(r"-?\d{1,15}(\.0+)?", text):
        return int(float(text))
    if wanted == "float" and re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", text):
        return float(text) if "." in text else int(text)
    if wanted == "str" and isinstance(value, int | float) and not isinstance(value, bool):
        return text
    return [value] if wanted == "list" and not isinstance(value, dict | list) and value is not None else None


def _captioned(data: Any, here: Place, value: Any) -> tuple[Suggestion, ...]:
    """Where a text stands in place of a field: the field of that caption."""
    if not isinstance(value, str):
        return ()
    return (_replacement(data, here, {"fieldCaption": value}, "Write it as an object: {json}"),)


def _replacement(data: Any, here: Place, value: Any, text: str, likelihood: float = 0.9) -> Suggestion:
    return suggest(data, text, here[:2], Change(here, value), likelihood=likelihood)


def _removal(data: Any, here: Place, text: str, likelihood: float = 0.9) -> Suggestion:
    return suggest(data, text, here[:2], Change(here), likelihood=likelihood)
