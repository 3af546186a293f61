"""Is a structured query valid over a data source, what is wrong or odd, and what would mend it?

Two parts, as the specification has them (section "Validation Flow"). *Basic*: structure, field names in any case,
functions. *Semantic*, where the data source knows roles: measures need a function, dimensions have none, functions
fit types, names are written exactly, and values of filters exist in the database.

>>> source = DataSource.model_validate({"fields": [{"fieldCaption": c} for c in ("Region", "Revenue", "Segment")]})
>>> validation = validate({"fields": [{"fieldCaption": "Regoin"}]}, source)
>>> validation.is_valid, validation.validation_errors
(False, ["Field 'Regoin' not found in schema"])
>>> validation.validation_suggestions
["Field 'Regoin' not found. Did you mean: Region, Revenue?"]
>>> apply({"fields": [{"fieldCaption": "Regoin"}]}, validation.errors[0].suggestions[0])
{'fields': [{'fieldCaption': 'Region'}]}

Not covered: whether a valid query can be executed here, and what a result shows (``docs/vizql.md``); the periods of
date parameters.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

from sqlglot import exp

from nl2sql.config import VizqlConfig
from nl2sql.interfaces import Database
from nl2sql.vizql.autofix import (
    MOST_ERRORS,
    REMOVE,
    Change,
    Place,
    QueryError,
    Suggestion,
    alternatives,
    apply,
    did_you_mean,
    part_at,
    shown,
    suggest,
    under,
)
from nl2sql.vizql.query import DIALECT, is_moment, is_request
from nl2sql.vizql.query_errors import luid_missing, request_errors
from nl2sql.vizql.rules import field_name
from nl2sql.vizql.semantics import Checked, Errors, field_errors, filter_errors, is_of, meant_as
from nl2sql.vizql.source import DataSource, FieldMetadata, ParameterRecord, groups, together

__all__ = ["Validation", "apply", "distinct_texts", "validate"]


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
    head = ("query",) if is_request(document) else ()
    query, options = (document.get("query"), document.get("options")) if head else (document, None)
    checked = None  # where either cannot be looked into
    if source is not None and isinstance(query, dict) and isinstance(query.get("fields"), list):
        checked = Checked(query, source, settings, options if isinstance(options, dict) else {})
    structure = chain(request_errors(document, api=settings.api), _no_datasource(document, source))
    found = list(islice(_errors(structure, head, checked, database), MOST_ERRORS + 1))
    if not found:
        rules = (_of_the_query, _of_two_fields, _unrelated_tables)
        lines = [line for rule in rules for line in rule(checked)] if checked else []
        return Validation((), (*_other_datasource(document, source), *lines))
    errors = sorted(found[:MOST_ERRORS], key=lambda error: _rank(error.place, head))
    errors.sort(key=lambda error: _unlikely(*error.suggestions[:1]))
    if len(found) > MOST_ERRORS:
        said = f"There are more errors than these {MOST_ERRORS}; mend these and validate the query again"
        errors.append(QueryError("more", (), said))
    return Validation(tuple(errors))


def _errors(structure: Iterator[QueryError], head: Place, checked: Checked | None, database: Database | None) -> Errors:
    """What is wrong, one by one: who has enough of them looks for no more."""
    broken: set[Place] = set()
    for error in structure:
        yield error
        broken.add(error.place[len(head) :][:2])
        if error.place == ():
            return  # nothing in it can be looked at
    if checked is None:
        return
    sound = []
    for place in _places(checked.query):
        if place in broken or place[:1] in broken:
            continue
        errors = list(_CHECKS[str(place[0])](checked, place))
        yield from (under(error, head) for error in errors)
        if place[0] == "filters" and place not in [error.place[:2] for error in errors]:
            sound.append(place)
    if database is not None and checked.settings.check_values and checked.source.enriched:
        yield from (under(error, head) for error in value_errors(checked, sound, database))


def _unlikely(*ways: Suggestion) -> float:
    return -ways[0].likelihood if ways else 0.0


_ORDER = ("", "datasource", "fields", "filters", "parameters", "options")


def _rank(place: Place, head: Place) -> tuple[int, int]:
    inside = place[len(head) :] if place[: len(head)] == head else place
    name = str(inside[0]) if inside else ""
    index = inside[1] if len(inside) > 1 and isinstance(inside[1], int) else -1
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), index)


def _places(query: dict[str, Any]) -> list[Place]:
    lists = ((name, query.get(name)) for name in _CHECKS)
    return [(name, i) for name, parts in lists if isinstance(parts, list) for i in range(len(parts))]


def _no_datasource(document: Any, source: DataSource | None) -> Errors:
    """A request must say which data source it asks. One of which only the luid is missing is completed with it."""
    if is_request(document) and "datasource" not in document and not (source and source.luid):
        change = Change(("datasource",), {"datasourceLuid": (source and source.name) or "LUID"})
        yield luid_missing(suggest(document, "Add the data source: {json}", ("datasource",), change))


def _other_datasource(document: Any, source: DataSource | None) -> list[str]:
    """A request may name another data source: a service refuses it, a file is asked in its place."""
    asked = part_at(document, ("datasource", "datasourceLuid")) if is_request(document) else None
    if not (source and source.luid) or not isinstance(asked, str) or asked in (REMOVE, source.luid):
        return []
    return [f"The request asks data source '{asked}', and this is '{source.luid}'"]


# ---------------------------------------------------------------------------------------- parameters

_SAID = {
    "DATE": "a date of RFC 3339 (YYYY-MM-DD)",
    "DATETIME": "a date or a moment of RFC 3339 (YYYY-MM-DDThh:mm:ss)",
}


def parameter_errors(checked: Checked, place: Place) -> Errors:
    """What is wrong with the parameter at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    caption, here = part["parameterCaption"], (*place, "parameterCaption")
    known = checked.source.parameter(caption)
    if known is None:
        ranked = did_you_mean(caption, [parameter.parameterCaption for parameter in checked.source.parameters])
        ways = alternatives(checked.query, here, f"Parameter '{caption}' not found", ranked)
        ways.append(checked.away(place, f"Remove parameter '{caption}'", 0.2))
        yield QueryError("not_found", here, f"Parameter '{caption}' not found in schema", ways)
    elif (wrong := _wrong(known, part["value"])) is not None:
        said, meant = wrong
        text = f"Set '{caption}' to {shown(meant)}: {{json}}"
        ways = [checked.put((*place, "value"), meant, text)] if meant is not None else []
        message = f"Parameter '{caption}' must be {said}; it is {shown(part['value'])}"
        yield QueryError("parameter", (*place, "value"), message, ways)


