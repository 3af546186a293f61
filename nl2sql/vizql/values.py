"""Do the values of SET and MATCH filters exist? One bounded query per validation, through ``Database.run``.

>>> list(_ends({"startsWith": "we", "endsWith": "t"}, ["East", "West"]))
['West']

A column's distinct values are read, at most ``MOST`` of them; where there are more, nothing is said of that filter.
Not covered: filters with functions or formulas, dates, and numbers, where 5 and 5.0 are one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import Change, Place, QueryError, did_you_mean, part_at, shown
from nl2sql.vizql.query import DIALECT
from nl2sql.vizql.source import DataSource, FieldMetadata

if TYPE_CHECKING:
    from sqlglot import exp

    from nl2sql.interfaces import Database

K = TypeVar("K")
MOST = 2_000  # distinct values of one column
SECONDS = 10.0
_KEYS = ("startsWith", "endsWith", "contains")


def value_errors(checked: Checked, places: Sequence[Place], database: Database) -> Iterator[QueryError]:
    """The values at those ``places`` (of filters) that no cell of the database holds.

    A query that fails says nothing of the values: a database that is away is no error of the query.
    """
    columns = {place: known for place in places if (known := _column(checked, place)) is not None}
    fields = {known.fieldCaption: known for known in columns.values()}
    values = _distinct(checked.source, fields, database, MOST) if fields else {}
    texts = {
        caption: _texts((*there, *(alias.get("value") for alias in fields[caption].aliases)))
        for caption, there in values.items()
    }
    for place, known in columns.items():
        if known.fieldCaption in texts:
            check = _set_values if part_at(checked.query, place)["filterType"] == "SET" else _match_texts
            yield from check(checked, place, texts[known.fieldCaption], checked.name_of(known))


def _column(checked: Checked, place: Place) -> FieldMetadata | None:
    """The text column of the database behind a SET or MATCH filter."""
    part = part_at(checked.query, place)
    if part["filterType"] not in ("SET", "MATCH") or set(part["field"]) != {"fieldCaption"}:
        return None
    known = checked.field_at((*place, "field"))
    return known if known is not None and _is_text(checked.source, known) else None


def _is_text(source: DataSource, known: FieldMetadata) -> bool:
    return known.columnClass == "COLUMN" and known.dataType == "STRING" and bool(source.table_of(known))


def distinct_texts(
    source: DataSource, fields: Sequence[FieldMetadata], database: Database, *, most: int
) -> dict[str, list[str]]:
    """The distinct texts of each text column among ``fields``, by caption, sorted; one bounded query.

    A column with more than ``most`` of them is left out, as are all where the query fails.
    """
    columns = {field.fieldCaption: field for field in fields if _is_text(source, field)}
    values = _distinct(source, columns, database, most) if columns else {}
    return {caption: sorted(set(_texts(there))) for caption, there in values.items()}


def _texts(values: Iterable[Any]) -> list[str]:
    """Values as a query writes them: SQLite may hold 123 in a column of texts, and DuckDB has UUIDs."""
    return [str(value) for value in values if value is not None and not isinstance(value, bytes)]


def _distinct(
    source: DataSource, columns: Mapping[K, FieldMetadata], database: Database, most: int
) -> dict[K, list[Any]]:
    if database.dialect == DIALECT:  # it takes no SQL; what its columns hold is its own affair
        return {}
    sql = _sql(source, columns.values(), database.dialect, most)
    result = database.run(sql, timeout_s=SECONDS, max_rows=len(columns) * (most + 1))
    if not result.success or result.truncated:
        return {}
    values: dict[K, list[Any]] = {key: [] for key in columns}
    keys = list(columns)
    for i, value in result.rows:
        values[keys[int(i)]].append(value)
    return {key: there for key, there in values.items() if len(there) <= most}


def _sql(source: DataSource, columns: Iterable[FieldMetadata], dialect: str, most: int) -> str:
    from sqlglot import exp

    selects: list[exp.Query] = []
    for i, known in enumerate(columns):
        name = exp.column(exp.to_identifier(known.column, quoted=True))
        table = exp.to_identifier(source.table_of(known), quoted=True)
        inner = exp.select(name.as_("v")).distinct().from_(exp.Table(this=table)).where(name.is_(exp.null()).not_())
        selects.append(
            exp.select(exp.Literal.number(i).as_("i"), exp.column("v")).from_(inner.limit(most + 1).subquery("s"))
        )
    whole = selects[0]
    for other in selects[1:]:
        whole = exp.union(whole, other, distinct=False, copy=False)
    return whole.sql(dialect=dialect)


def _set_values(checked: Checked, place: Place, known: list[str], caption: str) -> Iterator[QueryError]:
    values, there = part_at(checked.query, (*place, "values")), frozenset(known)
    for i, value in enumerate(values):
        if not isinstance(value, str) or value in there:
            continue
        here = (*place, "values", i)
        ranked = [(name, likely) for name, likely in did_you_mean(value, known) if name not in values]
        text = f"Value {shown(value)} not found in '{caption}'. Did you mean: {', '.join(n for n, _ in ranked)}?"
        ways = [checked.way(place, text, Change(here, name), likelihood=likely) for name, likely in ranked]
        if len(values) > 1:
            ways.append(checked.way(place, f"Remove {shown(value)}: {{json}}", Change(here), likelihood=0.3))
        yield QueryError("value", here, f"Value {shown(value)} not found in field '{caption}'", tuple(ways))


def _match_texts(checked: Checked, place: Place, known: list[str], caption: str) -> Iterator[QueryError]:
    """A MATCH filter that no value passes; upper and lower case are one, since the service does not say."""
    part = part_at(checked.query, place)
    given = {key: part[key] for key in _KEYS if key in part}
    if any(True for _ in _ends(given, known)):
        return
    said = " and ".join(f"{key} {shown(text)}" for key, text in given.items())
    ways = []
    if len(given) == 1:
        [(key, text)] = given.items()
        for name, likely in did_you_mean(text, known):
            line = f"No value of '{caption}' has {said}. Did you mean: {name}?"
            ways.append(checked.way(place, line, Change((*place, key), name), likelihood=likely))
    yield QueryError("value", place, f"No value of field '{caption}' has {said}", tuple(ways))


def _ends(given: dict[str, str], values: Sequence[str]) -> Iterator[str]:
    """The values that begin, end with, and contain what a MATCH filter says."""
    for value in values:
        plain = value.casefold()
        tests = {"startsWith": plain.startswith, "endsWith": plain.endswith, "contains": plain.__contains__}
        if all(tests[key](text.casefold()) for key, text in given.items()):
            yield value
