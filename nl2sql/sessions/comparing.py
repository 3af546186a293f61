"""Which column a number or a date of a follow-up is about, and the condition on it.

"Under 500 dollars" is about the column that the words beside it mean; a bare "over 20" about the number that was
compared before, or that is selected. What no column is known for raises LookupError.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.sessions.amounts import Comparison
from nl2sql.sessions.compared import SIGNS, comparison_condition, kinds_for, scaled
from nl2sql.sessions.naming import Named, alike, edit_words, named_column
from nl2sql.sessions.reading import is_left_out
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.where import NARROWS, Where
from nl2sql.sql.words import words

_PART = re.compile(  # "the first half of 2023"
    r"\b(?:(?:half|halves|thirds?|quarters?|weeks?|middle|winter|spring|summer|autumn|fall)(?: of| in)?(?: the year)?"
    r"|early|late|mid|q[1-4](?: of)?)[ -]$"
)


class Comparisons(Where):
    """The numbers and dates of one follow-up."""

    def compare(self, comparison: Comparison) -> None:
        if not comparison.text and comparison.kind == "day":
            raise LookupError("the year of a day")
        if comparison.kind == "year" and _PART.search(self.reading.text[: comparison.start]):
            raise LookupError("a part of a year")
        kinds, bound = kinds_for(comparison), comparison.operator not in ("", "=")
        if comparison.kind == "year" and _in_time().search(self.reading.text[: comparison.start]):
            kinds = kinds[:1]  # "in 2004" is no amount of 2004
        near = (self._column_near(comparison, wanted) for wanted in kinds)
        before = (self.compared_before(wanted) for wanted in kinds)
        numbered = bound or comparison.kind != "year"
        alone = (self.only_one(wanted) if numbered or wanted != ("number",) else None for wanted in kinds)
        known = (
            itertools.chain(before, alone) if bound else itertools.chain.from_iterable(zip(before, alone, strict=True))
        )
        named = next(filter(None, near), None) or next(filter(None, known), None)
        if named:
            self._compare_with(comparison, named)
        elif bound or comparison.kind == "year":
            raise LookupError(f"a column that is {comparison.operator} {comparison.text}")

    def name_another_column(self, said: Sequence[str]) -> bool:
        """Is one of the words of a column or a table that the statement neither shows nor reads?"""
        light, schema = edit_words()["light"], self.statement.schema
        mine = {part for each in self.statement.tree.expressions for name in _names(each) for part in words(name)}
        known = {stem(word) for word in (*mine, *(part for t in self.statement.tables() for part in words(t)))}
        columns = {stem(p) for t in schema.tables for c in t.columns for p in words(c.name) if p not in light}
        asked = {stem(w) for w in said if w not in STOP_WORDS and w not in _signs() and len(w) > 3}
        return bool(asked & (columns | {stem(t.name.lower()) for t in schema.tables}) - known)

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
        return bool(narrowing and opposite and any(issubclass(sign, (opposite,)) for sign in signs))

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
