"""The corpus file: a SQLite database of our own with the specification's two tables.

>>> sorted(CORPUS.tables)
['corpus_state', 'error_fix_history', 'successful_queries']
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from nl2sql.databases.sqlite.own_file import OwnFile
from nl2sql.errors import UsageError

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
