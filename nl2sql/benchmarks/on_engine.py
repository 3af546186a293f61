"""A benchmark's questions over the same databases on another engine than SQLite."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nl2sql.databases.engines import dialect_of, open_database
from nl2sql.errors import UsageError
from nl2sql.interfaces import Benchmark, Database, Question, content_key, question_key
from nl2sql.machine import server_parts, with_password

PLACE = "{db_id}"  # in a URL: the name of the question's database


@dataclass
class OnEngine:
    """Questions over databases that ``url`` names, each opened once; ``$NAME`` in its password is read from the
    environment, so ``url`` is one that was typed (``runs.plan`` sees to that)."""

    name: str
    questions: Sequence[Question]
    splits: Mapping[str, Sequence[str]]
    url: str
    _open: dict[str, Database] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def database(self, db_id: str) -> Database:
        """The database of that id. Raises UsageError, DatabaseError where it cannot be opened."""
        with self._lock:
            if db_id not in self._open:
                self._open[db_id] = open_database(with_password(self.url).replace(PLACE, db_id))
            return self._open[db_id]

    def fingerprints(self) -> dict[str, str]:
        """Content hashes: "questions", and one per database in use."""
        prints = {"questions": content_key([[question_key(q), *q.gold] for q in self.questions])}
        return prints | {db_id: self.database(db_id).fingerprint for db_id in sorted({q.db_id for q in self.questions})}


def on_engine(benchmark: Benchmark, url: str) -> OnEngine:
    """The benchmark over the databases of ``url``: a form of ``open_database``, with ``{db_id}`` for several databases.

    A question's gold is its field ``query_<dialect>`` where it has one (``query_mysql``), else the SQLite text. Raises
    UsageError for a URL that holds a password, or names one database for several.
    """
    password = server_parts(url, "the engine").password if "://" in url else None
    if password and "$" not in password:
        raise UsageError("the engine's URL holds a password, which manifests would keep; write $NAME in its place")
    databases = sorted({question.db_id for question in benchmark.questions})
    if len(databases) > 1 and PLACE not in url:
        raise UsageError(
            f"{url} names one database, and {benchmark.name} asks {len(databases)}: write {PLACE} where their names "
            "stand, e.g. duckdb:FOLDER/{db_id}.duckdb"
        )
    dialect = dialect_of(url)
    questions = [_asked_in(dialect, question) for question in benchmark.questions]
    return OnEngine(f"{benchmark.name}-{dialect}", questions, benchmark.splits, url)


def _asked_in(dialect: str, question: Question) -> Question:
    """The question with the gold of that dialect; that a SQLite file or gold is missing does not matter."""
    gold = question.meta.get(f"query_{dialect}")
    forgiven = ("db_missing", "no_gold") if gold else ("db_missing",)
    meta = {key: value for key, value in question.meta.items() if key not in forgiven}
    return replace(question, gold=(str(gold),) if gold else question.gold, meta=meta)