def _wrong(known: ParameterRecord, value: Any) -> tuple[str, Any] | None:
    """What a value must be that is not, and the nearest one that is."""
    kind, a_range = known.dataType, known.parameterType
    if (kind == "INTEGER" and isinstance(value, float)) or not is_of(value, kind):
        meant = meant_as(value, kind)
        if kind in _SAID and isinstance(value, str):
            return _SAID[kind], meant
        return f"of type {kind}", round(meant) if kind == "INTEGER" and meant is not None else meant
    if a_range == "LIST":
        listed = [member.get("value") for member in known.members]
        if value in listed or not listed:
            return None
        near = did_you_mean(str(value), [str(member) for member in listed])[0][0]
        return f"one of {shown(listed)}", next(member for member in listed if str(member) == near)
    if a_range == "QUANTITATIVE_DATE" and isinstance(value, str) and is_moment(value):
        least, most = (end if end is not None and is_moment(end) else None for end in (known.minDate, known.maxDate))
        return _outside(least, most, value, lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=None))
    if a_range == "QUANTITATIVE_RANGE" and isinstance(value, int | float):
        return _outside(known.min, known.max, value, lambda number: number) or _off_step(known, value)
    return None


def _outside(least: Any, most: Any, value: Any, key: Callable[[Any], Any]) -> tuple[str, Any] | None:
    if least is not None and key(value) < key(least):
        return f"at least {least}", least
    if most is not None and key(value) > key(most):
        return f"at most {most}", most
    return None


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
    return f"{start} and steps of {step}", nearest


