"""Rows that come into a corpus from elsewhere, and go out of it as JSON lines.

>>> source_of("scale_models", "dev-1")
'scale_models/dev-1'
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Question, content_key
from nl2sql.machine import from_json
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.store import History
from nl2sql.sql.same import same_words

FORMAT = "nl2sql-corpus-1"
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


def export_lines(corpus: Corpus) -> Iterator[str]:
    """The corpus as JSON lines: a header, then one row a line."""
    yield json.dumps({"format": FORMAT})
    for row in corpus.rows():
        yield json.dumps(row, ensure_ascii=False)


def import_lines(corpus: Corpus, file: Path) -> tuple[int, int]:
    """Rows of an exported file: (read, new); rows keep their feedback and their age. Raises UsageError that names a bad
    line; then nothing is stored."""
    read = stored = 0
    if not file.is_file():  # a device may never end
        raise UsageError(f"{file} is not a file; expected one that 'nl2sql corpus export' wrote")
    try:
        text = file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if not text:
        raise UsageError(f"{file} is empty; expected a file that 'nl2sql corpus export' wrote")
    with corpus.batch():
        for number, line in enumerate(text.split("\n"), 1):  # what else splitlines cuts at, a query may hold
            try:
                row = from_json(line)
                if number == 1:
                    if row.get("format") != FORMAT:
                        raise ValueError(f"no {FORMAT!r} header")
                    continue
                stored += _store(corpus, row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise UsageError(f"{file}, line {number}: {what}; expected an export") from None
            read += 1
    return read, stored


def _store(corpus: Corpus, row: Mapping[str, Any]) -> bool:
    history = History(
        float(row.get("created_at") or time.time()), *(int(row.get(k, 0)) for k in ("accepted", "rejected"))
    )
    common = {"dialect": row.get("dialect", "sqlite"), "source": row.get("source", ""), "history": history}
    if row["kind"] == "query":
        id, category = UUID(row.get("query_id") or str(uuid4())), row.get("category")
        return corpus.store_query(id, row["sql"], row.get("description") or "", category, **common)
    made = corpus.store_fix(
        row["error_msg"],
        row["failed_sql"],
        row["successful_sql"],
        row.get("fix_description") or "",
        category=row.get("category") or "unknown",
        **common,
    )
    return made is not None
