"""Conditions that a follow-up adds or changes: values of cells, numbers, dates, what is missing, 0/1 flags.

A value or number that a condition of the previous query already compares takes its place; any other becomes one more
condition. A date keeps the parts that are not said again: "And in June?" behind May 2023 is June 2023.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from sqlglot import exp

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.errors import DatabaseError
from nl2sql.sessions import members, turned
from nl2sql.sessions.cells import cell_called, column_of_cell, has_nulls, has_zeros, yes_or_no
from nl2sql.sessions.compared import excludes
from nl2sql.sessions.comparing import Comparisons
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.flags import yes_and_no
from nl2sql.sessions.naming import Named, edit_words, named_column, named_group, named_table
from nl2sql.sessions.people import sexes_said
from nl2sql.sessions.reading import Phrase, adjectives, are_left_out, is_left_out, is_negated
from nl2sql.sessions.related import related, which_key
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.tables import label_column
from nl2sql.sessions.turned import known_words
from nl2sql.sql.words import words

_CODE = re.compile(r"(?<![\w'])(?:\d+(?:[:/-]\d+)+|[A-Za-z]\d+)(?![\w'])")
_REPLACED = re.compile(r"\b(?:instead of|rather than|in place of) (?:the |those (?:in|from) )?$")
_ONE = re.compile(r"\b(?P<verb>have|has|had|with|without|lack) (?:one|any)\b(?! (?:of|[a-z]+s)\b)")
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
_THAN = re.compile(r"(?<!other )(?<!rather )\bthan (?:the )?$")
_WITHOUT = re.compile(r"\bwithout the\b")
_FILTER = ("filter", "condition", "restriction", "limit", "constraint")
MOST_LOOKED = 40  # columns that a code is looked for in


class Conditions(Comparisons):
    """What one follow-up asks of the rows, made of its reading, the values that it names and the words beside them."""

    def edit(self) -> None:
        """Make all that the reading asks for. Raises LookupError where a join is missing."""
        if turned.the_rest(self):
            return
        self._drop()
        turned.all_of(self)
        self._values()
        turned.another_cell(self)
        self._sexes()
        self._codes()
        for comparison in self.reading.comparisons:
            if not self._is_used(comparison.start, comparison.end):
                self.compare(comparison)
        self._related()
        self._absent()
        yes_and_no(self)
        turned.done_after_all(self)

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
        if any(_THAN.search(self.question[:start].lower()) for start, _ in self.used):
            raise LookupError("more or less than another row")  # "older than Ben"
        self._none_beside([(match.start, match.end) for named in chosen.values() for match in named])
        for (table, column), named in chosen.items():
            if self.statement.distance(table) > 3:
                continue
            matches = [m for m in named if not _REPLACED.search(self.question[: m.start].lower())] or named
            matches.sort(key=lambda match: match.start)
            if self.statement.step_to_many(table) and self._asks_for_both(matches):
                raise LookupError(f"both of {', '.join(match.value for match in matches)}")
            signs = are_left_out(self.question, [(match.start, match.end) for match in matches])
            meant = [match for match, left_out in zip(matches, signs, strict=True) if not left_out]
            same = _is_one_of(column, [match.value for match in meant or matches])
            self._which_key(table, column)
            replaced = self._compared(table, column) or self._keys_compared(table)
            left_out = not meant or self._stays_excluded(replaced, same)
            if self.statement.step_to_many(table) and _are_apart(replaced, same, left_out=left_out):
                replaced = []  # "but without egg" behind those with rice
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

    def _asks_for_both(self, matches: Sequence[Match]) -> bool:
        """ "With rice and egg": two rows of another table, where "or" asks for one."""
        between = [self.question[a.end : b.start].lower() for a, b in pairwise(matches)]
        return any(re.fullmatch(r"s?,? ?(?:and|&|as well as|plus)(?: (?:an?|the|with))* ?", text) for text in between)

    def _none_beside(self, places: Sequence[tuple[int, int]]) -> None:
        """Raise LookupError for "Norway and Atlantis", where no cell holds one of the two."""
        for start, end in places:
            for match in self._words_beside(start, end):
                word = match["word"].lower()
                told = any(at < match.end("word") and match.start("word") < until for at, until in places)
                schema = self.statement.schema
                named = named_table([word], schema) or named_column([word], self.statement)
                if not (told or named or (word in known_words() and word != "a")):  # "A or B"
                    raise LookupError(f"{match['word']} beside {self.question[start:end]}")

    def _which_key(self, table: str, column: str) -> None:
        """Raise LookupError for a value of one key ("LIS"), where the words do not say which of two is meant."""
        own = self.statement.schema.table(table)
        for key in own.foreign_keys if own else ():
            other = self.statement.schema.table(key.ref_table)
            if (
                own
                and other
                and key.columns == (column,)
                and (word := which_key(own, column, other, self.reading.text))
            ):
                raise LookupError(f"{table} by {word}")

    def _sexes(self) -> None:
        """ "only the women", where a column of the tables that are read tells."""
        said = sexes_said(self.reading.text, self.statement, self.database)
        if said and not self._is_used(*said[0]):
            (start, end), named, cell = said
            left_out = is_left_out(self.reading.text, start, end)
            replaced = self._compared(named.table, named.column)
            self._put(named.table, _is_one_of(named.column, [cell]), replaced, left_out=left_out)
            self.used.append((start, end))

    def _codes(self) -> None:
        """What is written like a code ("1:48", "Q4") and no text of several words: in the place of one of its shape,
        or as the cell that is exactly so."""
        for match in _CODE.finditer(self.question):
            if self._is_used(*match.span()) or any(
                c.start <= match.start() < c.end and (c.kind in ("day", "month") or c.operator not in ("", "="))
                for c in self.reading.comparisons
            ):
                continue
            if self._same_shape(match[0]) or self._exact_cell(match[0]):
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

    def _exact_cell(self, code: str) -> bool:
        """One bounded query over the text columns of the tables that are read."""
        looked: list[Named] = []
        for table in self.statement.sources().values():
            kinds = ((c.name, self.kinds[table.name.lower(), c.name.lower()]) for c in table.columns)
            looked += [Named(table.name, name) for name, kind in kinds if kind in ("text", "time")]
        named = column_of_cell(code, looked[:MOST_LOOKED], self.database)
        if named is None:
            return False
        self._put(named.table, _is_one_of(named.column, [code]), self._compared(named.table, named.column))
        return True

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
        if any(start <= match.start and match.end <= end for start, end in _cue_places(self.reading.text)):
            return False
        if (
            text.islower()
            and match.value[:1].isupper()
            and self._writes_names()
            and text == self.question[match.start : match.end]
        ):
            return False  # "single" beside "Greywater"
        shouted = self.question[match.start : match.end].isupper() and not self.question.isupper()  # "the US"
        if not shouted and all(
            word in adjectives() or word in edit_words()["months"] or word in STOP_WORDS for word in words(text)
        ):
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

    def _writes_names(self) -> bool:
        """Does the user write names with capitals, in the middle of a sentence?"""
        return bool(re.search(r"(?<=[a-z,] )[A-Z][a-z]", self.question))

    def _fit(self, match: Match) -> tuple[float, float]:
        asked = {stem(word) for word in words(self.question)}
        there = bool(self._compared(match.table, match.column))
        said = sum(stem(word) in asked for word in words(match.column)) + sum(
            stem(word) in asked for word in words(match.table)
        )
        table = self.statement.schema.table(match.table)
        label = table is not None and label_column(table) == match.column
        exact = self.question[match.start : match.end] == match.value
        key = f"{match.table}.{match.column}".lower() in self.statement.said  # "from LIS"
        return 2.0 * there + match.score + 0.6 * (said + key) + 0.2 * exact + 0.3 * label - 0.5 * self.statement.away(
            match.table
        ), 0.0

    # ------------------------------------------------------------------------------- missing, flags, dropped ones

    def _related(self) -> None:
        """Rows of another table that those shown have, or have not; the words are not read again."""
        for (start, end), table, condition, more in list(related(self.reading.text, self.statement)):
            if not self._is_used(start, end):
                if more:
                    raise LookupError(f"{table.name} that are {more}")  # "with organic crops"
                self.statement.add_condition(condition)
                self.made.append(f"filter {table.name}")
                self.used.append((start, end))
                text = self.reading.text
                self.reading = replace(self.reading, text=text[:start] + " " * (end - start) + text[end:])

    def _absent(self) -> None:
        if match := _ONE.search(self.reading.text):  # "and those who have one?" behind those that have none
            for condition in self.statement.conditions():
                missing = condition.this if isinstance(condition, exp.Not) else condition
                if isinstance(missing, exp.Is) and isinstance(missing.expression, exp.Null):
                    absent = match["verb"] in ("without", "lack") or is_negated(self.reading.text, match.start())
                    new = missing.copy() if absent else exp.Not(this=missing.copy())
                    self.statement.replace_conditions([condition], new)
                    self.made.append("replace missing")
                    return
        for phrase, absent in self.reading.absent:
            if any(phrase[0].removeprefix("un") in self.question[start:end].lower() for start, end in self.used):
                continue
            fits = [named_column(part, self.statement) for part in (phrase, phrase[:1], phrase[-1:])]
            named = next((fit for fit in fits if fit and self.statement.away(fit.table) < 1), None)
            if named is None or named.column in self._hidden:
                continue
            if phrase in (("called",), ("named",)):
                raise LookupError("who has no name")
            if absent and (other := self._table_behind(phrase[-1])):
                raise LookupError(f"rows of {other} that are not there")  # "not enrolled in any course"
            table = named_table(phrase, self.statement.schema)
            of_rows = self.is_key(named) or (table is not None and table.name == named.table)
            if absent and of_rows and len(self.statement.sources()) > 1:
                raise LookupError(f"rows without {' '.join(phrase)}")  # a join leaves them out
            self._put(named.table, self._missing(named, absent), self._compared(named.table, named.column))

    def _table_behind(self, word: str) -> str:
        """ "not enrolled in any course": the table that is not read and named behind a preposition; "" for none."""
        behind = re.search(
            rf"\b{re.escape(word)} (?:in|to|for|by|on|at|with|into) (?P<what>[a-z_ ]+)", self.reading.text
        )
        table = named_table(words(behind["what"])[:3], self.statement.schema) if behind else None
        return table.name if table and table.name not in self.statement.tables() else ""

    def _missing(self, named: Named, absent: bool) -> exp.Expr:
        """ "with a scholarship": where it is 'Y'; of numbers that are never NULL, where it is no 0."""
        mine, number = exp.column(identifier(named.column)), self.kind_of(named) == "number"
        if self.kind_of(named) == "flag":
            return exp.EQ(this=mine, expression=exp.Literal.number(int(not absent)))
        if known := yes_or_no(named, self.database):
            return exp.EQ(this=mine, expression=exp.Literal.string(known[absent]))
        if number and has_zeros(named, self.database) and not has_nulls(named, self.database):
            return (exp.EQ if absent else exp.NEQ)(this=mine, expression=exp.Literal.number(0))
        none = exp.Is(this=mine, expression=exp.Null())
        return none if absent else exp.Not(this=none)

    def _drop(self) -> None:
        for phrase in self.reading.dropped:
            named = next((n for part in _parts(phrase) if (n := named_column(part, self.statement))), None)
            removes = re.search(rf"\b(?:without|drop|remove)(?: the)? {phrase[0]}\b", self.reading.text)
            hides = named and removes and phrase[-1] not in _FILTER and self._shows(named)
            if named and hides and self.compared(named) and not _WITHOUT.search(self.reading.text):
                raise LookupError(f"{named.column} or the condition on it")  # "drop the price"
            if named and hides and self._hide(named):
                self.made.append("columns")
            elif named and members.drop_conditions_on(self.statement, named.table, [named.column]):
                self.made.append(f"drop {named.table}.{named.column}")

    def _shows(self, named: Named) -> bool:
        """Is the column selected beside others?"""
        return len(self.statement.tree.expressions) > 1 and any(
            (each.table, each.column) == (named.table, named.column) for each in self.selected()
        )

    def _hide(self, named: Named) -> bool:
        """ "without the genre": the rows as they are, without this column beside others."""
        shown = self.statement.tree.expressions
        pairs = [(each, self.statement.table_of(each)) for each in shown if isinstance(each, exp.Column)]
        gone = [each for each, table in pairs if table and (table.name, each.name) == (named.table, named.column)]
        if not gone or len(gone) == len(shown):
            return False
        self.statement.select([each for each in shown if each not in gone])
        self._hidden.add(named.column)
        return True


def _cue_places(text: str) -> list[tuple[int, int]]:
    """Where the cues of a follow-up stand: "back" in "back to the stations" is no value."""
    lists = (cue_words()[name] for name in ("reaching_back", "openings", "endings"))
    phrases = [phrase for those in lists for phrase in those if " " in phrase]
    return [match.span() for phrase in phrases for match in re.finditer(rf"\b{re.escape(phrase)}\b", text)]


def _is_one_of(column: str, values: Sequence[str]) -> exp.Expr:
    mine, literals = exp.column(identifier(column)), [exp.Literal.string(value) for value in values]
    return exp.In(this=mine, expressions=literals) if len(literals) > 1 else exp.EQ(this=mine, expression=literals[0])


def _are_apart(before: Sequence[exp.Expr], new: exp.Expr, *, left_out: bool) -> bool:
    """Is one a condition on rows that are there, the other on rows that are not, and no value in both?"""
    values = [{v.this for c in those for v in c.find_all(exp.Literal)} for those in (before, [new])]
    return all(excludes(each) != left_out for each in before) and not values[0] & values[1]


def _shape(text: str) -> str:
    return re.sub(r"[a-z]", "a", re.sub(r"\d", "0", text.lower()))


def _parts(phrase: Phrase) -> Iterator[Phrase]:
    yield from (phrase[:n] for n in range(len(phrase), 0, -1))
