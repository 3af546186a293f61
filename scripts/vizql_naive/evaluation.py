"""A structured query evaluated over tables in memory, from its JSON and its data source, as naively as can be.

>>> from vizql_naive.tables import generated, superstore
>>> fields = [{"fieldCaption": "Person", "sortPriority": 1}, {"fieldCaption": "Target", "function": "SUM"}]
>>> Naive(superstore(), generated(0)).answer({"query": {"fields": fields}}).rows
[('Ann (East)', 750.0), ('Robert', None), (None, 1000.0)]

Rows are joined, grouped and aggregated by pandas; formulas are evaluated row by row (``formulas``). Nothing of the
compiler is used: no ``scope``, ``joins``, ``evaluation``, ``conditions``, ``days``, ``grouped``. The meaning is that of
``docs/vizql.md``. Not covered: what is refused there by name; whether it is refused rightly.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nl2sql.vizql.source import DataSource, FieldMetadata
from vizql_naive.filters import keeps
from vizql_naive.formulas import AGGREGATES, Tree, parts, read, replaced, value
from vizql_naive.joined import joined
from vizql_naive.tables import Rows

NEAR = 1e-9  # relative: as far as floats may be apart


class Undecided(Exception):
    """Values that floats cannot tell apart decide what the rows are."""


@dataclass(frozen=True)
class Answer:
    """The rows of a query, not rounded yet, in their order; ``sorted_by`` are the columns that the query sorts by.

    Behind a column whose equals floats may tell apart, further ones decide nothing, and are left out of ``sorted_by``.
    """

    columns: list[str]
    decimals: list[int | None]
    sorted_by: list[int]
    rows: list[tuple[Any, ...]]
    tables: frozenset[str] = frozenset()


class Naive:
    """Evaluates queries over a data source and the rows of its tables; ``today`` is for dates without an anchor."""

    def __init__(self, source: DataSource, rows: Rows, today: datetime.date = datetime.date(2022, 3, 15)) -> None:
        self.source, self.today = source, today
        self.frames = {
            table.logicalTableId: pd.DataFrame(rows[table.table or table.logicalTableId], dtype=object)
            for table in source.logicalTables
        }
        self._joined = functools.cache(lambda needed: joined(needed, source, self.frames))

    def answer(self, request: dict[str, Any]) -> Answer:
        """The answer to a request's JSON. Raises Undecided."""
        return _Asked(self, request).answer()

    def rows(self, needed: frozenset[str]) -> list[dict[str, Any]]:
        """The rows of all tables that are needed, joined; a column is ``(table, column)``."""
        return self._joined(needed)


