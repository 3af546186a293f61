"""The sandbox holds: nothing is written, nothing hangs, nothing crashes the caller, and errors say what was wrong."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import resource
import sqlite3
from pathlib import Path

import pytest
from people import every_result, make_database

from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase, default_pool
from nl2sql.databases.sqlite.files import fingerprint_sqlite
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Database

FIXTURES = Path(__file__).parents[1] / "fixtures"


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() if f.is_file() else "dir"
        for f in sorted(folder.rglob("*"))
    }


def fixture_rows(name: str) -> list[list[str]]:
    lines = (FIXTURES / name).read_text(encoding="utf-8").split("\n")
    return [line.split("\t", 2) for line in lines if line and not line.startswith("#")]


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(("kind", "word", "sql"), fixture_rows("hostile_errors.tsv"))
def test_error_has_its_kind_and_names_the_culprit(
    kind: str, word: str, sql: str, people: Path, pool: QueryPool
) -> None:
    for result in (pool.run(people, sql), pool.explain(people, sql)):
        if not (result.success and word in ("overflow", "JSON")):  # found only by executing
            assert (result.error_kind, result.rows) == (kind, ())
            assert word in (result.error or "")


# ----------------------------------------------------------------------------------------------- rows and values


def test_values_round_trip(tmp_path: Path, pool: QueryPool) -> None:
    path = tmp_path / "values.sqlite"
    values = [
        0,
        -1,
        2**63 - 1,
        -(2**63),
        0.1,
        -0.0,
        1e308,
        5e-324,
        math.inf,
        -math.inf,
        "",
        "a\0b",
        "🎉\u2028'\"\\",
        None,
    ]
    values += [b"", bytes(range(256)), b'{"b": "00"}', '{"b": "00"}']
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE v (i INTEGER PRIMARY KEY, x)")
        connection.executemany("INSERT INTO v(x) VALUES (?)", [(v,) for v in values])
        connection.commit()
    result = pool.run(path, "SELECT x FROM v ORDER BY i")
    assert [repr(row[0]) for row in result.rows] == [repr(value) for value in values]


def test_bytes_that_are_no_utf_8_are_written_out(tmp_path: Path, pool: QueryPool) -> None:
    path = make_database(
        tmp_path / "latin.sqlite", "CREATE TABLE t (x TEXT); INSERT INTO t VALUES ('ok'), (CAST(x'63e9' AS TEXT));"
    )
    assert pool.run(path, "SELECT x FROM t").rows == (("ok",), ("c\\xe9",))


def test_a_result_past_max_rows_is_cut_and_says_so(people: Path, pool: QueryPool) -> None:
    cut = pool.run(people, "SELECT i FROM numbers ORDER BY i", max_rows=5)
    assert (cut.success, cut.truncated, cut.rows) == (True, True, tuple((i,) for i in range(1, 6)))
    whole = pool.run(people, "SELECT i FROM numbers", max_rows=2000)
    assert (whole.truncated, len(whole.rows)) == (False, 2000)
    none = pool.run(people, "SELECT i FROM numbers", max_rows=0)
    assert (none.success, none.truncated, none.rows) == (True, True, ())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT hex(zeroblob(6000000)) || '🎉' || hex(zeroblob(6000000))",  # 24 M characters, four bytes each
        "SELECT i, 'é', '🎉', hex(zeroblob(20000)) FROM numbers",
        "SELECT 0.5 + i" + ", 0.5 + i" * 1900 + " FROM numbers, (VALUES (1), (2))",  # little text, many objects
        "SELECT replace(hex(zeroblob(6000000)), '0', char(1))",  # six characters of JSON each
    ],
)
def test_a_result_is_bounded_by_what_its_reader_has_to_hold(sql: str, people: Path, pool: QueryPool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert pool.run(people, sql).error_kind == "too_large"
    assert every_result(pool, people, [sql])[0].error_kind == "too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_columns_keep_duplicates_and_exist_without_rows(people: Path, pool: QueryPool) -> None:
    result = pool.run(people, "SELECT a.id, b.id AS id FROM people a, people b WHERE 0")
    assert (result.success, result.columns, result.rows) == (True, ("id", "id"), ())


def test_explain_shows_the_plan_without_running(people: Path, pool: QueryPool) -> None:
    result = pool.explain(people, "; SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d; -- slow")
    assert result.success
    assert result.columns[-1] == "detail"
    assert any("SCAN" in row[-1] for row in result.rows)


def test_full_text_and_rtree_tables_can_be_searched(tmp_path: Path, pool: QueryPool) -> None:
    script = """
    CREATE VIRTUAL TABLE five USING fts5(body); INSERT INTO five VALUES ('hello world'), ('bye');
    CREATE VIRTUAL TABLE four USING fts4(body); INSERT INTO four VALUES ('hello world'), ('bye');
    CREATE VIRTUAL TABLE box USING rtree(id, x0, x1); INSERT INTO box VALUES (1, 0, 5);
    """
    path = make_database(tmp_path / "virtual.sqlite", script)
    before = snapshot(tmp_path)
    for sql, rows in (
        ("SELECT body FROM five WHERE five MATCH 'hello'", (("hello world",),)),
        (
            "SELECT snippet(five, 0, '<', '>', '', 9) FROM five WHERE five MATCH 'wor*' ORDER BY bm25(five)",
            (("hello <world>",),),
        ),
        ("SELECT body FROM four WHERE body MATCH 'hello'", (("hello world",),)),
        ("SELECT id FROM box WHERE x0 < 1 AND x1 > 2", ((1,),)),
    ):
        result = pool.run(path, sql)
        assert result.rows == rows, result
    assert pool.run(path, "INSERT INTO five(five) VALUES ('optimize')").error_kind == "denied"
    assert snapshot(tmp_path) == before


# ------------------------------------------------------------------------------------------------ files on disk


def test_a_replaced_file_is_reopened(tmp_path: Path, pool: QueryPool) -> None:
    path = make_database(tmp_path / "a.sqlite", "CREATE TABLE t (x); INSERT INTO t VALUES (1);")
    assert pool.run(path, "SELECT x FROM t").rows == ((1,),)
    make_database(tmp_path / "b.sqlite", "CREATE TABLE t (x); INSERT INTO t VALUES (2);").replace(path)
    assert pool.run(path, "SELECT x FROM t").rows == ((2,),)
    make_database(path, "UPDATE t SET x = 3")
    assert pool.run(path, "SELECT x FROM t").rows == ((3,),)


@pytest.mark.parametrize("leftover", ["checkpointed", "with_wal", "written_now"])
@pytest.mark.parametrize("read_only_folder", [False, True])
def test_wal_databases_are_read_without_leaving_files(
    leftover: str, read_only_folder: bool, tmp_path: Path, pool: QueryPool
) -> None:
    source, folder = tmp_path / "source", tmp_path / "data"
    path = make_database(source / "w.sqlite", "PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1);")
    writer = sqlite3.connect(path)
    if leftover != "checkpointed":
        writer.execute("INSERT INTO t VALUES (2)")
        writer.commit()
    folder.mkdir()
    for suffix in {"checkpointed": [""], "with_wal": ["", "-wal"], "written_now": ["", "-wal", "-shm"]}[leftover]:
        (folder / f"w.sqlite{suffix}").write_bytes((source / f"w.sqlite{suffix}").read_bytes())
    writer.close()
    if read_only_folder:
        folder.chmod(0o555)
    before = {name: digest for name, digest in snapshot(folder).items() if not name.endswith("-shm")}
    expected = ((1,),) if leftover == "checkpointed" else ((1,), (2,))
    with SqliteDatabase(folder / "w.sqlite", pool=pool) as database:
        assert database.run("SELECT x FROM t").rows == expected
        assert len(database.fingerprint) == 64
        assert database.run("SELECT x FROM t").rows == expected
    after = {name: digest for name, digest in snapshot(folder).items() if not name.endswith("-shm")}
    folder.chmod(0o755)
    assert after == before
    assert (folder / "w.sqlite-shm").exists() == (leftover == "written_now")


def test_a_wal_database_shows_what_was_written_since(tmp_path: Path, pool: QueryPool) -> None:
    path = make_database(
        tmp_path / "w.sqlite", "PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1);"
    )
    assert pool.run(path, "SELECT count(*) FROM t").rows == ((1,),)
    writer = sqlite3.connect(path)
    for total in (2, 3):
        writer.execute("INSERT INTO t VALUES (9)")
        writer.commit()
        assert pool.run(path, "SELECT count(*) FROM t").rows == ((total,),)
    writer.close()
    assert pool.run(path, "SELECT count(*) FROM t").rows == ((3,),)


def test_strange_file_names_are_opened(tmp_path: Path, pool: QueryPool) -> None:
    for name in ("with space.sqlite", "a?mode=rwc#x&y.sqlite", "100%25.sqlite", "ünï.sqlite", "quote'\".sqlite"):
        path = make_database(tmp_path / name, "CREATE TABLE t (x); INSERT INTO t VALUES (1);")
        assert pool.run(path, "SELECT x FROM t").rows == ((1,),)


def test_a_symbolic_link_is_followed(people: Path, tmp_path: Path, pool: QueryPool) -> None:
    (tmp_path / "link.sqlite").symlink_to(people)
    assert SqliteDatabase(tmp_path / "link.sqlite", pool=pool).run("SELECT count(*) FROM people").rows == ((3,),)


def test_running_on_a_missing_or_broken_file_is_a_failure_not_an_exception(tmp_path: Path, pool: QueryPool) -> None:
    (tmp_path / "text.sqlite").write_text("hello, I am no database " * 100)
    for name in ("absent.sqlite", "text.sqlite", "."):
        result = pool.run(tmp_path / name, "SELECT 1 FROM sqlite_master")
        assert (result.success, result.error_kind) == (False, "other")
        assert result.error
    assert not (tmp_path / "absent.sqlite").exists()


# ------------------------------------------------------------------------------------------------ SqliteDatabase


def test_sqlite_database_is_a_database(people: Path, pool: QueryPool) -> None:
    with SqliteDatabase(people, pool=pool) as database:
        assert isinstance(database, Database)
        assert (database.name, database.dialect, database.path) == ("people", "sqlite", people)
        assert database.schema().table("PEOPLE")
        assert database.explain("SELECT 1").success
    assert SqliteDatabase(people, name="x").name == "x"
    assert SqliteDatabase(people).pool is default_pool()


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("people", [{"id": 1, "name": "Ann", "age": 31, "note": b"\x00\xff"}]),
        ("ADULTS", [{"id": 1, "name": "Ann", "age": 31, "note": b"\x00\xff"}]),
        ("order", [{"my column": "a", "select": 1}]),
        ('it\'s "odd";--', [{"x": 7}]),
        ("pets", []),
    ],
)
def test_sample_quotes_any_name(table: str, rows: list[dict], people: Path, pool: QueryPool) -> None:
    assert SqliteDatabase(people, pool=pool).sample(table, 1) == rows
    assert SqliteDatabase(people, pool=pool).sample(table, 0) == []


def test_sample_of_an_unknown_table_lists_the_tables(people: Path, pool: QueryPool) -> None:
    database = SqliteDatabase(people, pool=pool)
    with pytest.raises(UsageError, match=r"no table 'persons' in people; its tables: people, pets"):
        database.sample("persons")
    with pytest.raises(UsageError, match="-1"):
        database.sample("people", -1)


def test_an_unusable_path_gives_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.sqlite").write_text("hello, I am no database " * 100)
    (tmp_path / "short.sqlite").write_text("x")
    (tmp_path / "zero.sqlite").touch()
    make_database(tmp_path / "bare.sqlite", "PRAGMA user_version = 1")
    broken = make_database(tmp_path / "broken.sqlite")
    broken.write_bytes(broken.read_bytes()[:100] + b"\xff" * 5000)
    for name, error, words in (
        ("absent.sqlite", UsageError, "does not exist"),
        (".", UsageError, "is a directory"),
        ("x" * 5000, DatabaseError, "too long"),
        ("text.sqlite", DatabaseError, "not a SQLite database"),
        ("short.sqlite", DatabaseError, "not a SQLite database"),
        ("zero.sqlite", DatabaseError, "no tables"),
        ("bare.sqlite", DatabaseError, "no tables"),
        ("broken.sqlite", DatabaseError, "cannot be read"),
    ):
        with pytest.raises(error, match=words) as caught:
            SqliteDatabase(tmp_path / name)
        assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------------------- fingerprints


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_fingerprint_ignores_bytes_and_row_order_and_sees_content(tmp_path: Path, own_cache: Path) -> None:
    rows = "INSERT INTO t VALUES (1, 'a'), (2, NULL), (2, NULL);"
    base = "CREATE TABLE t (x INTEGER, y TEXT);"
    variants = {
        "same_a": base + rows,
        "same_b": base + "INSERT INTO t VALUES (2, NULL), (1, 'a'), (9, 'gone'), (2, NULL); DELETE FROM t WHERE x = 9;",
        "same_c": "PRAGMA page_size=512;" + base + rows + "VACUUM; CREATE INDEX i ON t(x);",
        "same_d": "PRAGMA journal_mode=WAL;" + base + rows,
        "fewer": base + "INSERT INTO t VALUES (1, 'a'), (2, NULL);",
        "typed": base.replace("x INTEGER", "x TEXT") + rows,
        "value": base + "INSERT INTO t VALUES (1, 'b'), (2, NULL), (2, NULL);",
        "blob": base + "INSERT INTO t VALUES (1, x'61'), (2, NULL), (2, NULL);",
        "nocase": base.replace("TEXT", "TEXT COLLATE NOCASE") + rows,
        "named": base.replace("y TEXT", "z TEXT") + rows,
        "view": base + rows + "CREATE VIEW v AS SELECT 1 AS one;",
        "bytes": base + "INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT)), (2, NULL), (2, NULL);",
    }
    hashes = {
        name: fingerprint_sqlite(make_database(tmp_path / f"{name}.sqlite", sql)) for name, sql in variants.items()
    }
    assert len({hashes[name] for name in hashes if name.startswith("same")}) == 1
    assert len(set(hashes.values())) == len(variants) - 3


def test_fingerprint_is_cached_until_the_file_changes(tmp_path: Path, own_cache: Path) -> None:
    path = make_database(tmp_path / "a.sqlite", "CREATE TABLE t (x); INSERT INTO t VALUES (1);")
    first = fingerprint_sqlite(path)
    assert not list((own_cache / "fingerprints").iterdir()), "a file this fresh may change within one clock tick"
    os.utime(path, (1, 1))
    assert fingerprint_sqlite(path) == first
    (entry,) = (own_cache / "fingerprints").iterdir()
    entry.write_text("f" * 64)
    assert fingerprint_sqlite(path) == "f" * 64
    entry.write_text("torn")
    assert fingerprint_sqlite(path) == first
    make_database(path, "UPDATE t SET x = 2")
    assert fingerprint_sqlite(path) != first


def test_fingerprint_of_a_wrong_path_is_a_usage_error(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        fingerprint_sqlite(tmp_path / "absent.sqlite")
    (tmp_path / "text.sqlite").write_text("hello " * 100)
    with pytest.raises(DatabaseError, match="not a SQLite database"):
        fingerprint_sqlite(tmp_path / "text.sqlite")
