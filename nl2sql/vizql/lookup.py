"""The fields that a query names, looked up in its data source; what is not there is an error with what may be meant.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": c} for c in ("Region", "Revenue", "Segment")]})
>>> checked = Checked({"fields": [{"fieldCaption": "Regoin"}]}, source)
>>> field, [error] = checked.look_up(("fields", 0))
>>> field, error.message, error.suggestions[0].text
(None, "Field 'Regoin' not found in schema", "Field 'Regoin' not found. Did you mean: Region, Revenue?")

Not covered: fields that only a formula names (``semantics``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nl2sql.config import VizqlConfig
from nl2sql.vizql.fields import FUNCTIONS, CalculatedField
from nl2sql.vizql.functions import ON_DIMENSIONS, fits, likely_functions
from nl2sql.vizql.mending import Change, Place, QueryError, Suggestion, part_at, suggest
from nl2sql.vizql.query import Options, Parameter, Query, Request
from nl2sql.vizql.source import DataSource, FieldMetadata

if TYPE_CHECKING:
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
