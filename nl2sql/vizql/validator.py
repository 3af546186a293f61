"""Is a structured query valid over a data source, what is wrong with it, and what would mend it?

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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from nl2sql.config import VizqlConfig
from nl2sql.vizql.filter_semantics import filter_errors
from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import (
    MOST_ERRORS,
    REMOVE,
    Change,
    Place,
    QueryError,
    Suggestion,
    apply,
    part_at,
    suggest,
    under,
)
from nl2sql.vizql.oddities import warnings_of
from nl2sql.vizql.parameters import parameter_errors
from nl2sql.vizql.query import is_request, luid_missing, request_errors
from nl2sql.vizql.semantics import field_errors
from nl2sql.vizql.source import DataSource
from nl2sql.vizql.values import value_errors

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

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


__all__ = ["Validation", "apply", "validate"]