class _Asked:
    """One request, its parts as trees over columns."""

    def __init__(self, naive: Naive, request: dict[str, Any]) -> None:
        self.naive, self.source = naive, naive.source
        self.query, self.options = request["query"], request.get("options", {})
        self.own = {f["fieldCaption"].casefold(): f["calculation"] for f in self.query["fields"] if "calculation" in f}
        self.raw = bool(self.options.get("disaggregate"))
        self.trees = [self.field(part) for part in self.query["fields"]]
        self.filters = [(part, self.part(part["field"])) for part in self.query.get("filters", [])]
        self.measures = [self.measure(part) for part, _ in self.filters]

    # ------------------------------------------------------------------------------------------- what is asked for

    def known(self, caption: str) -> FieldMetadata:
        if self.options.get("interpretFieldCaptionsAsFieldNames"):
            return next(field for field in self.source.fields if field.fieldName == caption)
        return next(field for field in self.source.fields if field.fieldCaption.casefold() == caption.casefold())

    def part(self, part: dict[str, Any]) -> Tree:
        """A part of the query with a caption, and perhaps a function, or with a calculation."""
        if "calculation" in part:
            return self.formula(part["calculation"])
        known = self.known(part["fieldCaption"])
        function = part.get("function")
        if function and function != "AGG":
            return ("call", function, (self.column(known),))
        if known.aliases:
            shown = tuple((alias["member"], alias["value"]) for alias in known.aliases)
            return ("call", "SHOWN", (self.column(known), ("value", shown)))
        return self.column(known)

    def field(self, part: dict[str, Any]) -> Tree:
        """A field of the query; a measure without a function has its default one, where rows are grouped."""
        function = self.default(part)
        tree = self.part(part | ({"function": function} if function else {}))
        return ("call", "BIN", (tree, ("value", part["binSize"]))) if "binSize" in part else tree

    def default(self, part: dict[str, Any]) -> str | None:
        if self.raw or {"function", "calculation", "binSize"} & set(part):
            return None
        known = self.known(part["fieldCaption"])
        return known.defaultAggregation if known.fieldRole == "MEASURE" and known.defaultAggregation != "AGG" else None

    def measure(self, part: dict[str, Any]) -> Tree | None:
        """What a TOP or CONDITION filter looks at."""
        if part["filterType"] == "TOP":
            return self.part(part["fieldToMeasure"])
        if part["filterType"] != "CONDITION":
            return None
        if "calculation" in part:
            return self.formula(part["calculation"])
        asked = part["condition"]
        left, right = self.part(asked), asked["value"]
        if isinstance(right, str) and self.known(asked["fieldCaption"]).dataType in ("DATE", "DATETIME"):
            right = datetime.datetime.fromisoformat(right) if len(right) > 10 else datetime.date.fromisoformat(right)
        return ("sign", asked["comparison"], (left, ("value", right)))

    def column(self, known: FieldMetadata) -> Tree:
        if known.columnClass == "CALCULATION":
            return self.formula(known.formula)
        return ("name", (known.logicalTableId, known.remoteFieldName or known.fieldName))

    def formula(self, text: str) -> Tree:
        tree: Tree = replaced(read(text), self.meant)
        return tree

    def meant(self, tree: Tree) -> Tree | None:
        """What a name in a formula means: a calculation of the query, a field, a parameter; or the rows of a table."""
        if tree[0] == "call" and tree[1] == "COUNT" and tree[2][0][0] == "name":
            tables = [t.logicalTableId for t in self.source.logicalTables if t.caption == tree[2][0][1]]
            return ("call", "COUNT", (("name", (tables[0], "")),)) if tables else None
        if tree[0] != "name":
            return None
        text = tree[1]
        if text.casefold() in self.own:
            return self.formula(self.own[text.casefold()])
        for field in self.source.fields:
            if text.casefold() == field.fieldCaption.casefold() or text == field.fieldName:
                return self.column(field)
        known = next(p for p in self.source.parameters if text in (p.parameterCaption, p.parameterName))
        asked = {p["parameterCaption"]: p["value"] for p in self.query.get("parameters", [])}
        given = asked.get(known.parameterCaption, known.value)
        return ("value", datetime.date.fromisoformat(given) if known.dataType == "DATE" else given)

    # ----------------------------------------------------------------------------------------------- what comes out

    def answer(self) -> Answer:
        every = [*self.trees, *(tree for _, tree in self.filters), *filter(None, self.measures)]
        needed = frozenset(p[1][0] for tree in every for p in parts(tree) if p[0] == "name")
        rows = self.picked(self.kept(self.naive.rows(needed)), self.naive.rows(needed))
        lines = [tuple(value(tree, row) for tree in self.trees) for row in rows] if self.raw else self.grouped(rows)
        fields = self.query["fields"]
        columns = [self.name(part) for part in fields]
        first = sorted((part["sortPriority"], i) for i, part in enumerate(fields) if "sortPriority" in part)
        by = [i for _, i in first]
        decimals = [part.get("maxDecimalPlaces") for part in fields]
        uncertain = next((n for n, i in enumerate(by, 1) if noisy(self.trees[i])), len(by))
        return Answer(columns, decimals, by[:uncertain], self.ordered(lines, by), needed)

    def name(self, part: dict[str, Any]) -> str:
        function = part.get("function") or self.default(part)
        caption = part["fieldCaption"]
        return part.get("fieldAlias") or (f"{function}({caption})" if function else caption)

    def kept(self, rows: list[dict[str, Any]], context: bool = False) -> list[dict[str, Any]]:
        """The rows that pass the filters on rows, or those of them with context."""
        for (part, tree), measure in zip(self.filters, self.measures, strict=True):
            if measure is None and not aggregates(tree) and (part.get("context") or not context):
                kind = self.kind(part["field"])
                rows = [row for row in rows if keeps(part, value(tree, row), kind, self.naive.today)]
        return rows

    def kind(self, part: dict[str, Any]) -> FieldMetadata | None:
        """The field of a filter that is about the field's own values."""
        return None if {"calculation", "function"} & set(part) else self.known(part["fieldCaption"])

    def picked(self, rows: list[dict[str, Any]], every: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows whose values TOP and CONDITION leave; those with context come first, and look at all rows."""
        context = self.kept(every, context=True)
        picks = [(p, t, m) for (p, t), m in zip(self.filters, self.measures, strict=True) if m is not None]
        for part, tree, measure in (pick for pick in picks if pick[0].get("context")):
            values = self.values(part, tree, measure, every)
            context = [row for row in context if value(tree, row) in values]
            rows = [row for row in rows if value(tree, row) in values]
        for part, tree, measure in (pick for pick in picks if not pick[0].get("context")):
            values = self.values(part, tree, measure, context)
            rows = [row for row in rows if value(tree, row) in values]
        return rows

    def values(self, part: dict[str, Any], tree: Tree, measure: Tree, rows: list[dict[str, Any]]) -> list[Any]:
        """The values of a dimension that a TOP or CONDITION filter leaves."""
        pairs = list(zip(*groups(rows, [tree], [tree, measure]), strict=True))
        if part["filterType"] == "CONDITION":
            return [dimension for dimension, holds in pairs if holds]
        pairs = in_order(in_order(pairs, 0, False), 1, part.get("direction", "TOP") == "TOP")
        left, out = pairs[: part["howMany"]], pairs[part["howMany"] :]
        if out and noisy(measure) and near(left[-1][1], out[0][1]):
            raise Undecided("a TOP filter between values that floats cannot tell apart")
        return [dimension for dimension, _ in left]

    def grouped(self, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """One row for each group that passes the filters on aggregates."""
        on_groups = [(part, tree) for (part, tree), m in zip(self.filters, self.measures, strict=True) if m is None]
        on_groups = [(part, tree) for part, tree in on_groups if aggregates(tree)]
        keys = [tree for tree in self.trees if not aggregates(tree)]
        columns = groups(rows, keys, [*self.trees, *(tree for _, tree in on_groups)])
        count = len(self.trees)
        return [
            line[:count]
            for line in zip(*columns, strict=True)
            if all(
                keeps(part, given, None, self.naive.today)
                for (part, _), given in zip(on_groups, line[count:], strict=True)
            )
        ]

    def ordered(self, rows: list[tuple[Any, ...]], by: list[int]) -> list[tuple[Any, ...]]:
        """Sorted as asked, NULL last; where there is a limit, the columns from the left decide among equals."""
        limit = self.options.get("rowLimit")
        for i in reversed(range(len(self.trees)) if limit is not None else []):
            rows = in_order(rows, i, False)
        for i in reversed(by):
            rows = in_order(rows, i, self.query["fields"][i].get("sortDirection") == "DESC")
        if limit is None or limit >= len(rows):
            return rows
        for i in [*by, *range(len(self.trees))]:
            if noisy(self.trees[i]) and near(rows[limit - 1][i], rows[limit][i]):
                raise Undecided("a limit between values that floats cannot tell apart")
        return rows[:limit]


def aggregates(tree: Tree) -> list[Tree]:
    """The aggregates in a tree."""
    return [part for part in parts(tree) if part[0] == "call" and part[1] in AGGREGATES]


def noisy(tree: Tree) -> bool:
    """Can floats make values different here that are equal, by the order in which they are summed up?"""
    return any(call[1] in ("STDEV", "VAR") or _uneven(call) for call in aggregates(tree))


def _uneven(call: Tree) -> bool:
    """Is an aggregate over a division, or over a number that is no multiple of a small power of 2?"""
    numbers = [part[1] for part in parts(call) if part[0] == "value" and isinstance(part[1], float)]
    signs = [part[1] for part in parts(call) if part[0] == "sign"]
    return "/" in signs or any(number * 1024 % 1 for number in numbers)


def near(left: Any, right: Any) -> bool:
    """Are two values the same, or numbers that are nearly so?"""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) <= NEAR * max(abs(left), abs(right)) or abs(left - right) < 1e-12
    return bool(left == right)


def in_order(rows: Sequence[tuple[Any, ...]], i: int, most: bool) -> list[tuple[Any, ...]]:
    """Rows by one column, NULL last, equals as they stand."""
    there = [row for row in rows if row[i] is not None]
    there.sort(key=lambda row: row[i], reverse=most)
    return [*there, *(row for row in rows if row[i] is None)]


# ---------------------------------------------------------------------------------------------------- groups, pandas


def groups(rows: list[dict[str, Any]], keys: list[Tree], wanted: list[Tree]) -> list[list[Any]]:
    """For each wanted tree its value in each group of rows; without keys all rows, or none, are one group."""
    columns = {i: pd.Series([value(key, row) for row in rows], dtype=object) for i, key in enumerate(keys)}
    if keys:
        number = pd.DataFrame(columns).groupby(list(columns), dropna=False, sort=False).ngroup()
        firsts = [rows[i] for i in number.drop_duplicates().index]
    else:
        number, firsts = pd.Series(0, index=range(len(rows))), [rows[0] if rows else {}]
    calls = {call for tree in wanted for call in aggregates(tree)}
    made = {call: aggregate(call, rows, number, len(firsts)) for call in calls}
    names = [first | {call: made[call][i] for call in calls} for i, first in enumerate(firsts)]
    return [[value(tree, name) for name in names] for tree in wanted]


def aggregate(call: Tree, rows: list[dict[str, Any]], number: pd.Series, count: int) -> list[Any]:
    """An aggregate of each group. NULLs count for nothing; over nothing it is NULL, COUNT and COUNTD are 0."""
    _, function, (argument,) = call
    series = pd.Series([value(argument, row) for row in rows], dtype=object)
    series = series[series.notna()]
    if function not in ("MIN", "MAX", "COUNT", "COUNTD"):
        series = series.astype(float)
    grouped = series.groupby(number[series.index])
    name = {"AVG": "mean", "COUNTD": "nunique", "STDEV": "std"}.get(function, function.lower())
    result = grouped.agg(name).reindex(range(count)).astype(object)
    nothing = 0 if function in ("COUNT", "COUNTD") else None
    return [nothing if pd.isna(item) else item for item in result.tolist()]
