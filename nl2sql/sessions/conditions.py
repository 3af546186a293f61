"""Conditions that a follow-up adds or changes: values of cells, numbers, dates, what is missing, 0/1 flags.

A value or number that a condition of the previous query already compares takes its place; any other becomes one more
condition. A date keeps the parts that are not said again: "And in June?" behind May 2023 is June 2023.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Database
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import Named, column_kinds, edit_words, named_column, named_group
from nl2sql.sessions.reading import Comparison, Phrase, Reading, adjectives, is_left_out, is_negated
from nl2sql.sessions.related import related
from nl2sql.sessions.statement import Statement, label_column
from nl2sql.sql.words import words

_SIGNS: dict[str, type[exp.Binary]] = {">": exp.GT, ">=": exp.GTE, "<": exp.LT, "<=": exp.LTE, "=": exp.EQ}
_DATES = ("date", "datetime")
_CODE = re.compile(r"(?<![\w'])(?:\d+(?:[:/-]\d+)+|[A-Za-z]\d+)(?![\w'])")
_REPLACED = re.compile(r"\b(?:instead of|rather than|in place of) (?:the |those (?:in|from) )?$")
MOST_LOOKED = 40  # columns that a code is looked for in
_YEAR = re.compile(r"(\d{4})-(\d{2})-\d{2}")


@dataclass
class Conditions:
    """The edits of WHERE for one follow-up; ``made`` names those that were made, ``used`` the places they rest on."""

    question: str
    reading: Reading
    statement: Statement
    database: Database
    made: list[str] = field(default_factory=list)
    used: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds = column_kinds(self.database)

    def edit(self) -> None:
        """Make all that the reading asks for. Raises LookupError where a join is missing."""
        self._drop()
        self._values()
        self._codes()
        for comparison in self.reading.comparisons:
            if not self._is_used(comparison.start, comparison.end):
                self._compare(comparison)
        self._related()
        self._absent()
        self._flags()

    def _is_used(self, start: int, end: int) -> bool:
        return any(start < other[1] and other[0] < end for other in self.used)

    def _put(self, table: str, column: str, condition: exp.Expr, replaced: Sequence[exp.Expr]) -> None:
        if replaced:
            self.statement.replace_conditions(replaced, condition)
            self.made.append(f"replace {table}.{column}")
        else:
            self.statement.add_condition(condition)
            self.made.append(f"filter {table}.{column}")

    # ---------------------------------------------------------------------------------------------------- values

    def _values(self) -> None:
        """Cell values that the question names: each place of it once, those of one column together."""
        chosen: dict[tuple[str, str], list[Match]] = {}
        for match in self._chosen():
            chosen.setdefault((match.table, match.column), []).append(match)
            self.used.append((match.start, match.end))
        for (table, column), named in chosen.items():
            if self.statement.distance(table) > 3:
                continue
            matches = [m for m in named if not _REPLACED.search(self.question[: m.start].lower())] or named
            existing = self.statement.conditions_on(table, column)
            negated = is_left_out(self.question, matches[0].start, matches[-1].end)
            mine = self.statement.column(table, column)
            literals = [exp.Literal.string(match.value) for match in matches]
            one = exp.NEQ if negated else exp.EQ
            same: exp.Expr = one(this=mine, expression=literals[0])
            if len(literals) > 1:
                same = exp.In(this=mine, expressions=literals)
                same = exp.Not(this=same) if negated else same
            self._put(table, column, same, self.statement.conditions_on(table, column) if existing else ())

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
        for condition in self.statement.conditions():
            compared = self.statement.column_compared(condition)
            for literal in condition.find_all(exp.Literal) if compared else ():
                text, letter = literal.this, code[0].lower()
                if literal.is_string and _shape(text) == _shape(code):
                    literal.replace(exp.Literal.string(code.upper() if text.isupper() else code))
                elif not literal.is_string and compared and compared[1][0] == letter and code[1:].isdigit():
                    literal.replace(exp.Literal.number(code[1:]))
                else:
                    continue
                self.made.append(f"replace {'.'.join(compared or ())}")
                return True
        return False

    def _exact_cell(self, code: str) -> bool:
        """One bounded query over the text columns of the tables that are read."""
        looked: list[tuple[str, str]] = []
        for table in self.statement.sources().values():
            kinds = ((c.name, self.kinds[table.name.lower(), c.name.lower()]) for c in table.columns)
            looked += [(table.name, name) for name, kind in kinds if kind in ("text", "time")]
        parts = [
            exp.select(exp.Literal.number(at).as_("place"))
            .from_(exp.table_(table, quoted=True))
            .where(exp.EQ(this=exp.column(column, quoted=True), expression=exp.Literal.string(code)))
            for at, (table, column) in enumerate(looked[:MOST_LOOKED])
        ]
        if not parts:
            return False
        query: exp.Query = exp.union(*parts, distinct=True) if len(parts) > 1 else parts[0]
        result = self.database.run(query.sql(dialect=self.database.dialect), timeout_s=1.0, max_rows=MOST_LOOKED)
        if not result.success or not result.rows:
            return False
        table_name, column_name = looked[int(result.rows[0][0])]
        mine = self.statement.column(table_name, column_name)
        same = exp.EQ(this=mine, expression=exp.Literal.string(code))
        self._put(table_name, column_name, same, self.statement.conditions_on(table_name, column_name))
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
        if text in adjectives() or text in edit_words()["months"] or text in STOP_WORDS:
            return False
        if any(
            c.start <= match.start and match.end <= c.end and c.kind in ("year", "month")
            for c in self.reading.comparisons
        ):
            return bool(self.statement.conditions_on(match.table, match.column))
        one = len(words(text)) == 1 and text.removesuffix("s") != match.value.casefold().removesuffix("s")
        if one and not self.statement.conditions_on(match.table, match.column):
            return False  # "work" is not 'working'
        known = [phrase for phrase in self.reading.groupings if named_group(phrase, self.statement)]
        grouped = {stem(word) for phrase in known for word in phrase}
        return not {stem(word) for word in words(text)} <= grouped

    def _writes_names(self) -> bool:
        """Does the user write names with capitals, in the middle of a sentence?"""
        return bool(re.search(r"(?<=[a-z,] )[A-Z][a-z]", self.question))

    def _fit(self, match: Match) -> tuple[float, float]:
        asked = {stem(word) for word in words(self.question)}
        there = bool(self.statement.conditions_on(match.table, match.column))
        said = sum(stem(word) in asked for word in words(match.column)) + sum(
            stem(word) in asked for word in words(match.table)
        )
        table = self.statement.schema.table(match.table)
        label = table is not None and label_column(table) == match.column
        exact = self.question[match.start : match.end] == match.value
        return 2.0 * there + match.score + 0.6 * said + 0.2 * exact + 0.3 * label - 0.5 * self.statement.distance(
            match.table
        ), 0.0

    # --------------------------------------------------------------------------------------- numbers and dates

    def _compare(self, comparison: Comparison) -> None:
        kinds = _kinds_for(comparison)
        near = (self._column_near(comparison, wanted) for wanted in kinds)
        known = (self.compared_before(wanted) or self.only_one(wanted) for wanted in kinds)
        if named := next(filter(None, near), None) or next(filter(None, known), None):
            self._compare_with(comparison, named)

    def _compare_with(self, comparison: Comparison, named: Named) -> None:
        existing = self.statement.conditions_on(named.table, named.column)
        left_out = comparison.operator in ("", "=") and is_left_out(self.reading.text, comparison.start, comparison.end)
        if left_out or (existing and self._adds_to(existing, comparison)):
            existing = []
        column = self.statement.column(named.table, named.column)
        existing = self.statement.conditions_on(named.table, named.column) if existing else []
        kind = self.kinds[named.table.lower(), named.column.lower()]
        condition = _condition(comparison, column, kind, existing)
        if condition is not None:
            condition = exp.Not(this=condition) if left_out else condition
            self._put(named.table, named.column, condition, existing)
            self.used.append((comparison.start, comparison.end))

    def _adds_to(self, existing: Sequence[exp.Expr], comparison: Comparison) -> bool:
        """A bound of the other side, of those that are there: "only those before 2010" behind "after 2000"."""
        narrowing = re.search(r"\b(?:only|those|them|these|of which)\b", self.reading.text)
        signs = {type(condition) for condition in existing}
        new = _SIGNS.get(comparison.operator)
        opposite = {exp.GT: exp.LT, exp.GTE: exp.LT, exp.LT: exp.GT, exp.LTE: exp.GT}.get(new) if new else None
        return bool(narrowing and opposite and any(issubclass(sign, (opposite,)) for sign in signs))

    def _column_near(self, comparison: Comparison, wanted: Sequence[str]) -> Named | None:
        """The column that the words beside the number mean: those behind it, then those before it."""
        start, end = next(((s, e) for s, e in self.reading.clauses if s <= comparison.start < e), (0, 0))
        behind = [w for w in words(self.reading.text[comparison.end : end])[:3] if w not in _signs()]
        before = [w for w in words(self.reading.text[start : comparison.start])[-7:] if w not in _signs()]
        phrases = [behind[:2], behind[:1], *(before[n:] for n in range(len(before)))]
        phrases += [[word] for word in reversed(before) if word not in STOP_WORDS]
        fits = [named_column(phrase, self.statement, self.kinds, wanted) for phrase in phrases if phrase]
        return max(filter(None, fits), key=lambda named: named.score, default=None)

    def compared_before(self, wanted: Sequence[str]) -> Named | None:
        """The first column of such a kind that a condition compares."""
        for condition in self.statement.conditions():
            column = self.statement.column_compared(condition)
            if column and self.kinds.get(column) in wanted:
                return Named(*column)
        return None

    def only_one(self, wanted: Sequence[str]) -> Named | None:
        """The column of such a kind that is selected, or the one of the main table (none of its keys)."""
        for selected in self.statement.tree.expressions:
            for column in selected.find_all(exp.Column):
                table = self.statement.table_of(column)
                if table and self.kinds.get((table.name.lower(), column.name.lower())) in wanted:
                    return Named(table.name, column.name)
        main = self.statement.main
        keys = {name for key in main.foreign_keys for name in key.columns}
        own = [c.name for c in main.columns if c.name not in keys and not (c.primary_key and "number" in wanted)]
        fits = [name for name in own if self.kinds[main.name.lower(), name.lower()] in wanted]
        sure = len(fits) == 1 or (fits and wanted[0] in _DATES)
        return Named(main.name, fits[0]) if sure else None

    # ------------------------------------------------------------------------------- missing, flags, dropped ones

    def _related(self) -> None:
        """Rows of another table that those shown have, or have not; the words are not read again."""
        for (start, end), table, condition in list(related(self.reading.text, self.statement)):
            if not self._is_used(start, end):
                self.statement.add_condition(condition)
                self.made.append(f"filter {table.name}")
                self.used.append((start, end))
                text = self.reading.text
                self.reading = replace(self.reading, text=text[:start] + " " * (end - start) + text[end:])

    def _absent(self) -> None:
        for phrase, absent in self.reading.absent:
            if any(phrase[0] in self.question[start:end].lower() for start, end in self.used):
                continue
            fits = [named_column(part, self.statement) for part in (phrase, phrase[:1], phrase[-1:])]
            named = next((fit for fit in fits if fit and self.statement.distance(fit.table) == 0), None)
            if named is None:
                continue
            column = self.statement.column(named.table, named.column)
            missing: exp.Expr = exp.Is(this=column, expression=exp.Null())
            condition = missing if absent else exp.Not(this=missing)
            self._put(named.table, named.column, condition, self.statement.conditions_on(named.table, named.column))

    def _flags(self) -> None:
        """0/1 columns whose words the question holds."""
        asked = {stem(word): at for at, word in enumerate(words(self.reading.text))}
        for (table, column), kind in self.kinds.items():
            parts = [stem(part) for part in words(column) if part not in ("is", "has", "flag")]
            if kind != "flag" or not parts or not set(parts) <= set(asked) or self.statement.distance(table) > 1:
                continue
            start = self.reading.text.find(
                words(column)[0] if words(column)[0] not in ("is", "has") else words(column)[1]
            )
            value = 0 if is_negated(self.reading.text, max(start, 0)) else 1
            name = next(t for t in self.statement.schema.tables if t.name.lower() == table)
            spelled = next(c.name for c in name.columns if c.name.lower() == column)
            mine = self.statement.column(name.name, spelled)
            condition = exp.EQ(this=mine, expression=exp.Literal.number(value))
            self._put(name.name, spelled, condition, self.statement.conditions_on(name.name, spelled))

    def _drop(self) -> None:
        for phrase in self.reading.dropped:
            named = next((n for part in _parts(phrase) if (n := named_column(part, self.statement))), None)
            if named and self.statement.drop_conditions_on(named.table, [named.column]):
                self.made.append(f"drop {named.table}.{named.column}")


@cache
def _signs() -> frozenset[str]:
    """The words that compare, which may be the names of columns too ("since")."""
    listed = edit_words()
    phrases = [phrase for those in (*listed["comparisons"].values(), *listed["behind"].values()) for phrase in those]
    return frozenset(word for phrase in phrases for word in phrase.split() if word not in ("level", "start"))


def _cue_places(text: str) -> list[tuple[int, int]]:
    """Where the cues of a follow-up stand: "back" in "back to the stations" is no value."""
    phrases = [phrase for phrase in (*cue_words()["reaching_back"], *cue_words()["openings"]) if " " in phrase]
    return [match.span() for phrase in phrases for match in re.finditer(rf"\b{re.escape(phrase)}\b", text)]


def _shape(text: str) -> str:
    return re.sub(r"[a-z]", "a", re.sub(r"\d", "0", text.lower()))


def _parts(phrase: Phrase) -> Iterator[Phrase]:
    yield from (phrase[:n] for n in range(len(phrase), 0, -1))


def _kinds_for(comparison: Comparison) -> list[tuple[str, ...]]:
    """The kinds of columns that a number or date is compared with, the likelier first."""
    kinds: dict[str, list[tuple[str, ...]]] = {
        "number": [("number", "year")],
        "year": [("date", "datetime", "year"), ("number",)],
        "month": [_DATES],
        "day": [_DATES],
        "time": [("time", "datetime")],
    }
    return kinds[comparison.kind]


def _condition(comparison: Comparison, column: exp.Expr, kind: str, existing: Sequence[exp.Expr]) -> exp.Expr | None:
    """The comparison in the form of the column's kind; None where they do not go together."""
    sign = comparison.operator or _sign_of(existing) or "="
    if sign == "between":
        low, high = (_literal(text, kind) for text in (comparison.text, comparison.high))
        if kind in _DATES and comparison.kind == "year":
            low, high = exp.Literal.string(f"{comparison.text}-01-01"), exp.Literal.string(f"{comparison.high}-12-31")
        return exp.Between(this=column, low=low, high=high)
    if kind in _DATES and comparison.kind in ("year", "month"):
        span = _span(comparison, existing)
        return _within(column, sign, span, kind) if span else None
    return _SIGNS[sign](this=column, expression=_literal(comparison.text, kind))


