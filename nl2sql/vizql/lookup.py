"""What a query names, looked up: fields and values; what is missing is an error with what may be meant.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": c} for c in ("Region", "Revenue", "Segment")]})
>>> checked = Checked({"fields": [{"fieldCaption": "Regoin"}]}, source)
>>> field, [error] = checked.look_up(("fields", 0))
>>> field, error.message, error.suggestions[0].text
(None, "Field 'Regoin' not found in schema", "Field 'Regoin' not found. Did you mean: Region, Revenue?")

Not covered: fields that only a formula names (``semantics``).

>>> list(_ends({"startsWith": "we", "endsWith": "t"}, ["East", "West"]))
['West']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from nl2sql.config import VizqlConfig
from nl2sql.vizql.fields import FUNCTIONS, CalculatedField
from nl2sql.vizql.mending import Change, Place, QueryError, Suggestion, did_you_mean, part_at, shown, suggest
from nl2sql.vizql.query import DIALECT, Options, Parameter, Query, Request
from nl2sql.vizql.source import ON_DIMENSIONS, DataSource, FieldMetadata, fits, likely_functions

if TYPE_CHECKING:
    from sqlglot import exp

    from nl2sql.interfaces import Database
    from nl2sql.vizql.scalars import Value
    from nl2sql.vizql.scope import Scope


@dataclass(frozen=True)
class Checked:
    """A query that is being checked against a data source, with the request's options."""

    query: dict[str, Any]
    source: DataSource
    settings: VizqlConfig = field(default_factory=VizqlConfig)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def semantic(self) -> bool:
        """Does the data source know enough for more than names?"""
        return self.source.enriched

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
        parameters = [(p.parameterName, p.parameterCaption) for p in source.parameters]
        names = [
            *self.calculations,
            *(table.caption for table in source.logicalTables),
            *(name for pair in parameters for name in pair),
            *(known.fieldName for known in source.fields),
            *(() if self.by_name else source.captions),
        ]
        return {name.casefold(): name for name in names if name}

    @cached_property
    def scope(self) -> Scope:
        """What the names of the query's formulas mean to the compiler, in any dialect."""
        from nl2sql.vizql.scope import Scope

        named = ((n, t) for n, t in self.calculations.items() if self.source.field_any_case(n) is None)
        own: list[Any] = [CalculatedField.model_construct(fieldCaption=n, calculation=t) for n, t in named]
        given = self.query.get("parameters")
        keys = set(Parameter.model_fields)
        parts = [part for part in given if isinstance(part, dict) and keys <= set(part)] if given else []
        query = Query.model_construct(fields=own, parameters=[Parameter.model_construct(**part) for part in parts])
        options = Options.model_construct(interpretFieldCaptionsAsFieldNames=self.by_name)
        return Scope(Request.model_construct(query=query, options=options), self.source, "sqlite")

    def evaluate(self, formula: str) -> Value:
        """What the compiler makes of a formula. Raises NotExecutable, and FormulaError for what nobody executes."""
        from nl2sql.vizql.scope import Grouping

        return self.scope.formula(formula, Grouping())

    def field_at(self, place: Place) -> FieldMetadata | None:
        """The field of the data source that the part at ``place`` names, upper or lower case."""
        caption = part_at(self.query, (*place, "fieldCaption"))
        if not isinstance(caption, str):
            return None
        if self.by_name:
            return self.source.field_named(caption)
        return self.source.field_any_case(caption)

    def name_of(self, known: FieldMetadata) -> str:
        """The name by which the query names this field."""
        return known.fieldName if self.by_name else known.fieldCaption

    def look_up(self, place: Place) -> tuple[FieldMetadata | None, list[QueryError]]:
        """That field, and the error where there is none or its case is another."""
        known = self.field_at(place)
        caption = part_at(self.query, (*place, "fieldCaption"))
        named = self.by_name
        right = known is not None and (named or not self.semantic or known.fieldCaption == caption)
        return known, [] if right else [self._not_found(place, caption, "not_found" if known is None else "case")]

    def way(self, place: Place, text: str, *changes: Change, likelihood: float = 0.9) -> Suggestion:
        """A suggestion that shows the field or filter around ``place``."""
        return suggest(self.query, text, place[:2], *changes, likelihood=likelihood)

    def _not_found(self, place: Place, caption: str, kind: str) -> QueryError:
        here = (*place, "fieldCaption")
        ranked = self._meant(place, caption)
        if kind == "case":
            ranked = ranked[:1]
        names = ", ".join(name for name, _ in ranked)
        text = f"Field '{caption}' not found. Did you mean: {names}?"
        ways = [self.way(place, text, *self._to(place, name), likelihood=likely) for name, likely in ranked]
        return QueryError(kind, here, f"Field '{caption}' not found in schema", tuple(ways))

    def _meant(self, place: Place, caption: str) -> list[tuple[str, float]]:
        """The likely captions; one whose role does not go with the function that is given comes later."""
        if self.by_name:
            from nl2sql.vizql.mending import did_you_mean

            return did_you_mean(caption, [known.fieldName for known in self.source.fields if known.fieldName])
        function = part_at(self.query, (*place, "function"))
        ranked = [(n, s if self._goes_with(n, function) else s - 0.1) for n, s in self.source.like(caption)]
        return sorted(ranked, key=lambda pair: -pair[1])

    def _goes_with(self, caption: str, function: Any) -> bool:
        known = self.source.field(caption)
        if known is None or function not in FUNCTIONS:
            return True
        return fits(function, known.dataType) and (known.fieldRole != "DIMENSION" or function in ON_DIMENSIONS)

    def _to(self, place: Place, caption: str) -> tuple[Change, ...]:
        """The changes to another field: its caption, and the function that a measure needs."""
        change = Change((*place, "fieldCaption"), caption)
        known = self.source.field(caption)
        if not (known and place[0] == "fields" and len(place) == 2 and self.needs_function(place, known)):
            return (change,)
        return (change, *(Change((*place, "function"), name) for name in likely_functions(known)[:1]))

    def needs_function(self, place: Place, known: FieldMetadata) -> bool:
        """Is the field at ``place`` a measure as it is, where the result is aggregated?"""
        part = part_at(self.query, place)
        if known.fieldRole != "MEASURE" or {"function", "binSize", "calculation"} & set(part):
            return False
        if self.settings.strict:
            return True
        raw = self.options.get("disaggregate") is True
        return not (raw or known.is_aggregate or known.columnClass == "TABLE_CALCULATION")


# -------------------------------------------------------------- the values of SET and MATCH filters
# A column's distinct values are read, at most ``MOST`` of them; where there are more, nothing is
# said of that filter. Not covered: filters with functions or formulas, dates, and numbers, where 5
# and 5.0 are one value.

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
