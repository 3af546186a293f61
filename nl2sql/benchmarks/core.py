"""Loaded benchmarks: questions, splits, where the databases lie and what is said of their columns, which items are left
out of scores, and a seeded sample of the questions.

>>> exclusion_reason(Question("How many?", "shop", meta={"no_gold": True}))
'no_gold'
>>> questions = [Question("How many?", db_id, f"{db_id}-{n}") for db_id in ("a", "b") for n in range(9)]
>>> sorted(question.db_id for question in draw_sample(questions, 4))
['a', 'a', 'b', 'b']
"""

from __future__ import annotations

import csv
import io
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.errors import BenchmarkError, DatabaseError, UsageError
from nl2sql.interfaces import Question, Turn
from nl2sql.machine import from_json

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import SqliteDatabase

LEFT_OUT_FLAGS = (
    "unfit",  # a correction says so
    "stale",  # a verified query that no longer runs on the schema
    "other_engine",  # Spider 2.0-lite: it asks BigQuery or Snowflake
    "writes",  # LiveSQLBench: its solution changes the database
    "db_missing",
    "db_empty",
    "db_partly_empty",
    "time_dependent",
    "gold_error",
    "is_impossible",  # EHRSQL: nothing in the database answers it
    "no_gold",
)


def exclusion_reason(question: Question) -> str | None:
    """Why an item is not scored: a flag's name or ``gold_rows=0``; None where it is scored."""
    for flag in LEFT_OUT_FLAGS:
        if question.meta.get(flag):
            return flag
    rows = question.meta.get("gold_rows")
    return "gold_rows=0" if rows is not None and rows == 0 else None


def scorable(question: Question) -> bool:
    """Whether the item takes part in scores: no flag of ``LEFT_OUT_FLAGS``, and its gold is known to return rows."""
    return exclusion_reason(question) is None


def excluded_counts(questions: Iterable[Question]) -> dict[str, int]:
    """Reason -> number of items left out for it, for the report beside every score."""
    reasons = Counter(reason for question in questions if (reason := exclusion_reason(question)))
    return dict(sorted(reasons.items()))


@dataclass
class FolderBenchmark:
    """Questions over SQLite files. ``files`` maps database id to file; a database without a file is missing."""

    name: str
    questions: Sequence[Question]
    splits: Mapping[str, Sequence[str]]  # split name -> question ids
    files: Mapping[str, Path]
    source: str = ""  # the folder or hub id that it was read from
    where: str = ""  # its databases can be had
    _open: dict[str, SqliteDatabase] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def database(self, db_id: str) -> SqliteDatabase:
        """The database of that id, opened once. Raises DatabaseError where its file is missing."""
        from nl2sql.databases.sqlite.database import SqliteDatabase

        path = self.files.get(db_id)
        if path is None or not path.exists():
            raise DatabaseError(f"benchmark {self.name!r} has no file for database {db_id!r}; {self.expected(db_id)}")
        with self._lock:
            if db_id not in self._open:
                self._open[db_id] = SqliteDatabase(path, name=db_id, descriptions=descriptions_beside(path))
            return self._open[db_id]

    def expected(self, db_id: str) -> str:
        """The file that a database should be, and where it can be had."""
        if self.where:
            return f"expected {db_id}.sqlite below {self.source}: {self.where}"
        folders = "its databases/, database/, dev_databases/ or train_databases/"
        return f"expected {db_id}/{db_id}.sqlite in {self.source} or in {folders}"

    @property
    def excluded(self) -> dict[str, int]:
        """Reason -> number of items that scores leave out."""
        return excluded_counts(self.questions)

    def __repr__(self) -> str:
        databases = len({q.db_id for q in self.questions})
        return f"<benchmark {self.name}: {len(self.questions)} questions over {databases} databases>"


# ------------------------------------------------------------------------------------------------- a sample


