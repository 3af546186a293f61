"""The bounds that docs/sandbox.md and docs/repair.md state, each at its edge: so much is taken, and no more."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql.databases import data_files, data_readers
from nl2sql.databases.data_files import as_sqlite
from nl2sql.databases.engines import child, open_database
from nl2sql.databases.engines.child import plain
from nl2sql.databases.schema import MAX_VALUE_CHARS, Column, Schema, Table, quote_text, schema_to_text
from nl2sql.databases.sqlite import disk, sandbox, worker
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.databases.sqlite.disk import OwnFile, content_hash, stored_bytes
from nl2sql.databases.sqlite.sandbox import Rejected, Sandbox
from nl2sql.databases.sqlite.worker import OpenDatabases, small_file
from nl2sql.errors import DatabaseError, UsageError

DOCS = Path(__file__).parents[2] / "docs"
MB, GB, NEVER = 2**20, 2**30, float("inf")


def stated(page: str, *sentences: str) -> bool:
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    return all(sentence in text for sentence in sentences)


def limits(pid: int) -> dict[str, int]:
    """What the system says of a process: the limits by name."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:25].strip(): int(line[26:46]) for line in lines if line[26:46].strip().isdigit()}


# ------------------------------------------------------------------------------------------------------ the processes


def test_a_worker_may_take_so_much_memory_and_grow_no_file(shop: Path) -> None:
    with QueryPool(workers=1) as pool:
        assert pool.run(shop, "SELECT 1").success
        (running,) = pool._all
        found = limits(running.process.pid)
    opened = OpenDatabases()
    opened.clear()
    assert stated("sandbox", "2 GiB of address space per worker", "`RLIMIT_FSIZE` 0")
    assert found["Max address space"] == 2 * GB == worker.PROCESS_BYTES
    assert found["Max file size"] == 0 == found["Max core file size"]


def test_a_file_is_described_and_read_within_the_bounds_of_the_page() -> None:
    assert stated("sandbox", "(1 GiB, 10,000 tables and views, 20 M characters of SQL)", "One deadline, 4 s, holds")
    assert (disk.HEAP_BYTES, disk.MAX_TABLES, disk.MAX_SCHEMA_CHARS) == (GB, 10_000, 20_000_000)
    assert disk.rows_deadline(0) == 4.0 and disk.rows_deadline(10 * MB) == 6.0


def test_the_process_of_an_engine_may_hold_and_write_so_much(tmp_path: Path) -> None:
    import duckdb

    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    database: Any = open_database(f"duckdb:{tmp_path / 'x.duckdb'}")
    found = limits(database._worker.process.pid)
    database.close()
    assert plain(1) == 1
    assert stated("repair", "6 GB of data, files of at most 1 MB", "returns at most 64 MB")
    assert (found["Max data size"], found["Max file size"], found["Max core file size"]) == (6 * GB, MB, 0)
    assert child.RESULT_BYTES == 64 * MB


def test_the_process_that_reads_data_files_may_hold_and_write_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 10_000)
    as_sqlite(tmp_path / "t.csv")
    stored = stored_bytes(tmp_path / "t.csv")
    found = limits(data_files._readers.idle[-1].process.pid)
    assert stated("sandbox", "the process may take 640 MB and six times the file")
    assert found["Max data size"] == 640 * MB + 6 * stored and found["Max file size"] == 64 * MB + 64 * stored


# -------------------------------------------------------------------------------------------------- one statement


@pytest.fixture
def box(shop: Path) -> Any:
    made = Sandbox(f"{shop.as_uri()}?mode=ro", "1")
    yield made
    made.close()


def test_a_result_of_sixty_four_megabytes_is_the_largest(box: Sandbox) -> None:
    assert stated("sandbox", "64 MB per value and per result")
    half, digits = 16 * MB - 10, 32 * MB - 20
    found = box.run(f"SELECT hex(zeroblob({half})), hex(zeroblob({half}))", NEVER, 9)
    assert 2 * digits < len(found) < 64 * MB + 100
    with pytest.raises(Rejected, match="the result is larger than 64 MB"):
        box.rows(f"SELECT hex(zeroblob({half})), hex(zeroblob({half + 20}))", NEVER, 9)


def test_rows_are_bounded_by_what_they_take_as_objects(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT NULL, 'a' FROM n"
    each = 56 + 2 * 8 + None.__sizeof__() + "a".__sizeof__()  # the row, its two places, and the values
    for count in (1, 2, 3, 50):
        monkeypatch.setattr(sandbox, "HELD_BYTES", count * each)
        assert len(box.rows(rows.format(count), NEVER, 99)[1]) == count
        monkeypatch.setattr(sandbox, "HELD_BYTES", count * each - 1)
        with pytest.raises(Rejected):
            box.rows(rows.format(count), NEVER, 99)


def test_what_could_not_be_sent_is_too_large_for_a_batch_as_well(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "RESULT_BYTES", 2000)
    sql = "SELECT replace(hex(zeroblob({})), '0', char(1))"  # a character is six as JSON
    assert len(box.rows(sql.format(160), NEVER, 9)[1][0][0]) == 320
    with pytest.raises(Rejected):
        box.rows(sql.format(170), NEVER, 9)


def test_a_statement_gets_as_many_rows_as_it_asks_for_whatever_they_take(box: Sandbox) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) SELECT i, {} FROM n"
    for value, most in (("i", 4999), ("i", 5000), ("i", 5001), ("hex(zeroblob(5000))", 1200), ("i", 1), ("i", 2)):
        columns, rows, cut = box.rows(numbers.format(value), NEVER, most)
        assert [row[0] for row in rows] == list(range(1, min(most, 5000) + 1)) and cut == (most < 5000)
        assert columns == ["i", value]


