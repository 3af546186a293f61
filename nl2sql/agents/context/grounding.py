"""Value grounding: cell values that a question names, looked up in a trigram index of the database's texts [37].

>>> values_line([Match("customers", "city", "Oslo", 1.0, 0, 4)])
"Values: customers.city = 'Oslo'"

A model that reads only a schema has to guess how a value is written (``'France'``, ``'FR'``, ``'france'``) and in
which column it lies. ``ground`` finds values whose words the question holds, and ``values_line`` writes them below the
question. Off by default (``schema_text.values``).

Not covered: numbers and dates in columns that are not text, synonyms ("female" for ``'F'``), typing errors, texts of
more than 60 characters, more than 5,000 distinct texts of one column.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlglot import exp

from nl2sql.agents.context.linking import NAME_WEIGHT, STOP_WORDS, question_stems, rank_tables
from nl2sql.databases.schema import Schema, quote_always, quote_name, quote_text
from nl2sql.errors import DatabaseError, one_line
from nl2sql.interfaces import Database, RunResult
from nl2sql.machine import cache_dir
from nl2sql.sql.text import stem, words

LONGEST = 60  # characters of a value
MOST_VALUES = 5_000  # distinct values of a column
READ_S = 5.0  # for the texts of one column
PASSING = ("timeout", "worker_died", "memory", "other")  # failures of a read that it may not have another time
CANDIDATES = 300  # values that are compared with the question
ENOUGH = 0.7  # share of a value's letters that the question must hold, word by word
_WORD = re.compile(r"[^\W_]+")
_TEXTUAL = re.compile(r"CHAR|TEXT|STRING|CLOB|ENUM|SYMBOL", re.IGNORECASE)
_COUNTS = frozenset(words("one two three four five six seven eight nine ten first second third last"))


@dataclass(frozen=True)
class Match:
    """A cell value and how much of it (0 to 1, by letters) the question holds from character ``start`` to ``end``."""

    table: str
    column: str
    value: str
    score: float
    start: int
    end: int


def ground(question: str, database: Database, k: int = 4) -> list[Match]:
    """At most ``k`` values of ``database`` that ``question`` names, best first; the index is built on first use.

    Of matches that lie within a longer one only the longer counts ("York" in "New York"). A value that several
    columns hold is given with at most three of them, those in tables and of names that the question is about first.
    Raises DatabaseError when the database cannot be read, or the index not be kept.
    """
    schema = database.schema()
    try:
        matches = _looked_up(question, database, schema)
    except (sqlite3.Error, OSError) as error:
        message = f"the index of values in {cache_dir('values')} cannot be used: {one_line(error, 200)}"
        raise DatabaseError(f"{message}; set NL2SQL_CACHE to another folder, or schema_text.values=0") from None
    kept = [m for m in matches if not any(_within(m, other) for other in matches)]
    tables, asked = dict(rank_tables(question, schema)), question_stems(question)

    def about(match: Match) -> float:
        return tables[match.table] + NAME_WEIGHT * sum(stem(word) in asked for word in words(match.column))

    kept.sort(key=lambda m: (-m.score, m.start - m.end, -about(m), m.table, m.column, m.value))
    chosen: list[Match] = []
    for match in kept:
        if sum((m.start, m.end) == (match.start, match.end) for m in chosen) < 3:
            chosen.append(match)
    return chosen[:k]


def with_values(nlq: str, database: Database, k: int, asked: str | None = None) -> tuple[str, list[Match]]:
    """``nlq`` with a line of the values that it names, and these; ``asked``: a text in which to look instead."""
    matches = ground(nlq if asked is None else asked, database, k)
    return "\n".join(filter(None, (nlq, values_line(matches, database.dialect)))), matches


def values_line(matches: Sequence[Match], dialect: str = "sqlite") -> str:
    """``Values: city.name = 'Oslo', ...``, in the order of the question; empty without matches."""
    if not matches:
        return ""
    ordered = sorted(matches, key=lambda m: (m.start, -m.score, m.table, m.column))
    named = ((quote_name(m.table, dialect), quote_name(m.column, dialect), m.value) for m in ordered)
    shown = (f"{table}.{column} = {quote_text(value)}" for table, column, value in named)
    return "Values: " + ", ".join(shown)


def _within(match: Match, other: Match) -> bool:
    longer = other.end - other.start > match.end - match.start
    return longer and other.start <= match.start and match.end <= other.end and other.score >= match.score


# ------------------------------------------------------------------------------------------------------ compare


def _looked_up(question: str, database: Database, schema: Schema) -> list[Match]:
    """All matches; an index that turns out to be damaged is built anew, once."""
    with _index(database, schema) as index:
        try:
            return list(_matches(question, index, schema))
        except sqlite3.DatabaseError:
            index.unlink(missing_ok=True)
    with _index(database, schema) as index:
        return list(_matches(question, index, schema))


def _matches(question: str, index: Path, schema: Schema) -> Iterator[Match]:
    spans = [(m.group().casefold(), m.start(), m.end()) for m in _WORD.finditer(question)]
    named = {stem(w) for t in schema.tables for n in (t.name, *(c.name for c in t.columns)) for w in words(n)}
    stems = [stem(word) for word, _, _ in spans]
    for table, column, value in _candidates(question, [word for word, _, _ in spans], index):
        parts = [part.casefold() for part in _WORD.findall(value)]
        first, length, score = _longest_run(parts, [word for word, _, _ in spans], stems)
        if score < ENOUGH:
            continue
        start, end = spans[first][1], spans[first + length - 1][2]
        text = question[start:end]
        # "students" is a table here, not the value 'Student', unless it is written like a name
        run = spans[first : first + length]
        if all(word in STOP_WORDS or word in _COUNTS or stem(word) in named for word, _, _ in run):
            quoted = question[start - 1 : start] in ("'", '"') if start else False
            if not quoted and (text.islower() or start == 0):
                continue
        if len(parts) == 1 and len(parts[0]) < 3 and text != value:
            continue  # 'US' is not "us"
        yield Match(table, column, value, score, start, end)


def _longest_run(parts: list[str], asked: list[str], stems: list[str]) -> tuple[int, int, float]:
    """(first word, words, share of the letters) of the longest run of ``parts`` in the question."""
    letters = max(1, sum(map(len, parts)))
    own = [stem(part) for part in parts]
    best = (0, 0, 0.0)
    for i in range(len(asked)):
        for j in range(len(parts)):
            n = 0
            while (
                i + n < len(asked)
                and j + n < len(parts)
                and (
                    asked[i + n] in (parts[j + n], *_plurals(parts[j + n]))
                    or (stems[i + n] == own[j + n] and len(own[j + n]) > 3)
                )
            ):
                n += 1
            score = sum(map(len, parts[j : j + n])) / letters
            if n and score > best[2]:
                best = (i, n, score)
    return best


def _plurals(part: str) -> tuple[str, ...]:
    """Of a word of three letters, whose stem could be that of too many others ("cows", not "care" for 'Car')."""
    return (f"{part}s", f"{part}es") if len(part) == 3 else ()


def _candidates(question: str, asked: list[str], index: Path) -> list[tuple[str, str, str]]:
    """Values that share a word of three letters with the question, most alike first; short ones by equality."""
    long = [w for w in dict.fromkeys(asked) if len(w) >= 3 and w not in STOP_WORDS]
    roots = dict.fromkeys(root for w in long for root in (w, stem(w)) if len(root) >= 3)
    short = [w for w in dict.fromkeys(_WORD.findall(question)) if len(w) < 3 and w.isupper() and w != "I"]
    with closing(sqlite3.connect(f"{index.as_uri()}?mode=ro", uri=True)) as connection:
        values: list[tuple[str, str, str]] = []
        if roots:
            asked_for = " OR ".join(f'"{root}"' for root in roots)
            values += connection.execute(
                'SELECT "table", "column", value FROM cell WHERE cell MATCH ? ORDER BY rank LIMIT ?',
                (asked_for, CANDIDATES),
            ).fetchall()
        marks = ", ".join("?" * len(short))
        return (
            values
            + connection.execute(
                f'SELECT "table", "column", value FROM short WHERE value IN ({marks}) LIMIT {CANDIDATES}', short
            ).fetchall()
        )


# -------------------------------------------------------------------------------------------------------- index


@contextmanager
def _index(database: Database, schema: Schema) -> Iterator[Path]:
    """The index of a database's content, in the cache; another process may build the same one meanwhile.

    One without the texts of a column that could not be read this time is used this once, and not kept.
    """
    file = cache_dir("values") / f"{database.fingerprint}.sqlite"
    if file.exists():
        yield file
        return
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    os.close(handle)
    try:
        if _build(Path(name), database, schema):
            Path(name).replace(file)
            yield file
        else:
            yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _build(file: Path, database: Database, schema: Schema) -> bool:
    """Write the index; False where a read failed that may succeed another time."""
    whole = True
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(
            'CREATE VIRTUAL TABLE cell USING fts5(value, "table" UNINDEXED, "column" UNINDEXED, tokenize="trigram")'
        )
        connection.execute('CREATE TABLE short (value, "table", "column")')
        for table, column, result in _reads(database, schema):
            whole = whole and (result.success or result.error_kind not in PASSING)
            for (value,) in result.rows if result.success else ():
                if isinstance(value, str) and 1 <= len(value) <= LONGEST:
                    into = "cell" if len(value) >= 3 else "short"
                    row = (value, table, column)
                    connection.execute(f'INSERT INTO {into} (value, "table", "column") VALUES (?, ?, ?)', row)
        connection.execute("CREATE INDEX by_value ON short (value)")
    return whole


def _reads(database: Database, schema: Schema) -> Iterator[tuple[str, str, RunResult]]:
    """(table, column, its distinct texts) of every column; behind a read that took too long, no more of that table."""
    for table in schema.tables:
        for column in table.columns:
            if database.dialect != "sqlite" and not _TEXTUAL.search(column.type or "TEXT"):
                continue  # columns of other engines hold values of their type only
            query = _query_of(database.dialect, table.name, column.name)
            result = database.run(query, timeout_s=READ_S, max_rows=MOST_VALUES)
            yield table.name, column.name, result
            if result.error_kind == "timeout":
                break


def _query_of(dialect: str, table: str, column: str) -> str:
    if dialect != "sqlite":
        name = exp.column(column, quoted=True)
        return exp.select(name).distinct().from_(exp.table_(table, quoted=True)).limit(MOST_VALUES).sql(dialect=dialect)
    text = quote_always(column)
    return (
        f"SELECT DISTINCT {text} FROM (SELECT {text} FROM {quote_always(table)} LIMIT 100000) "
        f"WHERE typeof({text}) = 'text' AND length({text}) BETWEEN 1 AND {LONGEST} LIMIT {MOST_VALUES}"
    )