_CHECKS = {"fields": field_errors, "filters": filter_errors, "parameters": parameter_errors}

# -------------------------------------------------------------- the values of SET and MATCH filters
# A column's distinct values are read, at most ``MOST`` of them; where there are more, nothing is
# said of that filter. Not covered: filters with functions or formulas, dates, and numbers, where 5
# and 5.0 are one value.

MOST = 2_000  # distinct values of one column
SECONDS = 10.0


def value_errors(checked: Checked, places: Sequence[Place], database: Database) -> Errors:
    """The values at those ``places`` (of filters) that no cell of the database holds.

    A query that fails says nothing of the values: a database that is away is no error of the query.
    """
    checks = {"SET": _set_values, "MATCH": _match_texts}
    columns: dict[Place, FieldMetadata] = {}
    for place in places:
        part, known = part_at(checked.query, place), checked.field_at((*place, "field"))
        if known and part["filterType"] in checks and set(part["field"]) == {"fieldCaption"}:
            columns[place] = known
    texts = distinct_texts(checked.source, list(columns.values()), database, most=MOST)
    for place, known in columns.items():
        if known.fieldCaption in texts:
            aliases = (alias.get("value") for alias in known.aliases)
            there = [*texts[known.fieldCaption], *(str(shown) for shown in aliases if shown is not None)]
            check = checks[part_at(checked.query, place)["filterType"]]
            yield from check(checked, place, there, checked.name_of(known))


def distinct_texts(
    source: DataSource, fields: Sequence[FieldMetadata], database: Database, *, most: int
) -> dict[str, list[str]]:
    """The distinct texts of each text column among ``fields``, by caption, sorted; one bounded query.

    They are texts as a query writes them: SQLite may hold 123 in a column of texts, and DuckDB has UUIDs. A column
    with more than ``most`` of them is left out, as are all where the query fails.
    """
    columns = {f.fieldCaption: f for f in fields if f.columnClass == "COLUMN" and f.dataType == "STRING"}
    columns = {caption: field for caption, field in columns.items() if source.table_of(field)}
    if not columns or database.dialect == DIALECT:  # it takes no SQL; what its columns hold is its own affair
        return {}
    sql = _sql(source, columns, database.dialect, most)
    result = database.run(sql, timeout_s=SECONDS, max_rows=len(columns) * (most + 1))
    if not result.success or result.truncated:
        return {}
    values: list[list[Any]] = [[] for _ in columns]
    for i, value in result.rows:
        values[int(i)].append(value)
    return {
        caption: sorted({str(value) for value in there if value is not None and not isinstance(value, bytes)})
        for caption, there in zip(columns, values, strict=True)
        if len(there) <= most
    }


def _sql(source: DataSource, columns: Mapping[str, FieldMetadata], dialect: str, most: int) -> str:
    selects: list[exp.Query] = []
    for i, known in enumerate(columns.values()):
        name = exp.column(exp.to_identifier(known.column, quoted=True))
        table = exp.Table(this=exp.to_identifier(source.table_of(known), quoted=True))
        inner = exp.select(name.as_("v")).distinct().from_(table).where(name.is_(exp.null()).not_())
        of = exp.select(exp.Literal.number(i).as_("i"), exp.column("v"))
        selects.append(of.from_(inner.limit(most + 1).subquery("s")))
    whole = selects[0]
    for other in selects[1:]:
        whole = exp.union(whole, other, distinct=False, copy=False)
    return whole.sql(dialect=dialect)


def _set_values(checked: Checked, place: Place, known: list[str], caption: str) -> Errors:
    values, there = part_at(checked.query, (*place, "values")), frozenset(known)
    for i, value in enumerate(values):
        if not isinstance(value, str) or value in there:
            continue
        here = (*place, "values", i)
        ranked = [pair for pair in did_you_mean(value, known) if pair[0] not in values]
        ways = alternatives(checked.query, here, f"Value {shown(value)} not found in '{caption}'", ranked)
        if len(values) > 1:
            ways.append(checked.away(here, f"Remove {shown(value)}: {{json}}", 0.3))
        yield QueryError("value", here, f"Value {shown(value)} not found in field '{caption}'", ways)