def test_a_database_of_a_thousand_tables_is_ready_before_its_statements(tmp_path: Path) -> None:
    tables = "".join(f"CREATE TABLE t{n} (a);" for n in range(1000))
    plain_file, searched = tmp_path / "plain.sqlite", tmp_path / "searched.sqlite"
    find = 'SELECT b FROM "say ""x""" WHERE b MATCH \'hello\''
    for path, more in (
        (plain_file, "CREATE VIEW v AS SELECT value FROM json_each('[7]');"),
        (searched, 'CREATE VIRTUAL TABLE "say ""x""" USING fts5(b); INSERT INTO "say ""x""" VALUES (\'hello you\');'),
    ):
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(f"BEGIN; {tables} {more} COMMIT;")
    opened = Sandbox(f"{searched.as_uri()}?mode=ro", "1")
    assert opened.rows(find, NEVER, 9) == (["b"], [("hello you",)], False)
    opened.close()
    inside = Sandbox(":memory:", "")
    assert inside.load(plain_file.read_bytes(), "2") and inside.rows("SELECT * FROM v", NEVER, 9)[1] == [(7,)]
    inside.close()


def test_a_file_of_sixteen_megabytes_is_the_largest_that_is_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
    for size, taken in ((16 * MB, True), (16 * MB + 1, False), (512, True), (511, False)):
        os.truncate(path, size)
        os.utime(path, (time.time() - 60,) * 2)
        assert (small_file(f"{path.as_uri()}?mode=ro", 99 * MB) is not None) == taken, size


# ------------------------------------------------------------------------------------------------------------ files


def test_a_data_file_of_holes_is_read_up_to_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    assert stated("sandbox", "by length 64 MB and 64 times what lies on the disk")
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n")
    os.truncate(path, 65 * MB)
    most = 64 * MB + 64 * stored_bytes(path)
    os.truncate(path, most)
    with pytest.raises(UsageError, match="it holds NUL bytes"):
        as_sqlite(path)
    os.truncate(path, most + 1)
    with pytest.raises(UsageError) as refused:
        as_sqlite(path)
    assert "NUL" not in str(refused.value) and "t.csv" in str(refused.value)


def test_a_data_file_is_read_within_the_bounds_of_the_page(tmp_path: Path) -> None:
    assert stated("sandbox", "2,000 columns, names of 1,000 characters", "a million cells and 16 n",
                  "64 MB of rows and 64 n", "of an Excel file 4 MB unpacked and 50 n",
                  "1,000 tables of a folder or sheets of a book")  # fmt: skip
    (tmp_path / "t.csv").write_text("a\n")
    file = data_readers.DataFile(tmp_path / "t.csv", False, lambda size: None)
    names = ["x" * 1000, *map(str, range(1999))]
    assert len(file.named(names)) == 2000 == len(file.named((), 2000))
    for odd, width in (([*names, "y"], 0), (["x" * 1001], 0), ((), 2001)):
        with pytest.raises(ValueError, match=r"more than 2,000 columns|has 1,001 characters"):
            file.named(odd, width)
    assert (data_readers.UNPACKED, data_readers.UNPACKED_PER_BYTE, data_readers.MOST_TABLES) == (4 * MB, 50, 1000)


NOTES = OwnFile("notebook", "--notes", 1, 7, "CREATE TABLE notes (text TEXT)", hint=", or none")


def test_a_file_of_ours_is_looked_through_for_a_time_that_goes_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    with closing(NOTES.open(path)) as connection:
        connection.execute(
            "INSERT INTO notes WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM n"
        )
    assert stated("sandbox", "the look at a file has 1 s and a second more for every 50 MB")
    assert (disk.CHECK_S, disk.CHECKED_PER_S) == (1.0, 50 * MB)
    hours = 10_000.0
    monkeypatch.setattr(disk, "CHECK_S", -hours)
    monkeypatch.setattr(disk, "CHECKED_PER_S", stored_bytes(path) / (2 * hours))
    NOTES.open(path).close()
    monkeypatch.setattr(disk, "CHECKED_PER_S", stored_bytes(path) / (hours / 2))
    with pytest.raises(DatabaseError, match=r"notebook .* takes too long to look through; give --notes another file"):
        NOTES.open(path)
    with closing(sqlite3.connect(tmp_path / "b.db")) as other:
        other.executescript(";".join(f"CREATE TABLE t{n} (a)" for n in range(7)))
    with pytest.raises(UsageError, match=r"\(its tables: t0, t1, t2, t3, t4\); give --notes another file, or none"):
        NOTES.open(tmp_path / "b.db")


def test_the_hash_of_a_content_is_what_manifests_hold() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(
            "CREATE TABLE t (a INTEGER, b TEXT COLLATE NOCASE, c AS (a + 1)); CREATE VIEW v AS SELECT a FROM t;"
            "INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL), (3, 'é'), (4, 'y'), (5, 'z');"
        )
        assert content_hash(connection) == "254e7547e2e41f3edaded7b12d055b9a3b34a8cd80400810f6ff006c92926748"


# ----------------------------------------------------------------------------------------------------------- the prompt


def test_an_example_in_a_prompt_has_forty_characters() -> None:
    schema = Schema((Table("t", (Column("a", "TEXT"),)),))

    def shown(value: Any) -> str:
        return schema_to_text(schema, samples={"T": {"a": [value]}}).partition(" -- a: ")[2]

    assert MAX_VALUE_CHARS == 40 and shown("x" * 40) == quote_text("x" * 40)
    assert shown("x" * 41) == f"'{'x' * 37}...'"
    assert [shown(value) for value in (None, 1.5, b"ab", "it's  a\n")] == [
        "NULL", "1.5", "<blob of 2 bytes>", "'it''s a'"]  # fmt: skip
