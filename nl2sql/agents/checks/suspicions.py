"""Signs that a query which ran may still be wrong: each a named check with a sentence for the user.

On the packaged ``scale_models`` database, ``SELECT count(*) FROM offices WHERE city = 'paris'`` runs and gives 0:

    unknown_literal: no cell of offices.city is 'paris'; the closest is 'Paris'

A check reads the statement (through sqlglot's scopes), its rows, the question and, where it must, the database: bounded
reads of a second at most. A check never fails: what it cannot read, it says nothing about. ``suspicions.NAME=false``
switches one off. Not covered: statements that sqlglot cannot parse, columns of derived tables and WITH parts.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.agents.context.linking import question_stems, stem
from nl2sql.config import SuspicionsConfig
from nl2sql.databases.schema import Schema, Table
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, RunResult
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import Tree
from nl2sql.sql.words import words

READ_S = 1.0  # of each look into the database
MOST_VALUES = 5_000  # of a column, to find the closest one
INDEXED_BYTES = 200 << 20
MOST_GROUPS = 1_000
MOST_JOINS = 6  # a statement with more is not looked at: its scopes cost too much
NUMERIC = re.compile(r"INT|REAL|FLOA|DOUB|NUMERIC|DECIMAL|NUMBER", re.IGNORECASE)
TEXTUAL = re.compile(r"CHAR|CLOB|TEXT|STRING", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?\Z")
IN_QUESTION = re.compile(r"(?<![\w.,:/-])\d{2,9}(?:\.\d+)?(?![\w:/-]|[.,]\d)")


@dataclass(frozen=True)
class Suspicion:
    """What is suspicious: ``check`` names the kind, ``text`` says it to the user."""

    check: str
    text: str

    def to_dict(self) -> dict[str, str]:
        return {"check": self.check, "text": self.text}


@dataclass(frozen=True)
class _Place:
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
            for name in [c for c in tree.find_all(exp.Column) if _is_text(c, self.schema)]:
                name.replace(exp.Literal.string(name.name))
            known: Any = {t.name: {c.name: c.type or "TEXT" for c in t.columns} for t in self.schema.tables}
            return qualify(
                tree,
                schema=known,
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

    def place(self, scope: Scope, node: Tree) -> _Place | None:
        """The table and column behind a column node; None for one of a derived table."""
        if not isinstance(node, exp.Column):
            return None
        source = scope.sources.get(node.table)
        if not isinstance(source, exp.Table) or (table := self.schema.table(source.name)) is None:
            return None
        name = next((c.name for c in table.columns if c.name.lower() == node.name.lower()), None)
        return _Place(table.name, name, node.table) if name else None

    def type_of(self, place: _Place) -> str:
        table = self.schema.table(place.table)
        return next((c.type for c in table.columns if c.name == place.column), "") if table else ""

    def read(self, query: exp.Select, most: int = 1) -> RunResult:
        """A bounded look into the database."""
        sql = query.sql(dialect=self.database.dialect)
        if sql not in self._seen:
            self._seen[sql] = self.database.run(sql, timeout_s=READ_S, max_rows=most)
        return self._seen[sql]


Check = Callable[[Evidence], Iterator[str]]


def suspicions(
    question: str, sql: str, database: Database, result: RunResult, config: SuspicionsConfig
) -> list[Suspicion]:
    """The signs that a query which ran may be wrong, in the order of ``CHECKS``; each sentence once."""
    noted: dict[Suspicion, None] = {}
    evidence: Evidence | None = None
    for name, check in CHECKS.items():
        if not getattr(config, name):
            continue
        try:
            evidence = evidence or Evidence(question, sql, database.schema(), database, result)
            noted |= dict.fromkeys(Suspicion(name, text) for text in check(evidence))
        except (Nl2SqlError, SqlglotError, sqlite3.Error, OSError, RecursionError):
            continue  # a database that is gone, a statement that nobody can read: there is nothing to say
    return list(noted)


# ------------------------------------------------------------------------------------------------------ literals


def unknown_literal(evidence: Evidence) -> Iterator[str]:
    """A text that a column is compared with and no cell of it holds."""
    for place, value in _texts(evidence):
        held = exp.select("1").from_(exp.table_(place.table, quoted=True)).limit(1)
        held = held.where(exp.column(place.column, quoted=True).eq(exp.Literal.string(value)))
        seen = evidence.read(held)
        if seen.success and not seen.rows:
            close = _closest(evidence, place, value)
            nearest = f"; the closest is {_quoted(close)}" if close else ""
            yield f"no cell of {place} is {_quoted(value)}{nearest}"


def _texts(evidence: Evidence) -> Iterator[tuple[_Place, str]]:
    """(column, text) of every ``column = 'text'`` and ``column IN ('text', ...)``."""
    for scope in evidence.scopes:
        for node in scope.find_all(exp.EQ, exp.In):
            if isinstance(node.parent, exp.Not):
                continue
            sides = [(node.this, e) for e in node.expressions] if isinstance(node, exp.In) else _both_ways(node)
            for column, other in sides:
                place, value = evidence.place(scope, column), _text_of(other)
                if place is not None and value is not None and not NUMBER.match(value):
                    yield place, value


def _both_ways(node: Any) -> list[tuple[Any, Any]]:
    return [(node.left, node.right), (node.right, node.left)]


def _text_of(node: Any) -> str | None:
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def _is_text(node: exp.Column, schema: Schema) -> bool:
    """Whether SQLite reads a column as a text: a double-quoted name of nothing."""
    if node.table or not node.this.args.get("quoted"):
        return False
    return all(node.name.lower() != column.name.lower() for table in schema.tables for column in table.columns)


def _closest(evidence: Evidence, place: _Place, value: str) -> str:
    column, table = exp.column(place.column, quoted=True), exp.table_(place.table, quoted=True)
    listed = evidence.read(exp.select(column).distinct().from_(table).limit(MOST_VALUES), MOST_VALUES)
    folded = {row[0].casefold(): row[0] for row in listed.rows if isinstance(row[0], str)}
    close = get_close_matches(value.casefold(), folded, 1, 0.6)
    return folded[close[0]] if close else ""


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def type_mismatch(evidence: Evidence) -> Iterator[str]:
    """A column of numbers compared with a text that is none, or with a column of texts."""
    for scope in evidence.scopes:
        for node in scope.find_all(exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE):
            for column, other in _both_ways(node):
                place, beside = evidence.place(scope, column), evidence.place(scope, other)
                if place is None or not NUMERIC.search(evidence.type_of(place)):
                    continue
                text = _text_of(other)
                if text is not None and not NUMBER.match(text.strip()):
                    yield f"{place} holds numbers and is compared with the text {_quoted(text)}"
                elif beside is not None and _holds_words(evidence, beside):
                    yield f"{place} holds numbers and is compared with {beside}, which holds texts"


def _holds_words(evidence: Evidence, place: _Place) -> bool:
    """Whether a column of texts holds any that is no number."""
    if not TEXTUAL.search(evidence.type_of(place)):
        return False
    column, table = exp.column(place.column, quoted=True), exp.table_(place.table, quoted=True)
    seen = evidence.read(exp.select(column).distinct().from_(table).limit(MOST_VALUES), MOST_VALUES)
    return any(isinstance(value, str) and not NUMBER.match(value.strip()) for (value,) in seen.rows)


# --------------------------------------------------------------------------------------------------------- joins


def join_beside_key(evidence: Evidence) -> Iterator[str]:
    """Two tables that a declared key links, joined by other columns than any declared one."""
    for scope in evidence.scopes:
        pairs: dict[tuple[str, str], list[tuple[_Place, _Place]]] = {}
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
            place = evidence.place(scope, call.this)
            key = _row_key(evidence.schema.table(place.table)) if place else ""
            if place is None or not key or not _repeats(evidence, select, place.alias, key):
                continue
            yield f"the join repeats rows of {place.table}, so that {place.column} is added up more than once"


def _row_key(table: Table | None) -> str:
    """The column that tells a table's rows apart; "" where it is not one column."""
    keys = [column.name for column in table.columns if column.primary_key] if table else []
    return keys[0] if len(keys) == 1 else ""


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


