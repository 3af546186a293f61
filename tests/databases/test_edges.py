"""Edges of what is kept open, read, sampled and said, through the doors that callers use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from people import make_database

from nl2sql.databases import data_files, packaged
from nl2sql.databases.data_files import as_sqlite, is_data
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.databases.sqlite.batch import run_pairs
from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase
from nl2sql.databases.sqlite.process import Children
from nl2sql.databases.sqlite.worker import OpenDatabases
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Database, RunResult


@pytest.mark.parametrize(("size", "inside"), [(900_000, [False, True]), (2_500_000, [False, True]),
                                              (3_400_000, [False, False, True])])  # fmt: skip
def test_a_file_is_read_into_memory_once_so_many_statements_have_asked(
    size: int, inside: list[bool], tmp_path: Path
) -> None:
    path = make_database(tmp_path / "t.sqlite", f"CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob({size}))")
    os.utime(path, (1, 1))
    opened = OpenDatabases()
    assert [opened.get(f"{path.as_uri()}?mode=ro", "1").in_memory for _ in inside] == inside
    assert opened.get(f"{path.as_uri()}?mode=ro", "1").rows("SELECT length(a) FROM t", float("inf"), 9)[1] == [(size,)]
    opened.clear()


def test_a_worker_remembers_what_was_asked_of_a_thousand_files(shop: Path) -> None:
    opened = OpenDatabases()
    uris = [f"{shop.as_uri()}?mode=ro&n={number}" for number in range(1002)]
    for uri in uris:
        opened.get(uri, "1")
    assert list(opened.asked) == uris[2:] and len(opened.open) == 32
    opened.clear()


def test_processes_are_kept_for_the_next_unless_they_failed() -> None:
    children = Children("nl2sql.databases.sqlite.disk")
    with children.lent() as first, children.lent() as second:
        assert first is not second and first.process.pid != second.process.pid
    assert children.idle == [second, first]
    with children.lent() as again:
        assert again is first
    with pytest.raises(DatabaseError), children.lent() as kept:
        raise DatabaseError("the file's fault")
    assert kept in children.idle
    with pytest.raises(ValueError, match="ours"), children.lent() as lost:
        raise ValueError("ours")
    assert lost.closed and lost not in children.idle and lost.process.returncode is not None
    with children.lent() as closed:
        closed.close()
    assert closed not in children.idle
    children.close()
    assert children.idle == []


# ---------------------------------------------------------------------------------------------------------- data files


def test_a_folder_holds_so_many_names_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "f"
    folder.mkdir()
    for name in ("a.csv", "b.csv", "c.txt"):
        (folder / name).write_text("x\n1\n")
    monkeypatch.setattr(data_files, "MOST_FILES", 3)
    monkeypatch.setattr(data_files, "MOST_TABLES", 2)
    assert is_data(folder) and SqliteDatabase(as_sqlite(folder)).schema().tables[1].name == "b"
    monkeypatch.setattr(data_files, "MOST_TABLES", 1)
    with pytest.raises(UsageError, match="f holds 2 tables; at most 1 are read"):
        as_sqlite(folder)
    monkeypatch.setattr(data_files, "MOST_FILES", 2)
    with pytest.raises(UsageError, match="f holds more than 2 files; give a folder with tables alone"):
        is_data(folder)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"a.csv": "x\n"}, True),
        ({"a.txt": "x\n"}, False),
        ({".a.csv": "x\n", "~$b.xlsx": "x"}, False),
        ({"a.json": ' [ {"x": 1}]'}, True),
        ({"a.json": '{"x": 1}', "b.json": "[1]"}, False),
        ({"a.json": '[{"x": 1}]', "sub/": ""}, False),  # a benchmark's
        ({"a.json": '[{"x": 1}]', "b.CSV": "x\n", "sub/": ""}, True),
        ({"a.csv/": ""}, True),  # which as_sqlite refuses
        ({"a.json/": ""}, False),
    ],
)
def test_a_folder_is_data_by_the_files_in_it(names: dict[str, str], found: bool, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    for name, text in names.items():
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text(text)
    assert is_data(folder) is found


def test_a_copy_of_data_files_goes_by_their_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    copies = []
    for number, files in enumerate([{"a": "x\n1\n"}, {"a": "x\n1\n"}, {"a": "x\n2\n"}, {"b": "x\n1\n"},
                                    {"a": "x\n1\n", "b": "x\n2\n"}, {"a": "x\n2\n", "b": "x\n1\n"}]):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.csv").write_text(text)
        copies.append(as_sqlite(folder))
    assert copies[0] == copies[1] and len(set(copies)) == 5
    left = {file.suffix for file in copies[0].parent.iterdir()}
    assert left == {".sqlite"} and len(copies[0].stem) == 32


# ----------------------------------------------------------------------------------------------- samples and statements


def test_a_sample_is_three_rows_and_a_message_names_twenty_tables(tmp_path: Path, pool: QueryPool) -> None:
    tables = ";".join(f"CREATE TABLE t{n:02} (a)" for n in range(22))
    path = make_database(tmp_path / "t.sqlite", f"{tables}; INSERT INTO t00 VALUES (1), (2), (3), (4)")
    database = SqliteDatabase(path, pool=pool)
    assert database.sample("T00") == [{"a": 1}, {"a": 2}, {"a": 3}] and database.sample("t00", 0) == []
    with pytest.raises(UsageError, match=r"no table 'x' in t; its tables: t00, .*, t19$"):
        database.sample("x")


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
def test_a_statement_of_a_hundred_thousand_characters_is_the_longest(
    dialect: str, engine: Callable[[str], Database]
) -> None:
    database = engine(dialect)
    longest = "SELECT 7 -- ".ljust(100_000, "x")
    assert database.run(longest).rows == ((7,),)
    for ask in (database.run, database.explain):
        refused = ask(f"{longest}x")
        assert (refused.error_kind, refused.rows) == ("too_large", ())
        assert refused.error == "the SQL has 100001 characters; at most 100000 are allowed"


class Fails:
    """A database whose statements all end with one message."""

    def __init__(self, message: str, kind: str = "other") -> None:
        self.result = RunResult(False, error=message, error_kind=kind)

    def explain(self, sql: str) -> RunResult:
        return self.result


PLACES = Schema(
    (
        Table("city", (Column("name"), Column("names"), Column("country"))),
        Table("country", (Column("name"), Column("nam"), Column("code"))),
        Table("river", tuple(Column(f"nam{letter}") for letter in "abcdefg")),
    )
)


@pytest.mark.parametrize(
    ("message", "reason", "suggestions"),
    [
        ("x" * 130, "other:" + "x" * 120, []),
        ("no such column: city." + "y" * 130, "unknown_column:" + ("city." + "y" * 130)[:120], []),
        ("no such table: citty", "unknown_table:citty", ["city"]),
        ("no such view: rivers", "unknown_table:rivers", ["river"]),
        ("no such function: coun", "unknown_function:coun", ["count", "round"]),
        ("near \"x\": syntax error", 'syntax:near "x"', []),
        ("ambiguous column name: name", "ambiguous_column:name", []),
        ("sub-select returns 2 columns - expected 1", "column_count:subquery", []),
        ("cannot join using column nam - column not present in both tables", "unknown_column:nam", None),
    ],
)  # fmt: skip
def test_a_message_of_sqlite_is_a_reason_with_names_to_use(
    message: str, reason: str, suggestions: list[str] | None
) -> None:
    database: Any = Fails(message)
    found = validate_sql("SELECT count(*) FROM city", PLACES, database)
    assert (found["valid"], found["reason"]) == (False, reason)
    assert suggestions is None or found["suggestions"] == suggestions


def test_names_in_reach_come_first_and_five_are_suggested() -> None:
    found = validate_sql("SELECT c.nam FROM city c", PLACES)["suggestions"]
    assert found[:3] == ["country.nam", "city.name", "city.names"] and len(found) == 5
    assert found[3].startswith("river.nam") and found[4].startswith("river.nam")
    found = validate_sql("SELECT name FROM city JOIN country ON 1", PLACES)
    assert found["reason"] == "ambiguous_column:name" and found["suggestions"][:2] == ["city.name", "country.name"]
    unanswered: Any = Fails("", "timeout")
    assert validate_sql("SELECT name FROM city", PLACES, unanswered)["valid"]
    assert validate_sql("SELECT nme(name) FROM city", PLACES, unanswered)["reason"] == "unknown_function:nme"


# ----------------------------------------------------------------------------------------------------------- the rest


class Lost:
    """A pool whose first worker is lost at the second file."""

    requests: list[dict[str, Any]]

    def __init__(self) -> None:
        self.requests = []

    def readable(self, path: str) -> tuple[str, str]:
        return path, "v"

    def converse(self, request: dict[str, Any], silence: Any, stop: Any = None) -> Iterator[list[Any]]:
        self.requests.append(request)
        if len(self.requests) == 1:
            yield ["parts", [1, 0, {}]]
            error = TimeoutError()
            error.place = (3, 1)  # type: ignore[attr-defined]
            raise error
        yield ["end", 0]


def test_what_has_failed_is_told_by_its_place_among_the_files_that_are_left() -> None:
    pool: Any = Lost()
    run_pairs(pool, list("abcd"), ["x" * 100_001, "y"], [(0, 1, 0)], timeout_s=1.0, max_rows=9)
    places = [[(file, index) for file, index, *_ in request["failed"]] for request in pool.requests]
    assert places == [[(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 0), (1, 0), (2, 0), (2, 1)]]
    assert [len(request["files"]) for request in pool.requests] == [4, 3]


def test_the_packaged_data_is_here() -> None:
    root = packaged.data_root()
    assert (root / "questions.json").is_file() and len(packaged.database_ids()) > 5
    assert list(packaged.database_ids()) == sorted(packaged.database_ids())
    with closing(sqlite3.connect(packaged.database_path(packaged.database_ids()[0]))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
