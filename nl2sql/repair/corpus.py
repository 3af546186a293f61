"""The corpus of queries that worked and of failures that were repaired, with exact search for similar ones.

A fix is found by two halves of equal weight: its masked error, and the words of its failed statement. The similarity
is the cosine of the whole, 1 for the same error and statement; with an error alone it is the cosine of that half.
A query that worked has no error: it is found by its words beside those of the failed statement, and by its description
where no statement is given.

Nothing of a benchmark's test questions belongs in a corpus that is used on them: ``exclude`` leaves out what came of
one source, and ``source`` says where each row came from.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Question, content_key
from nl2sql.repair.registry import SimilarFix
from nl2sql.repair.store import (
    CORPUS,
    HashedNgrams,
    IndexFactory,
    SearchIndex,
    Vectors,
    error_signature,
    fix_identity,
    in_memory,
    mask_error,
    open_corpus,
    query_identity,
    skeleton,
)
from nl2sql.sql.same import same_words

MAX_TEXT = 20_000  # characters of an SQL or an error that are stored
SHARED = 1e-6  # cosine of a query that shares anything with what is asked
STORED = np.float16  # half the size on disk; the cosine changes by less than 0.001
DAY_S = 86_400.0
FIXES, QUERIES = "error_fix_history", "successful_queries"
KEYS = {FIXES: "id", QUERIES: "query_id"}
SHOWN = {FIXES: "successful_sql, fix_description", QUERIES: "sql, description"}


@dataclass
class _Held:
    """The index of one table's rows of a dialect, as it was after ``changes`` (writes, and among them rewrites)."""

    index: SearchIndex
    changes: tuple[int, int] = (-1, -1)
    last_row: int = 0