def _literal(text: str, kind: str) -> exp.Expr:
    if kind in ("number", "year", "flag"):
        return exp.Literal.number(text)
    return exp.Literal.string(text.zfill(5) if kind == "time" else text)


def _sign_of(existing: Sequence[exp.Expr]) -> str:
    """The sign of the condition that is replaced, so that a bare number keeps it."""
    kinds = {type(condition) for condition in existing}
    return next((sign for sign, made in _SIGNS.items() if kinds == {made}), "")


def _span(comparison: Comparison, existing: Sequence[exp.Expr]) -> tuple[str, str] | None:
    """First and last day of the year or month; what is not said is as in the conditions that are replaced."""
    before = [match for condition in existing for match in _YEAR.findall(condition.sql())]
    year = comparison.text or (before[0][0] if before else "")
    if not year:
        return None
    if comparison.kind == "month":
        last = calendar.monthrange(int(year), comparison.month)[1]
        return f"{year}-{comparison.month:02}-01", f"{year}-{comparison.month:02}-{last:02}"
    months = {month for _, month in before}
    if len(before) >= 2 and len(months) == 1:  # one month before: the same one of the other year
        [month] = months
        return f"{year}-{month}-01", f"{year}-{month}-{calendar.monthrange(int(year), int(month))[1]:02}"
    return f"{year}-01-01", f"{year}-12-31"


def _within(column: exp.Expr, sign: str, span: tuple[str, str], kind: str) -> exp.Expr:
    first, last = (exp.Literal.string(day) for day in span)
    if kind == "datetime":
        last = exp.Literal.string(f"{span[1]} 23:59:59")
    if sign == "=":
        return exp.Between(this=column, low=first, high=last)
    return _SIGNS[sign](this=column, expression=last if sign in (">", "<=") else first)
