"""Loaded benchmarks: questions, splits, where the databases lie, and which items are left out of scores.

>>> left_out_reason(Question("How many?", "shop", meta={"no_gold": True}))
'no_gold'
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Question

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


def left_out_reason(question: Question) -> str | None:
    """Why an item is not scored: a flag's name or ``gold_rows=0``; None where it is scored."""
    for flag in LEFT_OUT_FLAGS:
        if question.meta.get(flag):
            return flag
    rows = question.meta.get("gold_rows")
    return "gold_rows=0" if rows is not None and rows == 0 else None


def scorable(question: Question) -> bool:
    """Whether the item takes part in scores: no flag of ``LEFT_OUT_FLAGS``, and its gold is known to return rows."""
    return left_out_reason(question) is None


def left_out_counts(questions: Iterable[Question]) -> dict[str, int]:
    """Reason -> number of items left out for it, for the report beside every score."""
    reasons = Counter(reason for question in questions if (reason := left_out_reason(question)))
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
        from nl2sql.benchmarks.descriptions import descriptions_beside
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
    def left_out(self) -> dict[str, int]:
        """Reason -> number of items that scores leave out."""
        return left_out_counts(self.questions)

    def fingerprints(self) -> dict[str, str]:
        """Content hashes: "questions" (id, text, golds, evidence), and one per database in use."""
        from nl2sql.databases.sqlite.files import fingerprint_sqlite

        digest = hashlib.sha256()
        for q in self.questions:
            digest.update(json.dumps([q.id, q.db_id, q.text, q.evidence, list(q.gold)]).encode())
        prints = {"questions": digest.hexdigest()}
        for db_id in sorted({q.db_id for q in self.questions}):
            path = self.files.get(db_id)
            if path is not None and path.exists():
                prints[db_id] = fingerprint_sqlite(path)
        return prints

    def __repr__(self) -> str:
        databases = len({q.db_id for q in self.questions})
        return f"<benchmark {self.name}: {len(self.questions)} questions over {databases} databases>"
