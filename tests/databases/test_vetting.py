"""Files that nobody has looked at yet: describing, fingerprinting and copying them is bounded in time and memory."""

import os
import signal
import sqlite3
import time

import pytest

from nl2sql.databases.sqlite import disk
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.databases.sqlite.files import fingerprint_sqlite
from nl2sql.errors import DatabaseError
from nl2sql.eval.replicas import perturbed_replicas, shuffled_copies
from nl2sql.eval.suites import suite_databases

PEOPLE = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO people VALUES (1, 'Ann'), (2, 'Bob');"
DOUBLING = "CREATE VIEW v0 AS SELECT id AS x FROM people;" + "".join(
    f"CREATE VIEW v{k} AS SELECT a.x FROM v{k - 1} a, v{k - 1} b;" for k in range(1, 31)
)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
READERS = {
    "schema": lambda path: SqliteDatabase(path).schema(),
    "fingerprint": fingerprint_sqlite,
    "perturbed replicas": lambda path: perturbed_replicas(path, 1),
    "shuffled copy": lambda path: shuffled_copies(path, [0])[0],
    "suite": lambda path: suite_databases(path, ["SELECT name FROM people"], 2),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def made(tmp_path):
    def make(script: str):
        path = tmp_path / "made.sqlite"
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return path

    return make


def refused(read, path) -> str:
    with pytest.raises(DatabaseError) as error:
        read(path)
    text = str(error.value)
    assert "\n" not in text
    assert path.name in text
    return text


@pytest.mark.parametrize("name", READERS)
def test_a_schema_that_takes_for_ever_is_given_up(name, made, monkeypatch):
    monkeypatch.setattr(disk, "OPEN_S", 1.0)
    path = made(PEOPLE + DOUBLING)
    started = time.monotonic()
    seconds = {"schema": "0.5"}.get(name, "1")  # a schema is read twice, here and by whoever opens the file
    assert f"within {seconds} s" in refused(READERS[name], path)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("name", READERS)
def test_too_many_tables_are_refused(name, made):
    views = "SELECT 'view', 'v' || i, 'v' || i, 0, 'CREATE VIEW v' || i || ' AS SELECT 1' FROM n LIMIT 12000"
    path = made(PEOPLE + f"PRAGMA writable_schema=on; INSERT INTO sqlite_master {ENDLESS} {views};")
    assert "12001 tables and views; at most 10000" in refused(READERS[name], path)


@pytest.mark.parametrize("name", ["fingerprint", "perturbed replicas", "shuffled copy", "suite"])
def test_a_value_that_is_too_large_is_refused(name, made):
    path = made(PEOPLE + "INSERT INTO people VALUES (3, CAST(zeroblob(70000000) AS TEXT));")
    assert "too much memory" in refused(READERS[name], path)
    assert SqliteDatabase(path).schema().tables[0].name == "people"


@pytest.mark.parametrize("name", ["fingerprint", "perturbed replicas", "suite"])
def test_rows_without_end_are_given_up(name, made, monkeypatch):
    """A full-text table that takes its rows from an endless view."""
    monkeypatch.setattr(disk, "OPEN_S", 1.0)
    path = made(
        PEOPLE + f"CREATE VIEW v AS {ENDLESS} SELECT i AS rowid, i AS body FROM n;"
        "CREATE VIRTUAL TABLE f USING fts5(body, content='v');"
    )
    started = time.monotonic()
    text = refused(READERS[name], path)
    assert "within 1 s" in text or "too much memory" in text
    assert time.monotonic() - started < 10
    assert SqliteDatabase(path).schema().tables


def test_an_endless_view_is_described_and_never_run(made):
    path = made(PEOPLE + f"CREATE VIEW v AS {ENDLESS} SELECT i FROM n;")
    assert [table.name for table in SqliteDatabase(path).schema().tables] == ["people", "v"]
    assert len(fingerprint_sqlite(path)) == 64
    assert len(perturbed_replicas(path, 2)) == 2
    assert suite_databases(path, ["SELECT name FROM people WHERE id > 1"], 2)


def test_generated_columns_are_not_computed_for_a_fingerprint(made, tmp_path):
    bomb = "CREATE TABLE people (id, x AS (hex(zeroblob(id)))); INSERT INTO people(id) VALUES ({});"
    first = fingerprint_sqlite(made(bomb.format(40_000_000)))
    (tmp_path / "made.sqlite").unlink()
    assert fingerprint_sqlite(made(bomb.format(40_000_001))) != first


def test_reading_in_this_process_is_interrupted_too(made, monkeypatch):
    from nl2sql.databases.sqlite.files import read_only

    path = made(PEOPLE)
    monkeypatch.setattr(disk, "OPEN_S", 0.3)
    with pytest.raises(sqlite3.DatabaseError, match="more than 0 s"), read_only(path) as connection:
        connection.execute(f"{ENDLESS} SELECT count(*) FROM n").fetchall()


def test_a_reader_that_is_killed_is_replaced(made):
    path = made(PEOPLE)
    assert SqliteDatabase(path).schema().tables
    for reader in disk._readers.idle:
        os.kill(reader.process.pid, signal.SIGKILL)
        reader.process.wait()
    for _ in range(20):
        os.utime(path, ns=(1, int(time.time_ns())))
        try:
            assert SqliteDatabase(path).schema().tables
            break
        except DatabaseError as error:
            assert "died" in str(error)
    else:
        pytest.fail("no reader was started")


@pytest.mark.parametrize("name", ["perturbed replicas", "shuffled copy", "suite"])
def test_copies_of_thousands_of_tables_are_refused_at_once(name, made):
    path = made("BEGIN;" + PEOPLE + "".join(f"CREATE TABLE t{k} (a);" for k in range(2000)) + "COMMIT;")
    assert "2001 tables; copies are made of at most 2000" in refused(READERS[name], path)