def _match_texts(checked: Checked, place: Place, known: list[str], caption: str) -> Errors:
    """A MATCH filter that no value passes; upper and lower case are one, since the service does not say."""
    part = part_at(checked.query, place)
    given = {key: part[key] for key in ("startsWith", "endsWith", "contains") if key in part}
    for value in known:
        plain = value.casefold()
        tests = {"startsWith": plain.startswith, "endsWith": plain.endswith, "contains": plain.__contains__}
        if all(tests[key](text.casefold()) for key, text in given.items()):
            return
    said = " and ".join(f"{key} {shown(text)}" for key, text in given.items())
    ways = []
    if len(given) == 1:
        [(key, text)] = given.items()
        for name, likelihood in did_you_mean(text, known):
            line = f"No value of '{caption}' has {said}. Did you mean: {name}?"
            ways.append(checked.put((*place, key), name, line, likelihood))
    yield QueryError("value", place, f"No value of field '{caption}' has {said}", ways)


# ------------------------------------------------------------------------------------------ warnings
# One line for each oddity of a query whose shape is right; none makes it invalid.


def _of_the_query(checked: Checked) -> Iterator[str]:
    fields, filters = checked.query["fields"], checked.query.get("filters") or []
    for part in fields:
        if "sortDirection" in part and "sortPriority" not in part:
            yield f"Field {field_name(part)} has a sortDirection and no sortPriority: it is not sorted by"
    tops = [part for part in filters if part["filterType"] == "TOP"]
    for part in filters if tops else ():
        if part["filterType"] != "TOP" and not part.get("context") and groups(part["field"].get("function")):
            about = f"the TOP filter on {field_name(tops[0]['field'])}"
            said = f"The filter on {field_name(part['field'])} is applied beside {about}"
            yield f"{said}; context: true applies it before"
    for part in fields if checked.options.get("disaggregate") is True else ():
        if not groups(part.get("function")) and "tableCalculation" not in part:
            yield f"disaggregate gives rows as they are; {field_name(part)} is aggregated over one row each"
    for name, times in Counter(part["fieldAlias"] for part in fields if "fieldAlias" in part).items():
        if times > 1:
            yield f"Alias '{name}' is given {times} times: a result as objects keeps one of them"
    plain = {part["fieldCaption"] for part in fields if not set(part) & {"function", "calculation"}}
    for part in fields:
        if part.get("function") and groups(part["function"]) and part["fieldCaption"] in plain:
            yield f"{field_name(part)} stands beside '{part['fieldCaption']}' itself: each date is a group of its own"
    asked = {part["fieldCaption"] for part in fields}
    for part in fields:
        for reference in part.get("tableCalculation", {}).get("dimensions", ()):
            if reference["fieldCaption"] not in asked:
                yield f"{field_name(part)} runs along '{reference['fieldCaption']}', which the query does not ask for"


def _of_two_fields(checked: Checked) -> Iterator[str]:
    """A service may describe two fields of one name; the first is meant, whichever was."""
    times = Counter(map(checked.name_of, checked.source.fields))
    behind = {"fields": (), "filters": ("field",)}
    places = [(*place, *behind[str(place[0])]) for place in _places(checked.query) if place[0] in behind]
    known = [field for place in places if (field := checked.field_at(place)) is not None]
    for name, field in {checked.name_of(field): field for field in known}.items():
        if times[name] > 1:
            table = checked.source.table_of(field) or field.logicalTableId
            yield f"'{name}' is the name of {times[name]} fields; that of table '{table}' is meant"


def _unrelated_tables(checked: Checked) -> Iterator[str]:
    fields = [checked.field_at(("fields", i)) for i in range(len(checked.query["fields"]))]
    ids = dict.fromkeys(known.logicalTableId for known in fields if known and known.logicalTableId)
    related = together(relation.ends for relation in checked.source.logicalTableRelationships)
    for pair in pairwise(ids):
        if not any({*pair} <= tables for tables in related):
            yield f"No relationship leads from table '{pair[0]}' to '{pair[1]}'"
