"""Conditions that a follow-up adds or changes: values of cells, numbers, dates, what is missing, 0/1 flags.

A value or number that a condition of the previous query already compares takes its place; any other becomes one more
condition. A date keeps the parts that are not said again: "And in June?" behind May 2023 is June 2023.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.errors import DatabaseError
from nl2sql.sessions import members
from nl2sql.sessions.cells import cell_called
from nl2sql.sessions.comparing import Comparisons
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.flags import yes_and_no
from nl2sql.sessions.naming import Named, edit_words, named_group
from nl2sql.sessions.periods import MONTHS
from nl2sql.sessions.reading import adjectives, are_left_out
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.tables import label_column
from nl2sql.sql.words import words

_CODE = re.compile(r"(?<![\w'])(?:\d+(?:[:/-]\d+)+|[A-Za-z]\d+)(?![\w'])")
_REPLACED = re.compile(r"\b(?:instead of|rather than|in place of) (?:the |those (?:in|from) )?$")
_AND_BEHIND = re.compile(
    r"s?\s*(?:,?\s*\b(?:and|or|nor)\b|&|/)\s*(?:the |in |for |from )?(?P<word>[^\W\d_][\w-]*)"
    r"\s*(?:only|too|please|instead|as well)?\s*(?=[.?!,;]|$)"
)
_AND_BEFORE = re.compile(
    r"(?:^|\b(?:about|for|in|of|from|only|just|and|either|neither|not|both|except|without)\s+)"
    r"(?:the )?(?P<word>[^\W\d_][\w-]*)"
    r"\s+(?:and|or|nor|&)\s+(?:the |in |for |from )?$",
    re.IGNORECASE,
)


class Conditions(Comparisons):
    """What one follow-up asks of the rows, made of its reading, the values that it names and the words beside them."""

    def edit(self) -> None:
        """Make all that the reading asks for. Raises LookupError where a join is missing."""
        self._values()
        self._codes()
        for comparison in self.reading.comparisons:
            if not self._is_used(comparison.start, comparison.end):
                self.compare(comparison)
        yes_and_no(self)

    # ---------------------------------------------------------------------------------------------------- values

    def _values(self) -> None:
        """Cell values that the question names: each place of it once, those of one column together."""
        chosen: dict[tuple[str, str], list[Match]] = {}
        for match in self._chosen():
            chosen.setdefault((match.table, match.column), []).append(match)
            self.used.append((match.start, match.end))
        for beside in [each for named in chosen.values() for match in named for each in self._cells_beside(match)]:
            chosen[beside.table, beside.column].append(beside)
            self.used.append((beside.start, beside.end))
        for (table, column), named in chosen.items():
            if self.statement.distance(table) > 3:
                continue
            matches = [m for m in named if not _REPLACED.search(self.question[: m.start].lower())] or named
            matches.sort(key=lambda match: match.start)
            signs = are_left_out(self.question, [(match.start, match.end) for match in matches])
            meant = [match for match, left_out in zip(matches, signs, strict=True) if not left_out]
            same = _is_one_of(column, [match.value for match in meant or matches])
            replaced = self._compared(table, column) or self._keys_compared(table)
            left_out = not meant or self._stays_excluded(replaced, same)
            self._put(table, same, replaced, left_out=left_out)
            if meant and len(meant) < len(matches) and self.statement.step_to_many(table):  # "with rice, without egg"
                others = [match.value for match in matches if match not in meant]
                self._put(table, _is_one_of(column, others), left_out=True)

    def _cells_beside(self, match: Match) -> Iterator[Match]:
        """ "Cancelled or pending", where ``cancelled_at`` is a column too: other cells of the column of ``match``."""
        for beside in self._words_beside(match.start, match.end):
            start, end = beside.span("word")
            if not self._is_used(start, end) and beside["word"].lower() not in known_words():
                cell = cell_called(beside["word"], Named(match.table, match.column), self.database)
                if cell is not None:
                    yield Match(match.table, match.column, cell, 1.0, start, end)

    def _words_beside(self, start: int, end: int) -> Iterator[re.Match[str]]:
        """The one word behind "and" or "or", or before it, of a value that stands there."""
        found = [_AND_BEHIND.match(self.question, end), _AND_BEFORE.search(self.question[:start])]
        return filter(None, found)

    def _codes(self) -> None:
        """What is written like a code ("1:48", "Q4") and no text of several words: in the place of one of its shape,
        or as the cell that is exactly so."""
        for match in _CODE.finditer(self.question):
            if self._is_used(*match.span()) or any(
                c.start <= match.start() < c.end and (c.kind in ("day", "month") or c.operator not in ("", "="))
                for c in self.reading.comparisons
            ):
                continue
            if self._same_shape(match[0]):
                self.used.append(match.span())

    def _same_shape(self, code: str) -> bool:
        """ "Q4" in the place of 'Q3', or of 3 in a column whose name begins with a q."""
        for condition, compared in members.compared_columns(self.statement):
            for literal in list(condition.find_all(exp.Literal)):
                text, letter = literal.this, code[0].lower()
                if literal.is_string and _shape(text) == _shape(code):
                    literal.replace(exp.Literal.string(code.upper() if text.isupper() else code))
                elif not literal.is_string and compared[1][0] == letter and code[1:].isdigit():
                    literal.replace(exp.Literal.number(code[1:]))
                else:
                    continue
                self.made.append(f"replace {'.'.join(compared)}")
                return True
        return False

    def _chosen(self) -> Iterator[Match]:
        try:
            matches = ground(self.question, self.database, 12)
        except DatabaseError:
            return
        places: dict[tuple[int, int], list[Match]] = {}
        for match in matches:
            if self._is_value(match):
                places.setdefault((match.start, match.end), []).append(match)
        taken: list[tuple[int, int]] = []
        for place, those in sorted(places.items(), key=lambda item: item[0][0] - item[0][1]):
            if not any(place[0] < end and start < place[1] for start, end in taken):
                taken.append(place)
                yield max(those, key=self._fit)

    def _is_value(self, match: Match) -> bool:
        """Is it no word that asks (an adjective, a month), and no part of "by X" or of a column's name there?"""
        text = self.question[match.start : match.end].lower()
        shouted = self.question[match.start : match.end].isupper() and not self.question.isupper()  # "the US"
        if not shouted and all(word in adjectives() or word in MONTHS or word in STOP_WORDS for word in words(text)):
            return False
        said = [c for c in self.reading.comparisons if c.start <= match.start and match.end <= c.end]
        if any(c.kind == "day" or c.operator not in ("", "=") for c in said):
            return False  # "until 2023-01-01" is no cell that holds this day
        if any(c.kind in ("year", "month") for c in said):
            return bool(self._compared(match.table, match.column))
        one = len(words(text)) == 1 and text.removesuffix("s") != match.value.casefold().removesuffix("s")
        if one and not self._compared(match.table, match.column):
            return False  # "work" is not 'working'
        known = [phrase for phrase in self.reading.groupings if named_group(phrase, self.statement)]
        grouped = {stem(word) for phrase in known for word in phrase}
        return not {stem(word) for word in words(text)} <= grouped

    def _fit(self, match: Match) -> tuple[float, float]:
        asked = {stem(word) for word in words(self.question)}
        there = bool(self._compared(match.table, match.column))
        said = sum(stem(word) in asked for word in words(match.column)) + sum(
            stem(word) in asked for word in words(match.table)
        )
        table = self.statement.schema.table(match.table)
        label = table is not None and label_column(table) == match.column
        exact = self.question[match.start : match.end] == match.value
        return 2.0 * there + match.score + 0.6 * said + 0.2 * exact + 0.3 * label - 0.5 * self.statement.away(
            match.table
        ), 0.0


def _is_one_of(column: str, values: Sequence[str]) -> exp.Expr:
    mine, literals = exp.column(identifier(column)), [exp.Literal.string(value) for value in values]
    return exp.In(this=mine, expressions=literals) if len(literals) > 1 else exp.EQ(this=mine, expression=literals[0])


def _shape(text: str) -> str:
    return re.sub(r"[a-z]", "a", re.sub(r"\d", "0", text.lower()))


@cache
def known_words() -> frozenset[str]:
    """Words beside a value that are no value themselves: "Norway, and descending"."""
    cues, edits = cue_words(), edit_words()
    listed = (word for name in ("openings", "endings", "pronouns", "edit_verbs", "heads") for word in cues[name])
    orders = (word for name in ("ascending", "descending") for word in edits[name])
    others = ("too", "only", "please", "thanks", "again", "instead", "both", "together", "combined", "separately")
    words_of_people = (word for cells in edits["sexes"].values() for word in cells)
    return frozenset([*STOP_WORDS, *listed, *orders, *others, *MONTHS, *adjectives(), *words_of_people])
