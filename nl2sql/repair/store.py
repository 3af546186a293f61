"""The corpus file with the specification's two tables, and the signatures that tell its rows apart.

>>> sorted(CORPUS.tables)
['corpus_state', 'error_fix_history', 'successful_queries']

>>> mask_error("no such column: T1.nam")
'no such column: <name>'
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from nl2sql.databases.sqlite.disk import OwnFile
from nl2sql.errors import UsageError
from nl2sql.sql.same import tree_key
from nl2sql.sql.words import statement_words

# --------------------------------------------------------------------------------------- signatures

MAX_CHARS = 4000  # of an error, or of a statement; the rest is not looked at
QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
NUMBER = re.compile(r"(?<![\w<])\d+(?:\.\d+)?")
WORD = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
AFTER_COLON = re.compile(r"^(no such (?:column|table|view|window)|ambiguous column name|circular reference|"
                         r"unknown_column|unknown_table|ambiguous_column): ?.+$")  # fmt: skip


def mask_error(error: str, failed_sql: str = "", dialect: str = "sqlite") -> str:
    """The error with its names and numbers masked, lower case, on one line: a type of error.

    Names are what the failed statement calls something (tables, columns, aliases, texts); its functions stay, for a
    missing YEAR is repaired otherwise than a missing CONCAT.
    """
    text = " ".join(error[:MAX_CHARS].split())
    names, functions = _names(failed_sql, dialect)
    text = AFTER_COLON.sub(r"\1: <name>", text)

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match[0][1:-1].lower() in functions else "<name>"

    def word(match: re.Match[str]) -> str:
        parts = match[0].lower().split(".")
        return "<name>" if len(parts) > 1 or parts[0] in names else match[0]

    text = WORD.sub(word, QUOTED.sub(quoted, text))
    return NUMBER.sub("<n>", text).lower().replace("<<name>>", "<name>")


def error_signature(error: str, failed_sql: str = "", dialect: str = "sqlite") -> str:
    """16 hex digits that are the same for errors of one type."""
    return hashlib.sha256(mask_error(error, failed_sql, dialect).encode()).hexdigest()[:16]


def _names(sql: str, dialect: str) -> tuple[set[str], set[str]]:
    """(names that are no keywords, names of functions) of a statement, lower case."""
    from nl2sql.sql.text import KEYWORDS

    words = [word.lower() for word in statement_words(sql, dialect)]
    functions = {word for word, behind in zip(words, [*words[1:], ""], strict=False) if behind == "("}
    return {word for word in words if word[:1].isalpha() or word[:1] == "_"} - KEYWORDS - functions, functions


def query_identity(sql: str, dialect: str) -> str:
    """The identity of a stored query: equal for two queries that are the same."""
    return _digest(dialect, tree_key(sql, dialect))


def fix_identity(signature: str, failed_sql: str, successful_sql: str, dialect: str) -> str:
    """The identity of a stored fix: its type of error and both trees."""
    return _digest(dialect, signature, *(tree_key(sql, dialect) for sql in (failed_sql, successful_sql)))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def skeleton(sql: str, dialect: str = "sqlite") -> str:
    """The statement's words without texts and numbers: what its vector is made of."""
    return NUMBER.sub("<n>", " ".join(statement_words(sql[:MAX_CHARS], dialect)).lower())


# ----------------------------------------------------------------------------------------- the file

TABLES = """
CREATE TABLE successful_queries (
    query_id TEXT PRIMARY KEY, sql TEXT NOT NULL, description TEXT, category TEXT, embedding BLOB,
    created_at REAL NOT NULL, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT);
CREATE TABLE error_fix_history (
    id TEXT PRIMARY KEY, error_signature TEXT NOT NULL, error_msg TEXT NOT NULL, failed_sql TEXT NOT NULL,
    successful_sql TEXT NOT NULL, fix_description TEXT, embedding BLOB, created_at REAL NOT NULL,
    category TEXT, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT);
CREATE INDEX idx_queries_category ON successful_queries (category);
CREATE INDEX idx_error_signature ON error_fix_history (error_signature);
CREATE UNIQUE INDEX idx_queries_identity ON successful_queries (identity);
CREATE UNIQUE INDEX idx_fixes_identity ON error_fix_history (identity);
CREATE TABLE corpus_state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO corpus_state VALUES ('changes', '0'), ('rewrites', '0');
"""
CORPUS = OwnFile("corpus", "--corpus", 1, 0x6E6C3271, TABLES, ": 'nl2sql corpus add' makes it")


@dataclass(frozen=True)
class Fix:
    """A failure and its repair, as stored."""

    id: UUID
    error_signature: str
    error_msg: str
    failed_sql: str
    successful_sql: str
    fix_description: str
    category: str
    dialect: str
    source: str
    created_at: float


def open_corpus(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to the corpus file. Raises UsageError for a missing file unless ``create``, and what
    ``OwnFile.open`` raises."""
    if not path.exists() and not create:
        raise UsageError(f"no corpus at {path}; 'nl2sql corpus add' makes one, or give --corpus FILE")
    return CORPUS.open(path)