# ---------------------------------------------------------------------------------------------------------- rows


def empty_result(evidence: Evidence) -> Iterator[str]:
    """No row at all."""
    if not evidence.result.rows:
        yield "the query gives no row"


def null_aggregate(evidence: Evidence) -> Iterator[str]:
    """One row whose only values are NULL: an aggregate over nothing."""
    rows = evidence.result.rows
    if len(rows) == 1 and rows[0] and all(value is None for value in rows[0]):
        yield "the answer is NULL: there was nothing to compute it from"


# ------------------------------------------------------------------------------------------------------ question


def unused_value(evidence: Evidence) -> Iterator[str]:
    """A number or a cell's value that the question names and the query does not hold."""
    text = evidence.sql.casefold()
    for number in dict.fromkeys(IN_QUESTION.findall(evidence.question)):
        if not re.search(rf"(?<!\d){re.escape(number)}(?!\d)", text):
            yield f"the question says {number}, and the query does not"
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


def unused_column(evidence: Evidence) -> Iterator[str]:
    """A column of several words that the question names in full, that no other column is called, and that the query
    does not use."""
    asked = " ".join(stem(word) for word in words(evidence.question))
    used = _squeezed(evidence.sql)
    owners: dict[str, list[_Place]] = {}
    for table in evidence.schema.tables:
        for column in table.columns:
            owners.setdefault(" ".join(words(column.name)), []).append(_Place(table.name, column.name, ""))
    for name, places in owners.items():
        parts = name.split()
        stems = " ".join(stem(part) for part in parts)
        if len(parts) < 2 or len(places) > 1 or f" {stems} " not in f" {asked} ":
            continue
        if question_stems(name) and _squeezed(name) not in used:
            yield f"the question names {places[0]}, and the query does not use it"


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())


CHECKS: Mapping[str, Check] = {
    "unknown_literal": unknown_literal,
    "type_mismatch": type_mismatch,
    "join_beside_key": join_beside_key,
    "fan_out": fan_out,
    "empty_result": empty_result,
    "null_aggregate": null_aggregate,
    "unused_value": unused_value,
    "unused_column": unused_column,
}


def low_confidence(confidence: float | None, least: float) -> Iterator[Suspicion]:
    """The suspicion of an answer whose confidence is below ``least``; none where the controller gives no confidence."""
    if confidence is not None and confidence < least:
        yield Suspicion("low_confidence", f"it is held for right with a probability of {confidence:.2f} only")


def texts(suspected: Sequence[Mapping[str, str]]) -> list[str]:
    """``Episode.flags["suspicions"]`` as lines."""
    return [f"{item['check']}: {item['text']}" for item in suspected]
