"""The previous SQL, changed as a follow-up asks: values, filters, grouping, columns, order, count.

On ``scale_models``, after ``SELECT COUNT(*) FROM customers WHERE country = 'Germany'``: "What about Norway?" gives
``... WHERE country = 'Norway'``, "and per status?" gives ``SELECT status, COUNT(*) ... GROUP BY status``.

Operations on the tree of one plain SELECT, in the database's dialect, chosen from the words of the follow-up
(``reading``), the values it names (``conditions``) and the columns its words mean (``naming``). Every result compiles
on the database. Not covered: set operations, derived tables; a follow-up whose words say nothing
of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, Turn
from nl2sql.sessions.conditions import Conditions, known_words
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import edit_words, label_of, named_group, named_table, rates_of, yes_or_no
from nl2sql.sessions.ordering import (
    aggregate,
    aggregated,
    aggregated_column,
    best_first,
    extreme_of_each,
    figure_said,
    grouped_by,
    order,
    order_instead,
    superlative,
)
from nl2sql.sessions.reading import Phrase, Reading, read_followup
from nl2sql.sessions.shown import Shown, column_to_add, what_is_shown
from nl2sql.sessions.statement import Statement, read_statement
from nl2sql.sql.same import same_sql
from nl2sql.sql.words import words

# Of a follow-up that rules may answer: 95% of their edits are right up to here, half of those of longer ones.
MOST_WORDS = 4
_REFUSED = re.compile(  # what no edit covers
    r"\b(?:shares?|percent(?:ages?)?|proportions?|ratios?|medians?|rest|others?|remaining|never|without|lacking|no|all|any|"
    r"wom[ae]n|m[ae]n|males?|females?|older|younger|oldest|youngest|drop|remove)\b"
)
_BARE = re.compile(r"(?!the )(?!.*\babout\b)\S+(?: \S+){0,2}")
_HOW_MUCH = re.compile(r"\bhow much\b")
_ROWS = re.compile(
    r"\b(?:only|just|not|no|never|with|without|having|lacking|ones?|that|who|which|is|are|was|were|been)\b|\bnon-"
)
_ENDS = ("top", "best", "bottom", "worst", "first", "last")
_FIGURES = ("maximum", "minimum", "max", "min")
Edit = tuple[str, tuple[str, ...]]  # the SQL, and what was done


def edited(question: str, turn: Turn, database: Database) -> list[Edit]:
    """The SQL of ``turn`` as ``question`` changes it, likeliest first; empty where it has more than ``MOST_WORDS``, or
    says nothing that can be done.
    """
    if len(words(question)) > MOST_WORDS:
        return []
    try:
        schema = database.schema()
        before = read_statement(turn.sql, schema)
        if before is None or before.tree.find(exp.Case, exp.Div) or _REFUSED.search(question.lower()):
            return []
        editor = Editor(question, before.copy(), database)
        editor.edit()
        editor.statement.without_aliases()
        before.without_aliases()
        sql = editor.statement.sql()
        if not editor.operations or same_sql(sql, before.sql()) or not validate_sql(sql, schema, database)["valid"]:
            return []
    except (LookupError, Nl2SqlError):
        return []
    return [(sql, tuple(editor.operations))]


class Editor:
    """One follow-up's edits of one statement, in place."""

    def __init__(self, question: str, statement: Statement, database: Database) -> None:
        self.question, self.statement, self.database = question, statement, database
        self.reading: Reading = read_followup(question, rates_of(statement.schema))
        self.conditions = Conditions(question, self.reading, statement, database)
        self.operations = self.conditions.made

    def edit(self) -> None:
        asked_before = self.statement.copy()
        self.conditions.edit()
        shown = what_is_shown(self.conditions)
        self._shape(shown, asked_before)
        told = self.statement.aggregates() or "columns" in self.operations
        if not told and _HOW_MUCH.search(self.reading.text):
            raise LookupError("how much")  # "how much wheat?" behind a list of fields
        if unknown := self._unexplained():
            raise LookupError(f"what {' '.join(unknown)} is")
        joined = self.statement.tables() - asked_before.tables() if "count" not in self.operations else set()
        self.conditions.settle(joined)

    def _unexplained(self) -> list[str]:
        """The words of the follow-up that name no value, column or table, and that no edit knows."""
        text = self.question
        for start, end in self.conditions.used:
            text = text[:start] + " " * (end - start) + text[end:]
        tables = self.statement.schema.tables
        named = {stem(w) for t in tables for w in words(t.name)} | {
            stem(w) for t in tables for c in t.columns for w in words(c.name)
        }
        return [w for w in words(text) if not (w.isdigit() or w in edit_vocabulary() or stem(w) in named)]

    def _shape(self, shown: Shown, before: Statement) -> None:
        """What is selected, grouped and ordered: the first that the words ask for."""
        reading, statement = self.reading, self.statement
        if reading.groupings and order_instead(self.conditions):
            pass
        elif reading.groupings and self._group(reading.groupings):
            self._order_groups()
        elif statement.grouped and self._picks() and not shown.explicit and not reading.count:
            self._pick_groups()
        elif reading.count and not shown.explicit:
            self._count(before)
        elif reading.added and self._add_columns():
            pass
        elif shown.columns:
            self._extreme(before)
            self._show(shown)
            superlative(self.conditions)
        elif reading.aggregate and aggregate(self.conditions):
            pass
        elif reading.orders and not statement.counts_only:
            order(self.conditions)
        elif reading.adjective and not statement.counts_only:
            superlative(self.conditions)
        elif statement.aggregates() and not self.operations and _BARE.fullmatch(reading.text.strip(" .?!")):
            self._group_by_bare(tuple(word for word in words(reading.text) if word not in STOP_WORDS))
        said = reading.adjective or re.search(r"\b(?:top|first|bottom|worst|limit|only|just)\b", reading.text)
        if reading.limit and said and "limit" not in self.operations and not statement.counts_only:
            best_first(self.conditions)
            if reading.adjective and reading.adjective[0] not in _ENDS and not statement.tree.args.get("order"):
                raise LookupError(f"a column that {reading.adjective[0]} is about")
            statement.limit(reading.limit)
            self.operations.append("limit")

    # ---------------------------------------------------------------------------------------------------- groups

    def _group(self, groupings: Sequence[Phrase]) -> bool:
        statement, reading = self.statement, self.reading
        keys: list[exp.Expr] = []
        shown: list[exp.Expr] = []
        ranked = statement.grouped and statement.tree.args.get("limit") is not None and not reading.count
        before = list(statement.tree.expressions), list(statement.tree.args["group"].expressions) if ranked else []
        for phrase in groupings:
            if grouped := grouped_by(phrase, self.conditions) or grouped_by(phrase[:1], self.conditions):
                keys += grouped.keys
                shown.append(grouped.shown)
        if not keys:
            return False
        if ranked and "instead" not in reading.text:  # "top 10 products", by region
            statement.select([*shown, *before[0]])
            statement.tree.set("group", exp.Group(expressions=[key.copy() for key in (*keys, *before[1])]))
            self.operations.append("group")
            return True
        measures: Sequence[exp.Expr] = statement.aggregates()
        if not measures or (reading.count and not any(m.find(exp.Count) for m in measures)):
            measures = [_count()]
        if reading.aggregate and (column_of_aggregate := aggregated_column(self.conditions)):
            measures = [aggregated(reading.aggregate, column_of_aggregate)]
        elif not (reading.count or reading.limit or reading.orders) and (extreme := extreme_of_each(self.conditions)):
            measures = [extreme]
        statement.clear("group", "having", "order", "limit", "distinct")
        statement.select([*shown, *measures])
        statement.tree.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        self.operations.append("group")
        return True

    def _group_by_bare(self, phrase: Phrase) -> None:
        """ "Customer country" behind a figure; "sold ones", "only organic" and "that were milked" are rows, and "and
        assists?" another figure."""
        named = named_group(phrase, self.statement) if phrase and not _ROWS.search(self.reading.text) else None
        counted = any(measure.find(exp.Count) for measure in self.statement.aggregates())
        kinds = ("text", "year", "number") if counted and "instead" not in self.reading.text else ("text", "year")
        key = named and self.conditions.is_key(named)
        label = label_of(self.statement.main, self.statement)
        if named and label and (named.table, named.column) == (label.table, label.column):
            return  # "names": the rows themselves
        if named and not key and self.conditions.kind_of(named) in kinds and not yes_or_no(named, self.database):
            self._group([phrase])

    def _order_groups(self) -> None:
        reading = self.reading
        if reading.adjective and (reading.limit or reading.orders):
            self._pick_groups(limit=reading.limit)
        elif reading.orders and reading.orders[0][1]:
            self._pick_groups(limit=None)

    def _picks(self) -> bool:
        """Does an adjective pick groups? "The maximum" behind an average of each is another figure of each."""
        adjective = self.reading.adjective
        return adjective is not None and not (adjective[0] in _FIGURES and "which" not in self.reading.text)

    def _pick_groups(self, limit: int | None = 1) -> None:
        """ "which of these is the lowest?": by the measure, so many of them."""
        reading, statement = self.reading, self.statement
        direction = reading.adjective[1] if reading.adjective else reading.orders[0][1]
        measure = statement.aggregates()[-1:] or statement.tree.expressions[-1:]
        self._is_of_groups(measure[0])
        wanted = set(reading.adjective[2].split()) if reading.adjective else {"any"}
        if "date" in wanted and "any" not in wanted:
            raise LookupError("a date of each group")
        key = figure_said(measure[0], self.conditions).unalias().copy()
        statement.order_by([(key, direction == "desc")])
        self.operations.append("order")
        if limit and not (reading.orders and not reading.limit and "which" not in reading.text):
            statement.limit(reading.limit or limit, reading.skipped)
            self.operations.append("limit")

    def _is_of_groups(self, measure: exp.Expr) -> None:
        """Raise LookupError for "the largest bill" behind the sum of bills of each district."""
        adjective = self.reading.adjective
        behind = words(self.reading.text.partition(adjective[0])[2])[:1] if adjective else []
        table = named_table(behind, self.statement.schema)
        shown = [e for e in self.statement.tree.expressions if not e.find(exp.AggFunc)]
        named = {t.name for e in shown for c in e.find_all(exp.Column) if (t := self.statement.table_of(c))}
        if table and table.name in self.statement.tables() - named and not measure.find(exp.Count):
            raise LookupError(f"one of {table.name}")

    # ----------------------------------------------------------------------------------------- counts, aggregates

    def _count(self, before: Statement) -> None:
        statement, selected = self.statement, self.statement.tree.expressions
        count: exp.Expr = _count()
        if statement.tree.args.get("distinct") is not None and not statement.aggregates():
            if len(selected) > 1 or selected[0].is_star:
                raise LookupError("how many different rows")
            count = exp.Count(this=exp.Distinct(expressions=[selected[0].unalias().copy()]))
        if statement.tree.args.get("having") is not None or before.tree.args.get("limit") is not None:
            raise LookupError("a count of rows would be another number")
        if len(selected) == 1 and selected[0] == count and not statement.grouped:
            return
        self.operations.append("count")
        statement.clear("group", "having", "order", "limit", "distinct")
        statement.select([count])

    # --------------------------------------------------------------------------------------------- columns, order

    def _add_columns(self) -> bool:
        named = [column_to_add(phrase, self.statement) for phrase in self.reading.added]
        if not named or not all(named) or self.statement.counts_only:
            return False
        if all(each and f"filter {each.table}.{each.column}" in self.operations for each in named):
            return False  # "with solar": the rows that have it
        if not all(each and self.statement.one_per_group(each.table, each.column) for each in named):
            raise LookupError("one value of each group")
        columns = [self.statement.column(each.table, each.column) for each in named if each]
        there = [expression.unalias() for expression in self.statement.tree.expressions]
        new = [column for column in columns if column not in there]
        self.statement.select([*self.statement.tree.expressions, *new])
        self.operations.append("columns")
        return bool(new)

    def _show(self, shown: Shown) -> None:
        statement = self.statement
        own = all(statement.one_per_group(each.table, each.column) for each in shown.columns)
        few = statement.grouped and own  # "only their names": each group once
        if not few and (statement.grouped or statement.aggregates()):
            statement.clear("group", "having", "order", "limit", "distinct")  # else: "who has more than five?"
        repeated = any(statement.step_to_many(each.table) for each in shown.columns)
        if repeated and statement.tree.args.get("limit") and not statement.grouped:
            statement.among_few()  # "what loans do they have?" behind the richest
        columns = [statement.column(each.table, each.column) for each in shown.columns]
        limit = statement.tree.args.get("limit")  # each of the five that are shown, not five different ones
        distinct = self.reading.distinct or (shown.distinct and (limit is None or limit.expression.name == "1"))
        statement.tree.set("distinct", exp.Distinct() if distinct else None)
        if distinct and limit is None:
            statement.clear("order")  # by another column of several rows of each
        statement.select(columns)
        self.operations.append("columns")
        if self.reading.orders and not self.reading.groupings:
            order(self.conditions)

    def _extreme(self, before: Statement) -> None:
        """ "Who earns it?" behind a highest salary: the rows that have it."""
        aggregates = before.aggregates()
        if not before.counts_only or len(aggregates) != 1 or self.reading.comparisons:
            return
        aggregate = aggregates[0].unalias()
        if isinstance(aggregate, (exp.Max, exp.Min)) and isinstance(aggregate.this, exp.Column):
            inner = before.tree.copy()
            self.statement.add_condition(exp.EQ(this=aggregate.this.copy(), expression=exp.Subquery(this=inner)))
            self.operations.append("filter extreme")


@cache
def edit_vocabulary() -> frozenset[str]:
    """The words that ask, point or say an edit: "how", "those", "per", "average", "highest"."""

    def listed(part: object) -> Iterator[str]:
        for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else [part]:
            yield from listed(each) if isinstance(each, (dict, list)) else words(str(each))

    return frozenset(
        ["called", "though", *STOP_WORDS, *known_words(), *listed(edit_words()), *listed(list(cue_words().values()))]
    )


def _count() -> exp.Expr:
    return exp.Count(this=exp.Star())
