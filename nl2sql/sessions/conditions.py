"""Conditions that a follow-up adds or changes: values of cells, numbers, dates, columns of yes and no.

A value or number that a condition of the previous query already compares takes its place; any other becomes one more
condition. A date keeps the parts that are not said again: "And in June?" behind May 2023 is June 2023.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.errors import DatabaseError
from nl2sql.sessions.amounts import SIGNS, Comparison, comparison_condition, kinds_for
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import Named, alike, cell_called, edit_words, named_column, named_group, yes_or_no
from nl2sql.sessions.periods import MONTHS
from nl2sql.sessions.reading import adjectives, are_left_out, is_left_out, is_negated
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.tables import label_column
from nl2sql.sessions.where import NARROWS, Where, compared_columns
from nl2sql.sql.words import words

# ---------------------------------------------------------------------------- columns of yes and no
# A condition where the words of the column are said of the rows; none where the column itself is:
# "sort by vip", "show their vip status".

COLUMN_WORDS = ("status", "column", "flag", "field")  # "the vip status" is the column
WITH = re.compile(r"(?:and )?with\b")


def yes_and_no(where: Where) -> None:
    """0/1 columns, and those of yes and no, whose words the question holds."""
    asked, told = {stem(word): at for at, word in enumerate(words(where.reading.text))}, set()
    nearest = sorted(where.kinds.items(), key=lambda item: (*_unnamed(where, item[0][0]), item[0]))
    added = () if WITH.match(where.reading.text) else where.reading.added
    phrases = [*where.reading.groupings, *(phrase for phrase, _ in where.reading.orders), *added]
    shown = [{stem(word) for word in phrase if word not in COLUMN_WORDS} for phrase in phrases]
    for (table, column), kind in nearest:
        parts = flag_words(column)
        if kind not in ("flag", "text") or not parts or not set(parts) <= set(asked):
            continue
        if where.statement.distance(table) > 1 or column in told:  # "active customers", not active sellers
            continue
        named = where.spelled(table, column)
        if (
            named is None
            or set(parts) in shown
            or _is_asked_for(where, parts)
            or (named.table, named.column) in where.bounded
        ):
            continue
        cells = yes_or_no(named, where.database) if kind == "text" else None
        if kind == "text" and (not cells or f"filter {named.table}.{named.column}" in where.made):
            continue
        told.add(column)
        said = (word.start() for word in re.finditer(r"[a-z]+", where.reading.text) if stem(word[0]) in parts)
        no = is_negated(where.reading.text, next(said, 0)) or _is_denied(where, parts)
        value = exp.Literal.string(cells[no]) if cells else exp.Literal.number(int(not no))
        where.replace_by(named, exp.EQ(this=exp.column(identifier(named.column)), expression=value))


def flag_words(column: str) -> list[str]:
    """The stems that name what a column tells: of ``is_active`` that of "active"."""
    return [stem(part) for part in words(column) if part not in ("is", "has", "flag")]


def _is_asked_for(where: Where, parts: Sequence[str]) -> bool:
    """ "Show their vip status": the column itself."""
    named = re.search(r"\b(?P<whose>their|its|his|her) (?P<what>[a-z ]+)$", where.reading.text.strip(" ?.!"))
    column = re.search(rf"\b(?P<what>[a-z]+) (?:{'|'.join(COLUMN_WORDS)})\b", where.reading.text)
    return any({stem(word) for word in words(match["what"])} >= {*parts} for match in (named, column) if match)


def _is_denied(where: Where, parts: Sequence[str]) -> bool:
    """ "vip = 0"."""
    said = re.finditer(r"\b(?P<word>[a-z]+)(?: is|:| ?=| equals)? (?:0|no|false|n|f)\b", where.reading.text)
    return any(stem(match["word"]) in parts for match in said)


def _unnamed(where: Where, table: str) -> tuple[bool, float]:
    """Is the table not named in the question; how far away it is."""
    asked = {stem(word) for word in words(where.reading.text)}
    return not {stem(word) for word in words(table)} <= asked, where.statement.away(table)


# ----------------------------------------------------------------- the column of a number or a date
# "Under 500 dollars" is about the column that the words beside it mean; a bare "over 20" about the
# number that was compared before, or that is selected. What no column is known for raises
# LookupError.

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


# ----------------------------------------------------------------------------------- all conditions

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
        for condition, compared in compared_columns(self.statement):
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
    return frozenset([*STOP_WORDS, *listed, *orders, *others, *MONTHS, *adjectives()])
