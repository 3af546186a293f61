"""What replicas promise of single rows: duplicates, their keys, samples, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import make_database

from nl2sql.eval.replicas import _build, perturb, perturbed_replicas
from nl2sql.eval.replicas.perturb import Perturber

TABLES = """
CREATE TABLE log (a TEXT, b TEXT);
CREATE TABLE visits (id INTEGER PRIMARY KEY, a TEXT, b TEXT);
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parents);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
INSERT INTO log SELECT 'a' || i, 'b' || i FROM n;
INSERT INTO visits SELECT rowid, a, b FROM log;
INSERT INTO parents SELECT rowid FROM log;
INSERT INTO children SELECT rowid, rowid FROM log;
"""


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    return make_database(tmp_path / "original.sqlite", TABLES)


@contextlib.contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        yield connection


@pytest.mark.parametrize("table", ["log", "visits"])
def test_some_rows_are_there_twice_under_keys_of_their_own(original: Path, table: str) -> None:
    for replica in perturbed_replicas(original, 3):
        with opened(replica) as connection:
            rows = connection.execute(f"SELECT a, b FROM {table} WHERE a IS NOT NULL AND b IS NOT NULL").fetchall()
        assert max(Counter(rows).values()) > 1, replica


def test_a_sample_holds_rows_whose_parents_are_in_it(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturb, "max_rows", lambda tables: 40)
    rows = Perturber(original, seed="0").rows
    known = {parent for (parent,) in rows["parents"]}
    assert len(known) == 40 == len(rows["children"])
    assert all(parent in known for _, parent in rows["children"])


def test_a_replica_whose_writing_fails_is_not_there(tmp_path: Path) -> None:
    whole = tmp_path / "000.sqlite"

    def half(target: str) -> None:
        Path(target).write_bytes(b"half of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        _build(whole, half)
    assert list(tmp_path.iterdir()) == []