def draw_sample(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """``limit`` questions, each database in proportion to its size and, where possible, at least once.

    Quotas are by largest remainder; ties, and the questions within a database, are drawn with ``seed``. The
    questions keep the order they came in. With fewer places than databases, ``limit`` databases are drawn and
    give one question each. ``limit`` None or above the number of questions gives all of them.
    Raises UsageError for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit} is not a number of questions; expected 1 or more")
    if limit is None or limit >= len(questions):
        return list(questions)
    strata: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        strata.setdefault(question.db_id, []).append(index)
    rng = random.Random(f"nl2sql-sample-{seed}")
    names = sorted(strata)
    rng.shuffle(names)
    quotas = _quotas({name: len(strata[name]) for name in names}, limit)
    chosen = [index for name in names for index in rng.sample(strata[name], quotas[name])]
    return [questions[index] for index in sorted(chosen)]


def _quotas(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """Places per stratum. The order of ``sizes`` breaks ties."""
    if limit <= len(sizes):
        return {name: int(place < limit) for place, name in enumerate(sizes)}
    total, spare = sum(sizes.values()), limit - len(sizes)  # one each first; the rest in proportion
    rest = {name: size - 1 for name, size in sizes.items()}
    exact = {name: spare * size / (total - len(sizes)) for name, size in rest.items()}
    quotas = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: quotas[name] - exact[name])
    for name in by_remainder[: spare - sum(quotas.values())]:
        quotas[name] += 1
    return {name: quota + 1 for name, quota in quotas.items()}


# --------------------------------------------------------------------------------- descriptions of columns
# BIRD: ``database_description/TABLE.csv`` beside the SQLite file, in UTF-8 or in Windows' code page 1252, with a row
# ``original_column_name, column_name, column_description, data_format, value_description`` per column. LiveSQLBench and
# Mini-Interact: ``DB_column_meaning_base.json``, {"DB|TABLE|COLUMN": text or {"column_meaning", "fields_meaning"}}.

FOLDER = "database_description"
MEANINGS = "*_column_meaning_base.json"


def descriptions_beside(database: Path) -> dict[tuple[str, str], str]:
    """(table, column) in lower case -> what is said of it. Raises BenchmarkError for a file that cannot be read.

    ``descriptions_beside(Path("dev_databases/shop/shop.sqlite"))[("customers", "city")]``: 'where the customer lives'
    """
    try:
        return _read(database)
    except (ValueError, AttributeError, TypeError, csv.Error) as error:
        raise BenchmarkError(f"what is said of the columns of {database.name} cannot be read: {error}") from None


def _read(database: Path) -> dict[tuple[str, str], str]:
    tables = sorted((database.parent / FOLDER).glob("*.csv"))
    meanings = [
        file for file in database.parent.glob(MEANINGS) if database.stem.startswith(file.name[: -len(MEANINGS[1:])])
    ]
    entries = [entry for file in tables for entry in _of_csv(file)] + [e for file in meanings for e in _of_json(file)]
    return {(table.lower(), column.lower()): text for table, column, text in entries if text}


def _of_csv(file: Path) -> Iterator[tuple[str, str, str]]:
    for row in csv.DictReader(io.StringIO(_text(file), newline="")):
        known = {str(key).strip(): " ".join(value.split()) for key, value in row.items() if isinstance(value, str)}
        said = known.get("column_description") or known.get("column_name", "")
        values = known.get("value_description", "")
        yield file.stem, known.get("original_column_name", ""), "; ".join(filter(None, (said, values)))


def _of_json(file: Path) -> Iterator[tuple[str, str, str]]:
    meanings = from_json(_text(file))
    for key, said in meanings.items():
        _, table, column = key.split("|", 2)
        if isinstance(said, dict):
            fields = ", ".join(said.get("fields_meaning") or ())
            said = said.get("column_meaning", "") + (f" (fields: {fields})" if fields else "")
        yield table, column, str(said)


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise BenchmarkError(f"{file} cannot be read: {error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


# ---------------------------------------------------------------------------------------- dialogues


def is_interactions(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the records of a file are whole dialogues, as in SParC and CoSQL, and not single questions."""
    return bool(records) and "interaction" in records[0]


def turn_records(records: Iterable[Mapping[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """A record per turn of official interactions, with ``id``, ``interaction_id`` and ``turn`` made from ``prefix``.

    >>> shown = {"utterance": "List the ships.", "query": "SELECT name FROM ship"}, {"utterance": "How many?"}
    >>> [(row["id"], row["turn"]) for row in turn_records([{"interaction": [*shown]}], "sparc-dev")]
    [('sparc-dev-0.1', 1), ('sparc-dev-0.2', 2)]

    Not covered: an interaction's ``final`` question, which says the goal of all of its turns; the
    answers that CoSQL's system gave in words, where they are no part of the utterance.
    Raises BenchmarkError for a record that holds no list of turns.
    """
    turns: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        name = f"{prefix}-{number}"
        told = record.get("interaction")
        if not isinstance(told, list) or not all(isinstance(turn, Mapping) for turn in told):
            raise BenchmarkError(
                f"interaction {name} has {str(told)[:60]!r} in place of its turns; expected "
                "{'database_id': ..., 'interaction': [{'utterance', 'query'}, ...], 'final': ...}"
            )
        shared = {key: value for key, value in record.items() if key not in ("interaction", "final")}
        for turn, said in enumerate(told, 1):
            place = {"id": f"{name}.{turn}", "interaction_id": name, "turn": turn}
            turns.append({**shared, **said, **place})
    return turns


def with_gold_histories(questions: Sequence[Question]) -> list[Question]:
    """The same questions; a turn of a dialogue gets the turns before it, oldest first, with their golds.

    A question is a turn where its ``meta`` has ``interaction_id``; ``meta["turn"]`` orders it, and its place in the
    list where that is missing. A turn that declares a history keeps those texts, each with what is known of the
    earlier turn that it names. A turn before it that has no gold is passed over: a session keeps what ran.
    Raises BenchmarkError for a ``turn`` that is no whole number, or is there twice.
    """
    told = dict(enumerate(questions))
    for turns in _by_interaction(questions):
        before: list[Question] = []
        for index, question in turns:
            told[index] = replace(question, history=_history(question, before))
            before += [question] if question.gold else []
    return list(told.values())


def _history(question: Question, before: Sequence[Question]) -> tuple[Turn, ...]:
    """What the question declares, completed from the turns ``before`` it; all of these where it declares nothing."""
    golds = {turn.text: _gold_turn(turn) for turn in before}
    if question.history:
        return tuple(turn if turn.sql else golds.get(turn.user_query, turn) for turn in question.history)
    return tuple(_gold_turn(turn) for turn in before)


def _by_interaction(questions: Sequence[Question]) -> Iterable[list[tuple[int, Question]]]:
    """The turns of each dialogue in order, each with its place in the list; ``meta["turn"]`` of each is a number."""
    groups: dict[str, dict[int, tuple[int, Question]]] = {}
    for index, question in enumerate(questions):
        dialogue = question.meta.get("interaction_id")
        if dialogue is None:
            continue
        group = groups.setdefault(str(dialogue), {})
        number = question.meta.get("turn", len(group) + 1)
        if isinstance(number, bool) or not isinstance(number, int) or number in group:
            why = "is no whole number" if number not in group else "is there twice"
            raise BenchmarkError(
                f"question {question.id}: turn {number!r} of interaction {dialogue!r} {why}; expected 1, 2, 3, ..."
            )
        group[number] = index, replace(question, meta={**question.meta, "turn": number})
    return [[group[number] for number in sorted(group)] for group in groups.values()]


def _gold_turn(question: Question) -> Turn:
    return Turn(question.text, str(question.meta.get("standalone") or ""), question.gold[0])


def has_dialogues(questions: Iterable[Question]) -> bool:
    """Whether any question is a turn of a dialogue."""
    return any(question.history or "interaction_id" in question.meta for question in questions)


def interactions(questions: Iterable[Question]) -> list[list[Question]]:
    """The questions by dialogue, in order of their turns; a question outside of any is one by itself."""
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in questions:
        dialogue = question.meta.get("interaction_id")
        key = ("question", question.id) if dialogue is None else ("dialogue", str(dialogue))
        groups.setdefault(key, []).append(question)
    return [sorted(group, key=lambda turn: turn.meta.get("turn", 0)) for group in groups.values()]


def behind_excluded(questions: Iterable[Question]) -> set[str]:
    """The ids of turns that are scored themselves, behind a turn of their dialogue that scores leave out."""
    behind = (turn for turns in interactions(questions) for turn in dropwhile(scorable, turns))
    return {turn.id for turn in behind if scorable(turn)}


def draw_dialogues(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """All turns of ``limit`` dialogues, drawn by database as ``draw_sample`` draws questions; in their order.

    Raises UsageError for a limit below 1.
    """
    groups = {group[0].id: group for group in interactions(questions)}
    drawn = draw_sample([group[0] for group in groups.values()], limit, seed)
    kept = {turn.id for first in drawn for turn in groups[first.id]}
    return [question for question in questions if question.id in kept]
