"""The corpus file: a SQLite database with the specification's two tables, opened safely.

Several processes may write at once: each write is one transaction that waits for its turn. A damaged file, one of a
newer nl2sql, or one that is no corpus is an error that leaves it as it is.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from nl2sql.errors import DatabaseError, UsageError, one_line

VERSION = 1
WAIT_S = 20.0  # for another process's transaction
APPLICATION = 0x6E6C3271  # "nl2q": marks the file as a corpus

TABLES = """
CREATE TABLE successful_queries (
    query_id TEXT PRIMARY KEY, sql TEXT NOT NULL, description TEXT, category TEXT, embedding BLOB,
    created_at REAL NOT NULL, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT, accepted INTEGER NOT NULL DEFAULT 0, rejected INTEGER NOT NULL DEFAULT 0);
CREATE TABLE error_fix_history (
    id TEXT PRIMARY KEY, error_signature TEXT NOT NULL, error_msg TEXT NOT NULL, failed_sql TEXT NOT NULL,
    successful_sql TEXT NOT NULL, fix_description TEXT, embedding BLOB, created_at REAL NOT NULL,
    category TEXT, dialect TEXT NOT NULL DEFAULT 'sqlite', source TEXT NOT NULL DEFAULT '',
    identity TEXT, accepted INTEGER NOT NULL DEFAULT 0, rejected INTEGER NOT NULL DEFAULT 0);
CREATE INDEX idx_queries_category ON successful_queries (category);
CREATE INDEX idx_error_signature ON error_fix_history (error_signature);
CREATE UNIQUE INDEX idx_queries_identity ON successful_queries (identity);
CREATE UNIQUE INDEX idx_fixes_identity ON error_fix_history (identity);
CREATE TABLE corpus_state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO corpus_state VALUES ('changes', '0'), ('rewrites', '0');
"""


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
    accepted: int
    rejected: int


@dataclass(frozen=True)
class History:
    """The history of a row: when it was stored (seconds since 1970), and what users said about it."""

    created_at: float
    accepted: int = 0
    rejected: int = 0


def open_corpus(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection to the corpus file. Raises UsageError for a missing file unless ``create``, and for a file that is
    no corpus; DatabaseError for one that is damaged, newer, or locked for too long."""
    if not path.exists() and not create:
        raise UsageError(f"no corpus at {path}; 'nl2sql corpus add' makes one, or give --corpus FILE")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"corpus {path} is not a file that can be made; give --corpus FILE in an existing folder")
    try:
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise DatabaseError(f"corpus {path} cannot be opened: {error}") from None
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise corpus_error(path, error) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # one process prepares, the others wait and then find it done
    tables = connection.execute("SELECT lower(name) FROM sqlite_master WHERE type = 'table'").fetchall()
    names = {row[0] for row in tables}
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise DatabaseError(f"corpus {path} has version {version}, made by a newer nl2sql; this one knows {VERSION}")
    ours = {"successful_queries", "error_fix_history"}
    if names and (version < VERSION or not names & ours):
        raise UsageError(
            f"{path} is a SQLite database but no corpus of nl2sql (its tables: {', '.join(sorted(names)[:5])}); "
            "give --corpus another file: 'nl2sql corpus add' makes it"
        )
    if not names:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    elif (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {problem}")
    connection.execute("COMMIT")


def corpus_error(path: Path, error: sqlite3.Error) -> DatabaseError:
    """SQLite's error about a corpus file, as one line with what to do next."""
    text = one_line(error)
    if "locked" in text or "busy" in text:
        return DatabaseError(f"corpus {path} is being written by another process for over {WAIT_S:g} s; try again")
    if "not a database" in text or "malformed" in text:
        return DatabaseError(f"corpus {path} is damaged ({text}); nothing was changed: restore it, or move it away")
    if "readonly" in text:
        return DatabaseError(f"corpus {path} cannot be written: it, or its folder, is read-only")
    return DatabaseError(f"corpus {path}: {text}")
