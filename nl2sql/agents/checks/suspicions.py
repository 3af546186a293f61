"""Signs that a query which ran may still be wrong: each a named check with a sentence for the model.

On the packaged ``scale_models`` database, ``SELECT count(*) FROM offices WHERE city = 'paris'`` runs and gives 0:

    unknown_literal: no cell of offices.city is 'paris'; the closest is 'Paris'

A check reads the statement (through sqlglot's scopes), its rows, the question and, where it must, the database: bounded
reads of a second at most. A check never fails: what it cannot read, it says nothing about. ``suspicions.NAME=false``
switches one off. Not covered: statements that sqlglot cannot parse, columns of derived tables and WITH parts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import question_stems, stem
from nl2sql.config import SuspicionsConfig
from nl2sql.databases.schema import Schema, quote_text
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, RunResult
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import SCALES, Tree, words

# ----------------------------------------------------------------------------- what the checks read

READ_S = 1.0  # of each look into the database
INDEXED_BYTES = 200 << 20
MOST_JOINS = 6  # a statement with more is not looked at: its scopes cost too much


@dataclass(frozen=True)
class Place:
    """A column of a table of the database, as a statement names it under ``alias``."""

    table: str
    column: str
    alias: str

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"


@dataclass
class Evidence:
    """A question, the query that answered it, and its rows; what checks share is read once."""

    question: str
    sql: str
    schema: Schema
    database: Database
    result: RunResult
    _seen: dict[str, RunResult] = field(default_factory=dict)

    @cached_property
    def tree(self) -> Tree | None:
        """The statement with every column under its table's alias; None where it cannot be read."""
        dialect = self.database.dialect
        try:
            tree = parse_bounded(self.sql, dialect)
            if sum(1 for _ in tree.find_all(exp.Table)) > MOST_JOINS:
                return None
            known_names = {column.name.lower() for table in self.schema.tables for column in table.columns}
            known_names |= {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
            for name in [c for c in tree.find_all(exp.Column) if _is_text(c, known_names)]:
                name.replace(exp.Literal.string(name.name))
            column_types: Any = {t.name: {c.name: c.type or "TEXT" for c in t.columns} for t in self.schema.tables}
            return qualify(
                tree,
                schema=column_types,
                dialect=dialect,
                validate_qualify_columns=False,
                quote_identifiers=False,
                expand_stars=False,
            )
        except (SqlglotError, RecursionError, ValueError, KeyError, AttributeError):
            return None

    @cached_property
    def scopes(self) -> list[Scope]:
        """The statement's scopes, the innermost first."""
        try:
            return list(traverse_scope(self.tree)) if self.tree is not None else []
        except (SqlglotError, RecursionError):
            return []

    @cached_property
    def values(self) -> list[Match]:
        """The cell values that the question names; of SQLite files up to ``INDEXED_BYTES``, for an index is built."""
        file = sqlite_file(self.database)
        if file is None or file.stat().st_size > INDEXED_BYTES:
            return []
        return ground(self.question, self.database, 6)

    def place(self, scope: Scope, node: Tree) -> Place | None:
        """The table and column behind a column node; None for one of a derived table."""
        if not isinstance(node, exp.Column):
            return None
        source = scope.sources.get(node.table)
        if not isinstance(source, exp.Table) or (table := self.schema.table(source.name)) is None:
            return None
        column = table.column(node.name)
        return Place(table.name, column.name, node.table) if column else None

    def type_of(self, place: Place) -> str:
        table = self.schema.table(place.table)
        column = table.column(place.column) if table else None
        return column.type if column else ""

    def read(self, query: exp.Select, most: int = 1) -> RunResult:
        """A bounded look into the database."""
        sql = query.sql(dialect=self.database.dialect)
        if sql not in self._seen:
            self._seen[sql] = self.database.run(sql, timeout_s=READ_S, max_rows=most)
        return self._seen[sql]


def _is_text(node: exp.Column, names: Collection[str]) -> bool:
    """Whether SQLite reads a column as a text: a double-quoted name of nothing; ``names``: all that there are."""
    return not node.table and bool(node.this.args.get("quoted")) and node.name.lower() not in names


# -------------------------------------------------------------------------------------------- joins

MOST_GROUPS = 1_000


def join_beside_key(evidence: Evidence) -> Iterator[str]:
    """Two tables that a declared key links, joined by other columns than any declared one."""
    for scope in evidence.scopes:
        pairs: dict[tuple[str, str], list[tuple[Place, Place]]] = {}
        for node in scope.find_all(exp.EQ):
            left, right = evidence.place(scope, node.left), evidence.place(scope, node.right)
            if left is not None and right is not None and left.table != right.table:
                one, other = sorted((left, right), key=lambda place: place.alias)
                pairs.setdefault((one.alias, other.alias), []).append((one, other))
        for joined in pairs.values():
            keys = _keys(evidence.schema, joined[0][0].table, joined[0][1].table)
            used = {frozenset(((a.table, a.column.lower()), (b.table, b.column.lower()))) for a, b in joined}
            if keys and not used & keys.keys():
                yield f"{joined[0][0]} = {joined[0][1]} is joined beside the declared key {next(iter(keys.values()))}"


def _keys(schema: Schema, first: str, second: str) -> dict[frozenset[tuple[str, str]], str]:
    """The columns that foreign keys between two tables link, each with how it is written."""
    keys: dict[frozenset[tuple[str, str]], str] = {}
    for own, other in ((first, second), (second, first)):
        table = schema.table(own)
        for key in table.foreign_keys if table else ():
            if key.ref_table.lower() == other.lower():
                for column, target in zip(key.columns, key.ref_columns, strict=False):
                    pair = frozenset(((own, column.lower()), (other, target.lower())))
                    keys[pair] = f"{own}.{column} = {other}.{target}"
    return keys


def fan_out(evidence: Evidence) -> Iterator[str]:
    """A sum or mean over a table's rows that a join repeats."""
    for scope in evidence.scopes:
        select = scope.expression
        if not isinstance(select, exp.Select) or not select.args.get("joins"):
            continue
        for call in scope.find_all(exp.Sum, exp.Avg):
            if isinstance(call.parent, exp.Window):
                continue
            place = evidence.place(scope, call.this)
            table = evidence.schema.table(place.table) if place else None
            if place is None or table is None or not table.key:
                continue
            if _repeats(evidence, select, place.alias, table.key):
                yield f"the join repeats rows of {place.table}, so that {place.column} is added up more than once"


def _repeats(evidence: Evidence, select: exp.Select, alias: str, key: str) -> bool:
    """Whether a row of ``alias`` stands more than once in a group of what the select reads."""
    column = exp.column(key, alias, quoted=True)
    probe = exp.select(exp.Count(this=column), exp.Count(this=exp.Distinct(expressions=[column.copy()])))
    for part in ("with_", "from_", "joins", "where", "group"):
        if select.args.get(part) is not None:
            value = select.args[part]
            probe.set(part, [e.copy() for e in value] if isinstance(value, list) else value.copy())
    seen = evidence.read(probe.limit(MOST_GROUPS), MOST_GROUPS)
    return seen.success and any(rows > distinct for rows, distinct in seen.rows)


# -------------------------------------------------------------------------------------- comparisons

MOST_VALUES = 5_000  # of a column, to find the closest one
NUMERIC = re.compile(r"INT|REAL|FLOA|DOUB|NUMERIC|DECIMAL|NUMBER", re.IGNORECASE)
TEXTUAL = re.compile(r"CHAR|CLOB|TEXT|STRING", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?\Z")


def unknown_literal(evidence: Evidence) -> Iterator[str]:
    """A text or number that a column is compared with and no cell of it holds."""
    for place, literal in compared(evidence):
        if some_cell(evidence, place, cells(place).eq(literal.copy())) is False:
            value = str(literal.this)
            shown = quote_text(value) if literal.is_string else value
            yield f"no cell of {place} is {shown}{_near(evidence, place, value)}"


def compared(evidence: Evidence) -> Iterator[tuple[Place, exp.Literal]]:
    """(column, literal) of every ``column = literal`` and ``column IN (literal, ...)``."""
    for scope in evidence.scopes:
        for node in scope.find_all(exp.EQ, exp.In):
            for column, others in sides(node):
                place = evidence.place(scope, column)
                if place is not None:
                    yield from ((place, other) for other in others if isinstance(other, exp.Literal))


def sides(node: Any) -> list[tuple[Any, list[Any]]]:
    """(one side, what it is compared with) of ``a = b``, both ways, and of ``a IN (b, ...)``; none under NOT."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    if isinstance(parent, exp.Not):
        return []
    if isinstance(node, exp.In):
        return [(node.this, node.expressions)]
    return [(one, [other]) for one, other in _both_ways(node)]


def cells(place: Place) -> exp.Column:
    """A column in a look at its own table alone."""
    return exp.column(place.column, quoted=True)


def some_cell(evidence: Evidence, place: Place, condition: Tree) -> bool | None:
    """Whether any cell of a column meets a condition on ``cells``; None where that could not be read."""
    seen = evidence.read(exp.select("1").from_(exp.table_(place.table, quoted=True)).limit(1).where(condition))
    return bool(seen.rows) if seen.success else None


def _both_ways(node: Any) -> list[tuple[Any, Any]]:
    return [(node.left, node.right), (node.right, node.left)]


def _text_of(node: Any) -> str | None:
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def _near(evidence: Evidence, place: Place, value: str) -> str:
    """The text of a column that is closest to a text; of a number, any text that the column holds."""
    folded = {text.casefold(): text for text in _texts(evidence, place)}
    if NUMBER.match(value):
        return f"; one is {quote_text(min(folded.values()))}" if folded else ""
    close = get_close_matches(value.casefold(), folded, 1, 0.6)
    return f"; the closest is {quote_text(folded[close[0]])}" if close else ""


def _texts(evidence: Evidence, place: Place) -> list[str]:
    """The distinct texts among the first ``MOST_VALUES`` values of a column."""
    table = exp.table_(place.table, quoted=True)
    seen = evidence.read(exp.select(cells(place)).distinct().from_(table).limit(MOST_VALUES), MOST_VALUES)
    return [value for (value,) in seen.rows if isinstance(value, str)]


def type_mismatch(evidence: Evidence) -> Iterator[str]:
    """A column of numbers compared with a text that is none, or with a column of texts; texts that are added up."""
    for scope in evidence.scopes:
        for total in scope.find_all(exp.Sum, exp.Avg):
            place = evidence.place(scope, total.this)
            if place is not None and _holds_words(evidence, place):
                yield f"{place} holds texts, of which {total.key.upper()} adds up the first digits"
        for node in scope.find_all(exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE):
            for column, other in _both_ways(node):
                place, beside = evidence.place(scope, column), evidence.place(scope, other)
                if place is None or not NUMERIC.search(evidence.type_of(place)):
                    continue
                text = _text_of(other)
                if text is not None and not NUMBER.match(text.strip()):
                    yield f"{place} holds numbers and is compared with the text {quote_text(text)}"
                elif beside is not None and _holds_words(evidence, beside):
                    yield f"{place} holds numbers and is compared with {beside}, which holds texts"


def _holds_words(evidence: Evidence, place: Place) -> bool:
    """Whether a column of texts holds any that is no number."""
    if not TEXTUAL.search(evidence.type_of(place)):
        return False
    return any(not NUMBER.match(text.strip()) for text in _texts(evidence, place))


# ----------------------------------------------------------------------------- against the question

SPACED = re.compile(r"(?<![\w.,])\d{1,3}(?: \d{3})+(?![\w.,])")
LARGE_SCALES = SCALES | {"million": 10**6, "billion": 10**9}
IN_QUESTION = re.compile(r"(?<![\w.,:/-])\d{2,9}(?:\.\d+)?(?![\w:/-]|[.,]\d)")


def unused_value(evidence: Evidence) -> Iterator[str]:
    """A number or a cell's value that the question names and the query does not hold."""
    text = evidence.sql.casefold()
    written = {float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?", text)}
    question = SPACED.sub(lambda found: _joined(found[0], written), evidence.question)
    for found in IN_QUESTION.finditer(question):
        if not written & _same_as(float(found[0]), question[found.end() :]):
            yield f"the question says {found[0]}, and the query does not"
    places: dict[tuple[int, int], list[Match]] = {}
    for match in evidence.values:
        named = evidence.question[match.start : match.end]
        if match.score >= 1.0 and match.start and (not named.islower() or " " in named):
            places.setdefault((match.start, match.end), []).append(match)
    for (start, end), matches in places.items():
        named = evidence.question[start:end]
        if not any(match.value.casefold() in text for match in matches) and named.casefold() not in text:
            where = ", ".join(f"{match.table}.{match.column}" for match in matches)
            yield f"the question names {named!r}, a value of {where}, and the query does not"


def _joined(spaced: str, written: set[float]) -> str:
    """``50 000`` as one number where the query has that."""
    joined = spaced.replace(" ", "")
    return joined if float(joined) in written else spaced


def _same_as(number: float, after: str) -> set[float]:
    """What a query may write for a number of the question: "after 1985" is also ">= 1986", "50 percent" 0.5."""
    same = {number, number - 1, number + 1}
    if scaled := re.match(rf"\s*({'|'.join(LARGE_SCALES)})s?\b", after, re.IGNORECASE):
        same.add(number * LARGE_SCALES[scaled[1].lower()])
    if re.match(r"\s*(%|per ?cent)", after, re.IGNORECASE):
        same.add(number / 100)
    if re.match(r"\s*months?\b", after, re.IGNORECASE):
        same.add(number / 12)
    return same


def unused_column(evidence: Evidence) -> Iterator[str]:
    """A column of several words that the question names in full, that no other column is called, and that the query
    does not use."""
    asked = " ".join(stem(word) for word in words(evidence.question))
    used = " ".join([_squeezed(evidence.sql), *map(_squeezed, evidence.result.columns)])  # a star is in the second only
    owners: dict[str, list[Place]] = {}
    for table in evidence.schema.tables:
        for column in table.columns:
            owners.setdefault(" ".join(words(column.name)), []).append(Place(table.name, column.name, ""))
    for name, places in owners.items():
        parts = name.split()
        stems = " ".join(stem(part) for part in parts)
        if len(parts) < 2 or len(places) > 1 or f" {stems} " not in f" {asked} ":
            continue
        if question_stems(name) and _squeezed(name) not in used:
            yield f"the question names {places[0]}, and the query does not use it"


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())


def repeated_column(evidence: Evidence) -> Iterator[str]:
    """The same column or expression twice in the answer."""
    select = evidence.tree.find(exp.Select) if evidence.tree is not None else None
    seen: set[str] = set()
    for item in select.expressions if select is not None else ():
        column = item.unalias()
        text = column.sql()
        if text in seen and not isinstance(column, (exp.Literal, exp.Null)):
            yield f"the answer has {text} twice"
        seen.add(text)


# ------------------------------------------------------------------------------- the checks by name


class Suspicion(NamedTuple):
    """What is suspicious: ``check`` names the kind, ``text`` says it to the user."""

    check: str
    text: str


Check = Callable[[Evidence], Iterator[str]]


def suspicions(
    question: str, sql: str, database: Database, result: RunResult, config: SuspicionsConfig
) -> list[Suspicion]:
    """The signs that a query which ran may be wrong, in the order of ``CHECKS``; each sentence once."""
    warnings: dict[Suspicion, None] = {}
    evidence: Evidence | None = None
    for name, check in CHECKS.items():
        if not getattr(config, name):
            continue
        try:
            evidence = evidence or Evidence(question, sql, database.schema(), database, result)
            warnings |= dict.fromkeys(Suspicion(name, text) for text in check(evidence))
        except (Nl2SqlError, SqlglotError, sqlite3.Error, OSError, RecursionError):
            continue  # a database that is gone, a statement that nobody can read: there is nothing to say
    return list(warnings)


def empty_result(evidence: Evidence) -> Iterator[str]:
    """No row at all."""
    if not evidence.result.rows:
        yield "the query gives no row"


def null_aggregate(evidence: Evidence) -> Iterator[str]:
    """One row whose only values are NULL: an aggregate over nothing."""
    rows = evidence.result.rows
    if len(rows) == 1 and rows[0] and all(value is None for value in rows[0]):
        yield "the answer is NULL: there was nothing to compute it from"


CHECKS: Mapping[str, Check] = {
    "unknown_literal": unknown_literal,
    "type_mismatch": type_mismatch,
    "join_beside_key": join_beside_key,
    "fan_out": fan_out,
    "empty_result": empty_result,
    "null_aggregate": null_aggregate,
    "unused_value": unused_value,
    "unused_column": unused_column,
    "repeated_column": repeated_column,
}


def low_confidence(confidence: float | None, least: float) -> Iterator[Suspicion]:
    """The suspicion of an answer whose confidence is below ``least``; none where the controller gives no confidence."""
    if confidence is not None and confidence < least:
        yield Suspicion("low_confidence", f"it is held for right with a probability of {confidence:.2f} only")


def cut_result(kept: int | None) -> Iterator[Suspicion]:
    """What is said of an answer with more rows than ``execution.max_rows``, of which so many are kept."""
    if kept is not None:
        more = f"the query gives more than {kept:,} rows, and the rest is left out (execution.max_rows)"
        yield Suspicion("cut_result", more)


def texts(suspected: Sequence[Mapping[str, str]]) -> list[str]:
    """``Episode.flags["suspicions"]`` as lines."""
    return [f"{item['check']}: {item['text']}" for item in suspected]
