"""SQLite files of our own: a write-ahead log is asked for until the others are done."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql.databases.sqlite import own_file
from nl2sql.databases.sqlite.own_file import write_ahead


def other_writer(path: Path) -> sqlite3.Connection:
    """A connection in the midst of a transaction; SQLite refuses another one the change of journal at once."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_the_change_of_journal_waits_for_a_transaction(tmp_path: Path) -> None:
    with closing(other_writer(tmp_path / "a.db")) as other, closing(sqlite3.connect(tmp_path / "a.db")) as ours:
        release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        release.start()
        write_ahead(ours)
        release.join()
        assert ours.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_file, "WAIT_S", 0.1)
    path = tmp_path / "a.db"
    with (
        closing(other_writer(path)),
        closing(sqlite3.connect(path)) as ours,
        pytest.raises(sqlite3.Error, match="locked"),
    ):
        write_ahead(ours)
