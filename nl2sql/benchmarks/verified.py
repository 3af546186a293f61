"""Verified queries: questions over one database, and SQL that somebody vouches for, in a YAML file.

    verified_queries:                        # the keys of Snowflake's semantic views
      - question: How many customers are there?
        sql: SELECT COUNT(*) FROM customers
        name: customers                      # this and what follows may be left out
        verified_by: Ana
        verified_at: 2026-11-02              # a date, or seconds since 1970
        use_as_onboarding_question: true     # suggested first

>>> ana = VerifiedQuery("How many orders are there?", "SELECT COUNT(*) FROM orders")
>>> [alike(ana.question, f"how many orders are {word}") for word in ("there", "not there")]
[1.0, 0.0]

Beside the list a file may hold other keys of a semantic view, which are not read. Not covered:
Snowflake's logical tables (``__sales``); SQL names the tables and columns of the database. One file
is of one database.
"""

from __future__ import annotations

import datetime
import functools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.databases.schema import Schema
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import UsageError, one_line
from nl2sql.interfaces import Database, Question, content_key
from nl2sql.machine import file_version, from_yaml
from nl2sql.sql.features import hardness

LIST = "verified_queries"
KEYS = ("name", "question", "sql", "verified_by", "verified_at", "use_as_onboarding_question")
EXAMPLE = f"{LIST}: [{{question: 'How many orders are there?', sql: 'SELECT COUNT(*) FROM orders'}}]"

_TOKEN = re.compile(r"[-+]?\d+(?:[.,:/-]\d+)*|[^\W\d_]+(?:'[^\W\d_]+)*|[^\w\s]|_")
_SENTENCE = frozenset(".,;:!?\"'`()[]")  # signs that say nothing; "<", "-", "%" and the like do
_OPENING = re.compile(r"(?:(?:can|could) you )?(?:(?:show|give|tell) me )?(?:(?:what|which) (?:is|are) )?")
_ARTICLES = frozenset(("a", "an", "the"))
_MOVING = {  # words of a period that is another one later
    *("today", "yesterday", "tomorrow", "now", "current", "currently", "ago", "last", "past"),
    *("previous", "this", "next", "recent"),
}
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


@dataclass(frozen=True)
class VerifiedQuery:
    """A question, its SQL, and who vouched for it when ("" where the file does not say)."""

    question: str
    sql: str
    name: str = ""
    verified_by: str = ""
    verified_at: str = ""  # YYYY-MM-DD, or as it was written
    onboarding: bool = False

    def to_dict(self) -> dict[str, str]:
        """The file's keys, without those that are empty."""
        told = {key: getattr(self, key) for key in KEYS[:5]}
        return {key: value for key, value in told.items() if value}


@dataclass
class VerifiedQueries:
    """The queries of a file, in its order."""

    queries: tuple[VerifiedQuery, ...]
    _stale: dict[Schema, dict[str, str]] = field(default_factory=dict, repr=False)

    @property
    def fingerprint(self) -> str:
        return content_key([query.to_dict() for query in self.queries])

    def stale(self, database: Database) -> dict[str, str]:
        """Question -> why its SQL does not run on the schema of ``database``; once per schema."""
        schema = database.schema()
        if schema not in self._stale:
            judged = {q.question: validate_sql(q.sql, schema, database) for q in self.queries}
            self._stale[schema] = {text: str(j["reason"]) for text, j in judged.items() if j["valid"] is False}
        return self._stale[schema]

    def usable(self, database: Database) -> list[VerifiedQuery]:
        """Those that are not stale, onboarding questions first."""
        stale = self.stale(database)
        return sorted((q for q in self.queries if q.question not in stale), key=lambda q: not q.onboarding)

    def answering(self, question: str, database: Database, closeness: float) -> tuple[VerifiedQuery, float] | None:
        """The usable query that asks the same as ``question``, and how alike they are; else None.

        closeness: the least ``alike``. A query whose SQL fixes a year, under a question about a
        period that moves ("last month"), answers it no more.
        """
        near = [(query, alike(question, query.question)) for query in self.usable(database)]
        near = [(query, share) for query, share in near if share >= max(closeness, 0.01) and not fixes_a_period(query)]
        return max(near, key=lambda found: found[1], default=None)


def alike(left: str, right: str) -> float:
    """The share of words that two questions have in common where they ask the same; 0: they do not.

    1: the same words in the same order, whatever case, quotes and sentence marks. Below: an opening
    ("show me", "what is") or an article differs, and nothing else: no number, sign, name, negation
    or period.
    """
    one, other = _tokens(left), _tokens(right)
    if _asked(one) != _asked(other):
        return 0.0
    return SequenceMatcher(None, _folded(one), _folded(other), autojunk=False).ratio()