class Corpus:
    """A corpus file. Thread-safe; other processes may write it at the same time.

    Raises UsageError for a missing file (unless ``create``) or one that is no corpus, DatabaseError for one that is
    damaged or cannot be written; neither changes the file.

    index: where vectors are searched (``store.milvus`` for Milvus); the file holds them all the same.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        create: bool = False,
        index: IndexFactory = in_memory,
    ) -> None:
        self.path = Path(path)
        self.embedder = HashedNgrams()
        self._new_index = index
        self._lock = threading.RLock()
        self._indexes: dict[tuple[str, str], _Held] = {}
        self._batch: Any = None  # the ``run`` of a transaction that is under way
        self._connection = open_corpus(self.path, create=create)
        try:
            self._check_vectors()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Corpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # ------------------------------------------------------------------------------------------------- writing

    def store_query(
        self,
        query_id: UUID,
        sql: str,
        description: str,
        category: str | None = None,
        *,
        dialect: str = "sqlite",
        source: str = "",
    ) -> bool:
        """Store a query that worked. False where the same query (by its normalised tree) is there already.

        Raises UsageError for a new query with the id of another.
        """
        _bounded(sql, description)
        if not sql.strip():
            raise UsageError("the query is blank; give the SQL that works")
        row = (str(query_id), sql, description, category, self._halves(description, sql, dialect), time.time())
        identity = query_identity(sql, dialect)
        with self._writing() as run:
            stored: bool = run(
                "INSERT OR IGNORE INTO successful_queries (query_id, sql, description, category, embedding, created_at,"
                " dialect, source, identity) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, dialect, source, identity),
            )
            same = "SELECT 1 FROM successful_queries WHERE identity = ?1 OR (query_id = ?2 AND sql = ?3)"
            if not stored and not self._rows(same, identity, str(query_id), sql):
                raise UsageError(f"the id {query_id} is that of another query in the corpus; give a new UUID")
        return stored

    def store_fix(
        self,
        error_msg: str,
        failed_sql: str,
        successful_sql: str,
        fix_description: str,
        *,
        category: str = "unknown",
        dialect: str = "sqlite",
        source: str = "",
    ) -> UUID | None:
        """Store a failure and its repair; its id. None where the same pair is there already."""
        _bounded(error_msg, failed_sql, successful_sql, fix_description)
        if not successful_sql.strip() or not failed_sql.strip():
            raise UsageError("the failed or the successful SQL is blank; a fix needs both")
        signature = error_signature(error_msg, failed_sql, dialect)
        if same_words(failed_sql, successful_sql, dialect):
            raise UsageError("the failed and the successful SQL are the same statement: nothing was repaired")
        made = uuid.uuid4()
        vector = self._halves(mask_error(error_msg, failed_sql, dialect), failed_sql, dialect)
        row = (str(made), signature, error_msg, failed_sql, successful_sql, fix_description, vector, time.time())
        identity = fix_identity(signature, failed_sql, successful_sql, dialect)
        with self._writing() as run:
            stored = run(
                "INSERT OR IGNORE INTO error_fix_history (id, error_signature, error_msg, failed_sql, successful_sql,"
                " fix_description, embedding, created_at, category, dialect, source, identity)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, category, dialect, source, identity),
            )
        return made if stored else None

    def prune(self, *, days: float | None = None, per_category: int | None = None) -> int:
        """Delete rows older than ``days``, and of each dialect and category all but the ``per_category``
        youngest; how many were deleted."""
        gone = 0
        with self._writing() as run:
            for table, key in KEYS.items():
                before = self._count(table)
                if days is not None:
                    run(f"DELETE FROM {table} WHERE created_at < ?", (time.time() - days * DAY_S,), rewrite=True)
                if per_category is not None:
                    run(
                        f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM (SELECT {key}, row_number() OVER ("
                        "PARTITION BY dialect, category ORDER BY created_at DESC, rowid) AS"
                        f" place FROM {table}) WHERE place > ?)",
                        (per_category,),
                        rewrite=True,
                    )
                gone += before - self._count(table)
        return gone

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One transaction of what is stored inside: all of it or, after an exception, nothing; and much faster."""
        with self._writing() as run:
            self._batch = run
            try:
                yield
            finally:
                self._batch = None

    # ------------------------------------------------------------------------------------------------- reading

    def search(
        self,
        error: str,
        failed_sql: str = "",
        *,
        dialect: str = "sqlite",
        limit: int = 3,
        threshold: float = 0.0,
        exclude: str = "",
    ) -> list[SimilarFix]:
        """Fixes of similar failures and similar queries that worked, closest first, at least ``threshold`` close.

        Exact, and the same every time; a query that a fix shows already, or that failed itself, is left out.
        exclude: leave out what was stored with this ``source`` (the question that is being asked right now).
        """
        asked, words = np.split(self._vector(mask_error(error, failed_sql, dialect), failed_sql, dialect), 2)
        by_both: tuple[Vectors, Vectors | None] = (asked, None)
        by_words = by_both
        if failed_sql.strip():  # a query's first half is its description: only the words count, and count twice
            by_both, by_words = (asked, words), (0 * asked, 2 * words)
        with self._lock:
            hits = self._index(FIXES, dialect).search(*by_both, limit=limit, threshold=threshold, exclude=exclude)
            found = list(self._similar(FIXES, hits))
            known = [failed_sql, *(fix.sql for fix in found)]
            wanted: dict[str, Any] = {"threshold": max(threshold, SHARED), "exclude": exclude}
            wanted["limit"] = limit + len(known)  # those that are known already are left out
            for query in self._similar(QUERIES, self._index(QUERIES, dialect).search(*by_words, **wanted)):
                if not any(same_words(query.sql, other, dialect) for other in known):
                    found.append(query)
        return sorted(found, key=lambda fix: -fix.similarity_score)[:limit]

    def changes(self) -> int:
        """A number that grows with every write, by whoever made it."""
        with self._lock:
            return self._state()[0]

    def content_hash(self) -> str:
        """SHA-256 of what decides the answers of a search: every row, in the order stored."""
        digest = hashlib.sha256(self.embedder.name.encode())
        with self._lock:
            for table, asked in ((FIXES, "error_msg, failed_sql, "), (QUERIES, "")):
                for row in self._rows(f"SELECT {asked}{SHOWN[table]}, dialect, source FROM {table} ORDER BY rowid"):
                    digest.update(repr(row).encode())
        return digest.hexdigest()

    def stats(self) -> dict[str, Any]:
        """Counts: queries, fixes, types of error, fixes by dialect and category, bytes of the file."""
        with self._lock:
            kinds = self._rows("SELECT dialect, category, count(*) FROM error_fix_history GROUP BY 1, 2 ORDER BY 1, 2")
            return {
                "queries": self._count("successful_queries"),
                "fixes": self._count("error_fix_history"),
                "error_types": self._rows("SELECT count(DISTINCT error_signature) FROM error_fix_history")[0][0],
                "by_dialect_and_category": {f"{row[0]}/{row[1]}": row[2] for row in kinds},
                "embedding": self._rows("SELECT value FROM corpus_state WHERE name = 'embedding'")[0][0],
                "bytes": self.path.stat().st_size,
            }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row as a dict with ``kind`` (query or fix), without its vector."""
        for kind, table in (("query", "successful_queries"), ("fix", "error_fix_history")):
            with self._lock:
                cursor = self._connection.execute(f"SELECT * FROM {table} ORDER BY rowid")
                names = [column[0] for column in cursor.description]
                records = cursor.fetchall()
            for row in records:
                values = dict(zip(names, row, strict=True))
                yield {"kind": kind} | {k: v for k, v in values.items() if k not in ("embedding", "identity")}

    # ------------------------------------------------------------------------------------------------- inside

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """One transaction; yields ``run(sql, values) -> whether rows changed``."""
        with self._lock:
            if self._batch is not None:
                yield self._batch
                return
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise CORPUS.error(self.path, error) from None
            changed = rewritten = 0

            def run(sql: str, values: Sequence[Any], rewrite: bool = False) -> bool:
                nonlocal changed, rewritten
                count = self._connection.execute(sql, values).rowcount
                changed += count
                rewritten += count if rewrite else 0
                return count > 0

            try:
                yield run
                for name, by in (("changes", changed), ("rewrites", rewritten)):
                    self._connection.execute("UPDATE corpus_state SET value = value + ? WHERE name = ?", (by, name))
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._connection.execute("ROLLBACK")
                raise CORPUS.error(self.path, error) from None
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, *values: Any) -> list[tuple]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise CORPUS.error(self.path, error) from None

    def _count(self, table: str) -> int:
        return int(self._rows(f"SELECT count(*) FROM {table}")[0][0])

    def _similar(self, table: str, hits: Sequence[tuple[str, float]]) -> Iterator[SimilarFix]:
        """The rows behind the hits of a search, in their order."""
        for id, score in hits:
            close = round(min(score, 1.0), 4)
            for sql, text in self._rows(f"SELECT {SHOWN[table]} FROM {table} WHERE {KEYS[table]} = ?", id):
                yield SimilarFix(query_id=UUID(id), sql=sql, description=text or "", similarity_score=close)

    def _state(self) -> tuple[int, int]:
        counts = dict(self._rows("SELECT name, value FROM corpus_state"))
        return int(counts["changes"]), int(counts["rewrites"])

    def _index(self, table: str, dialect: str) -> SearchIndex:
        """The index of a table's rows of a dialect: added to after new rows, read anew after deletions."""
        state = self._state()
        held = self._indexes.get((table, dialect))
        if held is None or held.changes[1] != state[1]:
            content = hashlib.sha256(f"{self.path.resolve()} {self.embedder.name} {dialect}".encode()).hexdigest()[:16]
            name = f"{'fixes' if table == FIXES else 'queries'}_{content}_{state[1]}"
            held = self._indexes[table, dialect] = _Held(self._new_index(name, self.embedder.size))
        if held.changes != state:
            rows = self._rows(
                f"SELECT rowid, {KEYS[table]}, source, embedding FROM {table} WHERE dialect = ? AND rowid > ?"
                " ORDER BY rowid",
                dialect,
                held.last_row,
            )
            if rows:
                held.index.add(row[1:] for row in rows)
            held.changes, held.last_row = state, rows[-1][0] if rows else held.last_row
        return held.index

    def _vector(self, text: str, sql: str, dialect: str) -> Vectors:
        """Two halves, each of length 1/sqrt(2): the text, and the words of the statement."""
        vector: Vectors = self.embedder([text, skeleton(sql, dialect)]).reshape(-1) * math.sqrt(0.5)
        return vector

    def _halves(self, text: str, sql: str, dialect: str) -> bytes:
        return self._vector(text, sql, dialect).astype(STORED).tobytes()

    def _check_vectors(self) -> None:
        """Raises UsageError for a file with vectors of another kind; a new file takes this one's."""
        with self._writing() as run:
            run("INSERT OR IGNORE INTO corpus_state VALUES ('embedding', ?)", (self.embedder.name,))
        named = self._rows("SELECT value FROM corpus_state WHERE name = 'embedding'")[0][0]
        if named != self.embedder.name:
            raise UsageError(
                f"corpus {self.path} holds vectors of {named!r}, not of {self.embedder.name!r}; name another"
            )


