"""Which column a number or a date of a follow-up is about, and the condition on it.

"Under 500 dollars" is about a price, "older than 20" about an age; a bare "over 20" about the number that was compared
before, that is selected, or of each group. What no column is known for raises LookupError.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.sessions.amounts import Comparison
from nl2sql.sessions.compared import (
    PRICE,
    SIGNS,
    bound_groups,
    comparison_condition,
    contradict,
    dimension,
    is_of_a_price,
    kinds_for,
    money,
    price_of,
    scaled,
)
from nl2sql.sessions.naming import Named, alike, edit_words, named_column, named_table
from nl2sql.sessions.people import age_compared
from nl2sql.sessions.reading import is_left_out
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.where import NARROWS, Where
from nl2sql.sql.words import words

_RELATING = re.compile(r"\b(?:with|having|have|has|that|who|which|where|whose)\b")
_PART = re.compile(  # "the first half of 2023"
    r"\b(?:(?:half|halves|thirds?|quarters?|weeks?|middle|winter|spring|summer|autumn|fall)(?: of| in)?(?: the year)?"
    r"|early|late|mid|q[1-4](?: of)?)[ -]$"
)
_COSTS = re.compile(r"\b(?:that|which|who|they|these|those|ones?|it) costs?\b")


class Comparisons(Where):
    """The numbers and dates of one follow-up."""

    def compare(self, comparison: Comparison) -> None:
        if not comparison.text and comparison.kind == "day":
            raise LookupError("the year of a day")
        if comparison.kind == "year" and _PART.search(self.reading.text[: comparison.start]):
            raise LookupError("a part of a year")
        kinds, bound, in_time = kinds_for(comparison), comparison.operator not in ("", "="), False
        if comparison.kind == "year" and _in_time().search(self.reading.text[: comparison.start]):
            kinds, in_time = kinds[:1], True  # "in 2004" is no amount of 2004
        elif comparison.kind == "year" and comparison.operator == "between":
            in_time = bool(self.compared_before(kinds[0]) or self.only_one(kinds[0]))
        near = (self._column_near(comparison, wanted) for wanted in kinds)
        before = (self.compared_before(wanted) for wanted in kinds)
        numbered = bound or comparison.kind != "year"
        alone = (self.only_one(wanted) if numbered or wanted != ("number",) else None for wanted in kinds)
        known = (
            itertools.chain(before, alone) if bound else itertools.chain.from_iterable(zip(before, alone, strict=True))
        )
        named = age_compared(self.reading.text[: comparison.start], self.statement, self.kinds)
        named = named or dimension(self.reading.text, comparison, self.statement, self.kinds)
        if not (named := named or self._price(comparison)) and (named := next(filter(None, near), None)):
            self._is_no_figure(named)
        named = named or self._money(comparison)
        if named is None and self._says_a_text(comparison):
            raise LookupError("a number")
        if named is None and bound and self.statement.grouped and self._says_another_column(comparison):
            raise LookupError("a figure of each group")
        whole = scaled(comparison, self.reading.text)
        if bound and (other := self._rows_counted(comparison)):
            raise LookupError(f"how many {other} there are")
        if named and bound and self._is_measured(named, comparison):
            named = None  # "teams with more than 10 goals" behind the goals of each team
        if named is None and bound and not in_time and self._bound_groups(whole):
            self.made.append("filter groups")
            self.used.append((comparison.start, comparison.end))
        elif named := named or (
            None
            if (bound and self._of_something_else(comparison)) or ((bound or in_time) and self._of_others(comparison))
            else next(filter(None, known), None)
        ):
            self._compare_with(comparison, named)
        elif bound or comparison.kind == "year":
            raise LookupError(f"a column that is {comparison.operator} {comparison.text}")

    def _price(self, comparison: Comparison) -> Named | None:
        """ "Cheaper than 10" and "those that cost less than 20" are about the price that was compared, if one was.

        "Cheaper" is about any price else, whatever else has numbers. Raises LookupError where there is none.
        """
        start, _ = self._clause_of(comparison)
        said = self.reading.text[start : comparison.start]
        cheaper = is_of_a_price(said)
        if not cheaper and not _COSTS.search(said):
            return None
        compared = self.compared_before(("number",))
        if compared and PRICE & set(words(compared.column)):
            return compared
        price = price_of(self.statement, self.kinds)
        if price is None and cheaper:
            raise LookupError("a price")
        return price

    def _is_no_figure(self, named: Named) -> None:
        """ "total above 350" says no sum, where a column is called so."""
        said = set(edit_words()["aggregates"].get(self.reading.aggregate, ()))
        if said & set(words(named.column)):
            self.reading = replace(self.reading, aggregate="")

    def _says_a_text(self, comparison: Comparison) -> bool:
        """ "capacity of at least 5", where the capacities are texts: no other number is meant."""
        start, _ = self._clause_of(comparison)
        said = _RELATING.split(self.reading.text[start : comparison.start])[-1]  # "countries with at least 15" are rows
        before = [word for word in words(said) if word not in (*_signs(), *STOP_WORDS)]
        named = named_column(before[-1:], self.statement)
        texts = named is not None and self.kinds[named.table.lower(), named.column.lower()] == "text"
        return bool(named and texts and named.score > 0.9 and self.statement.away(named.table) < 1)

    def _money(self, comparison: Comparison) -> Named | None:
        """ "under 500 dollars": the price, where other numbers are there too. Raises LookupError where two may be."""
        fits = money(self.reading.text, comparison, self.statement, self.kinds)
        if not fits or self.statement.grouped:
            return None
        before = self.compared_before(("number",))
        known = [*([before] if before else []), *self.selected()]
        chosen = next((fit for each in known for fit in fits if _same(each, fit)), fits[0])
        if len(fits) > 1 and not any(_same(each, chosen) for each in known) and "price" not in words(chosen.column):
            raise LookupError("which amount")
        return chosen

    def _says_another_column(self, comparison: Comparison) -> bool:
        """ "price over 2000" behind counts of orders: does a word name what is neither counted nor grouped by?"""
        start, end = self._clause_of(comparison)
        return self.name_another_column(
            words(self.reading.text[start : comparison.start]) + words(self.reading.text[comparison.end : end])[:2]
        )

    def _bound_groups(self, comparison: Comparison) -> bool:
        again = "filter groups" in self.made
        if again and re.search(r"\bor\b", self.reading.text[self.used[-1][1] : comparison.start]):
            raise LookupError("two figures of each group")
        return bound_groups(self.statement, comparison, beside=again)

    def _rows_counted(self, comparison: Comparison) -> str:
        """ "More than 2 players" behind the goals of each team: the table that no figure counts; "" for none."""
        behind = words(self.reading.text[comparison.end : self._clause_of(comparison)[1]])[:1]
        table = named_table(behind, self.statement.schema) if behind and self.statement.grouped else None
        counted = any(measure.find(exp.Count) for measure in self.statement.aggregates()[-1:])
        return table.name if table and not counted else ""

    def _is_measured(self, named: Named, comparison: Comparison) -> bool:
        """Is it the column that the last figure of each group is of, and does nothing speak of its rows?"""
        measure = self.statement.aggregates()[-1:] if self.statement.grouped else []
        of = [column for each in measure for column in each.find_all(exp.Column)]
        tables = [(table.name, column.name) for column in of if (table := self.statement.table_of(column))]
        start, _ = self._clause_of(comparison)
        rows = {stem(word) for word in words(self.reading.text[start : comparison.start])}
        return (named.table, named.column) in tables and stem(named.table.lower()) not in rows

    def name_another_column(self, said: Sequence[str]) -> bool:
        """Is one of the words of a column or a table that the statement neither shows nor reads?"""
        light, schema = edit_words()["light"], self.statement.schema
        mine = {part for each in self.statement.tree.expressions for name in _names(each) for part in words(name)}
        known = {stem(word) for word in (*mine, *(part for t in self.statement.tables() for part in words(t)))}
        columns = {stem(p) for t in schema.tables for c in t.columns for p in words(c.name) if p not in light}
        asked = {stem(w) for w in said if w not in STOP_WORDS and w not in _signs() and len(w) > 3}
        return bool(asked & (columns | {stem(t.name.lower()) for t in schema.tables}) - known)

    def _of_something_else(self, comparison: Comparison) -> bool:
        """ "more than 32 GB" behind prices: is there a word behind the number that no column and no unit explains?"""
        _, end = self._clause_of(comparison)
        behind = [word for word in words(self.reading.text[comparison.end : end])[:1] if word not in _signs()]
        return bool(behind) and behind[0] not in STOP_WORDS and behind[0] not in edit_words()["units_of_numbers"]

    def _of_others(self, comparison: Comparison) -> bool:
        """ "Patients over 40" behind visits: is the last thing named before the number a table that is not read?"""
        start, _ = self._clause_of(comparison)
        said = [
            word for word in words(self.reading.text[start : comparison.start]) if word not in (*_signs(), *STOP_WORDS)
        ]
        born = said[-1:] == ["born"]  # "by artists born after 1900" behind paintings
        table = named_table(said[-2:-1] if born else said[-1:], self.statement.schema)
        return table is not None and table.name not in self.statement.tables()

    def _clause_of(self, comparison: Comparison) -> tuple[int, int]:
        return next(((s, e) for s, e in self.reading.clauses if s <= comparison.start < e), (0, 0))

    def _compare_with(self, comparison: Comparison, named: Named) -> None:
        comparison = scaled(comparison, self.reading.text, named.column)
        replaced = self._compared(named.table, named.column)
        left_out = comparison.operator in ("", "=", "between") and is_left_out(
            self.reading.text, comparison.start, comparison.end
        )
        again = self.bounded.get((named.table, named.column))
        either = again is not None and re.search(r"\bor\b", self.reading.text[again : comparison.start])
        if again is not None and (either or comparison.operator in ("", "=")):
            raise LookupError(f"two values of {named.column}")  # "in 2023 and 2024", "under 20 or over 80"
        if left_out or again or self._adds_to(replaced, comparison):
            replaced = []
        self.bounded[named.table, named.column] = comparison.end
        kind = self.kinds[named.table.lower(), named.column.lower()]
        condition = comparison_condition(comparison, exp.column(identifier(named.column)), kind, replaced)
        if condition is None:  # a month of no year, a time of no day
            raise LookupError(f"what {comparison.text or 'a month'} is of")
        stays = not comparison.operator and self._stays_excluded(replaced, condition)
        self._put(named.table, condition, replaced, left_out=left_out or stays)
        self.used.append((comparison.start, comparison.end))

    def _adds_to(self, existing: Sequence[exp.Expr], comparison: Comparison) -> bool:
        """A bound of the other side, of those that are there: "only those before 2010" behind "after 2000"."""
        narrowing = NARROWS.search(self.reading.text)
        signs = {type(condition) for condition in existing}
        new = SIGNS.get(comparison.operator)
        opposite = {exp.GT: exp.LT, exp.GTE: exp.LT, exp.LT: exp.GT, exp.LTE: exp.GT}.get(new) if new else None
        opposes = bool(narrowing and opposite and any(issubclass(sign, (opposite,)) for sign in signs))
        return opposes and not any(contradict(condition, comparison) for condition in existing)

    def _column_near(self, comparison: Comparison, wanted: Sequence[str]) -> Named | None:
        """The column that the words beside the number mean: those behind it, then those before it."""
        start, end = self._clause_of(comparison)
        behind = [w for w in words(self.reading.text[comparison.end : end])[:3] if w not in _signs()]
        before = [w for w in words(self.reading.text[start : comparison.start])[-7:] if w not in _signs()]
        phrases = [behind[:2], behind[:1], *(before[n:] for n in range(len(before)))]
        phrases += [[word] for word in reversed(before) if word not in STOP_WORDS]
        clause = [word for word in words(self.reading.text[start:end]) if word not in STOP_WORDS]
        fits = [self._told_apart(phrase, wanted, clause) for phrase in phrases if phrase]
        if comparison.operator not in ("", "="):
            fits = [fit for fit in fits if fit and not self.is_key(fit)]  # "branches with more than 50", branch_id
        return max(filter(None, fits), key=lambda named: named.score, default=None)

    def _told_apart(self, phrase: Sequence[str], wanted: Sequence[str], clause: Sequence[str]) -> Named | None:
        """The column that a phrase means; of those that fit alike ("minutes") the one that the clause tells, or that
        was compared or selected before. Raises LookupError for none of them."""
        named = named_column(phrase, self.statement, self.kinds, wanted)
        table = self.statement.schema.table(named.table) if named else None
        said = {word for word in phrase if word not in STOP_WORDS}
        if named is None or table is None or self.statement.away(named.table) >= 1:
            return named
        parts = set(words(named.column))
        fits = [
            Named(table.name, c.name, named.score)
            for c in table.columns
            if self.kinds[table.name.lower(), c.name.lower()] in wanted
            and len(words(c.name)) == len(parts)
            and said & parts == said & {*words(c.name)}
        ]
        if len(fits) < 2 or not said & parts or parts <= said:
            return named
        common = parts.intersection(*(words(fit.column) for fit in fits))
        told = [fit for fit in fits if any(alike(w, p) for w in clause for p in {*words(fit.column)} - common)]
        before = [known for known in (self.compared_before(wanted), *self.selected()) if known]
        told = told or [fit for fit in fits if any(_same(known, fit) for known in before)]
        if not told:
            raise LookupError(f"which of {', '.join(fit.column for fit in fits)}")
        return told[0]


@cache
def _signs() -> frozenset[str]:
    """The words that compare, which may be the names of columns too ("since")."""
    listed = edit_words()
    phrases = [phrase for those in (*listed["comparisons"].values(), *listed["behind"].values()) for phrase in those]
    return frozenset(word for phrase in phrases for word in phrase.split() if word not in ("level", "start"))


@cache
def _in_time() -> re.Pattern[str]:
    """What before a number says that it is a year."""
    return re.compile(rf"\b(?:{'|'.join(edit_words()['time_words'])})\s+(?:the year\s+)?$")


def _same(one: Named, other: Named) -> bool:
    return (one.table.lower(), one.column.lower()) == (other.table.lower(), other.column.lower())


def _names(selected: exp.Expr) -> Iterator[str]:
    """The columns of what is selected, and its alias."""
    yield from (column.name for column in selected.find_all(exp.Column))
    yield selected.alias