def fixes_a_period(query: VerifiedQuery) -> bool:
    """Whether its SQL names a year that its question, about a period that moves, does not."""
    moves = _MOVING & set(_folded(_tokens(query.question)))
    return bool(moves) and not set(_YEAR.findall(query.sql)) <= set(_YEAR.findall(query.question))


def _tokens(question: str) -> list[str]:
    text = unicodedata.normalize("NFKC", question).replace("’", "'")
    return [token for token in _TOKEN.findall(text) if token not in _SENTENCE]


def _folded(tokens: Iterable[str]) -> list[str]:
    return [token.casefold() for token in tokens]


def _asked(tokens: list[str]) -> str:
    """The words that say what is asked. An article with a capital is part of a name ("The Hague")."""
    plain = ["the" if at == 0 and token == "The" else token for at, token in enumerate(tokens)]
    kept = [token for token in plain if token not in _ARTICLES and token.casefold() != "please"]
    return _OPENING.sub("", " ".join(_folded(kept)), count=1)


# ------------------------------------------------------------------------------------------------------ the file


def read_verified(path: str | Path) -> VerifiedQueries:
    """The queries of a file, read once while it does not change.

    Raises UsageError for a file that is missing or broken, or that asks a question twice.
    """
    return _read(*file_version(path, f"verified queries {path}: there is no such file; expected {EXAMPLE}"))


@functools.lru_cache(maxsize=8)
def _read(file: Path, written: tuple[int, int]) -> VerifiedQueries:
    try:
        told = from_yaml(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"verified queries {file} cannot be read: {one_line(error, 200)}") from None
    entries = told.get(LIST) if isinstance(told, dict) else told
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"verified queries {file}: expected {EXAMPLE}")
    queries: dict[str, VerifiedQuery] = {}
    for number, entry in enumerate(entries, 1):
        query = _query(entry, f"verified queries {file}, entry {number}")
        key = " ".join(_folded(_tokens(query.question)))
        if key in queries:
            raise UsageError(f"verified queries {file}: {query.question!r} is asked twice; keep one of the two")
        queries[key] = query
    return VerifiedQueries(tuple(queries.values()))


def _query(entry: Any, where: str) -> VerifiedQuery:
    if not isinstance(entry, dict) or (strange := [key for key in entry if key not in KEYS]):
        found = strange[0] if isinstance(entry, dict) else entry
        raise UsageError(f"{where}: {one_line(found, 60)!r} is unknown; expected the keys {', '.join(KEYS)}")
    texts = {key: entry.get(key, "") for key in ("question", "sql", "name", "verified_by")}
    for key, text in texts.items():
        if not isinstance(text, str) or (key in ("question", "sql") and not text.strip()):
            raise UsageError(f"{where}: {key} is {one_line(text, 60)!r}; expected text")
    stripped = {key: text.strip().rstrip("; \n\t") if key == "sql" else text.strip() for key, text in texts.items()}
    at, onboarding = _day(entry.get("verified_at"), where), bool(entry.get("use_as_onboarding_question"))
    return VerifiedQuery(**stripped, verified_at=at, onboarding=onboarding)


def _day(told: Any, where: str) -> str:
    if isinstance(told, int) and not isinstance(told, bool):
        try:
            return datetime.datetime.fromtimestamp(told, datetime.UTC).date().isoformat()
        except (ValueError, OverflowError, OSError):
            raise UsageError(f"{where}: verified_at is {one_line(told, 60)}; expected seconds since 1970") from None
    return "" if told is None else str(told)


def verified_benchmark(path: Path, database: Path | None) -> FolderBenchmark:
    """The queries of a file as a benchmark over a SQLite file: each question with its SQL as gold.

    A stale one is flagged ``stale``, with the reason. Without a database every question is flagged
    ``db_missing``.
    """
    from nl2sql.databases.sqlite.database import SqliteDatabase

    verified = read_verified(path)
    name = database.stem if database else path.stem
    flags: dict[str, dict[str, Any]] = {}
    if database is None:
        flags = {query.question: {"db_missing": True} for query in verified.queries}
    else:
        with SqliteDatabase(database, name=name) as opened:
            flags = {question: {"stale": why} for question, why in verified.stale(opened).items()}
    questions = [
        Question(
            query.question,
            name,
            f"{number}-{query.name}" if query.name else str(number),
            gold=(query.sql,),
            difficulty=hardness(query.sql),
            meta=flags.get(query.question, {}),
        )
        for number, query in enumerate(verified.queries, 1)
    ]
    files = {name: database} if database else {}
    return FolderBenchmark(path.stem, questions, {}, files, str(path), f"add --db FILE.sqlite, the database of {path}")