QueryCorpus = Corpus  # the specification's name


def _bounded(*texts: str) -> None:
    if longest := max((len(text) for text in texts if len(text) > MAX_TEXT), default=0):
        raise UsageError(f"a text of {longest} characters; the corpus takes at most {MAX_TEXT}")


# ------------------------------------------------------------------------------------------------- learning

LEARNING_SPLITS = frozenset(("train", "training", "dev", "development", "train_spider", "train_others"))


@dataclass(frozen=True)
class Repair:
    """The last failed attempt of an episode and the query that ran after it."""

    question: str
    error: str
    failed_sql: str
    successful_sql: str


def learn(corpus: Corpus, repairs: Iterable[Repair], *, dialect: str, source: str) -> int:
    """Store repairs; how many were new. One that changed nothing but layout or letter case teaches nothing."""
    from nl2sql.repair.analyzer import ErrorAnalyzer

    stored = 0
    for repair in repairs:
        if same_words(repair.failed_sql, repair.successful_sql, dialect):
            continue
        category = ErrorAnalyzer(dialect).analyze_error(repair.error, repair.failed_sql).category
        made = corpus.store_fix(
            repair.error,
            repair.failed_sql,
            repair.successful_sql,
            repair.question,
            category=category,
            dialect=dialect,
            source=source,
        )
        stored += made is not None
    return stored


def source_of(db_id: str, question_id: str) -> str:
    """The origin of a repair, so that a question is never helped by its own repair."""
    return f"{db_id}/{question_id}"


def source_of_question(question: Question) -> str:
    """``source_of`` a benchmark's question; of one that a user asks, which has no id, by its words."""
    if question.split != USER:
        return source_of(question.db_id, question.id)
    return f"user:{source_of(question.db_id, content_key(question.text.casefold().split()))}"
