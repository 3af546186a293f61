"""What an engine's process makes of values and errors, and how a packaged database is built: what is right."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nl2sql.databases import packaged
from nl2sql.databases.engines import child
from nl2sql.databases.engines.adapters import Refused, described
from nl2sql.databases.engines.child import error_reply, execute_request, plain
from nl2sql.databases.engines.database import (
    EngineDatabase,
    _hidden,
    _kind,
    _next_step,
    _table,
    engine_error_kind,
    without_excerpt,
)
from nl2sql.databases.schema import Column, ForeignKey, Table
from nl2sql.errors import BenchmarkError, UsageError

DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
PLAIN = [
    (None, None), (7, 7), (True, 1), (False, 0), ("x", "x"), (1.5, 1.5),
    (float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf"),
    (Decimal("3"), 3), (Decimal("3.0"), 3.0), (Decimal("3.25"), 3.25), (Decimal("1E+2"), 100.0),
    (Decimal("NaN"), "nan"), (Decimal("-Infinity"), "-inf"), (b"\x01\xff", {"b": "01ff"}),
    (bytearray(b"\x02"), {"b": "02"}), (memoryview(b"\x03"), {"b": "03"}),
    (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
    (datetime.date(2024, 1, 2), "2024-01-02"), (datetime.time(9, 30), "09:30:00"),
    (HOUR, "01:00:00"), (-HOUR, "-01:00:00"), (0 * DAY, "00:00:00"), (DAY, "1 day"), (32 * DAY, "32 days"),
    (-DAY, "-1 day"), (DAY + 2 * HOUR, "1 day 02:00:00"), (-2 * DAY - HOUR, "-2 days -01:00:00"),
    (datetime.timedelta(milliseconds=4500), "00:00:04.500000"),
    ([1, None, True, "é"], '[1, null, true, "é"]'), ((1, (2,)), "[1, [2]]"),
    ({"a": b"\x01", 2: [Decimal("1.5")]}, '{"a": "01", "2": [1.5]}'), ({"t": DAY}, '{"t": "1 day"}'),
    (complex(1, 2), "(1+2j)"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "held"), PLAIN, ids=[repr(held) for _, held in PLAIN])
def test_a_value_becomes_what_sqlite_would_hold(value: Any, held: Any) -> None:
    assert (plain(value), type(plain(value))) == (held, type(held))


class Lists:
    """An engine whose statements are the names of lists."""

    def __init__(self, **lists: list[tuple[Any, ...]]) -> None:
        self.lists, self.asked = lists, []  # type: ignore[var-annotated]

    def query(self, sql: str, timeout_s: float, explain: bool) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        self.asked.append((sql, timeout_s, explain))
        return ["a", "b"], iter(self.lists[sql])

    def tables(self) -> list[dict[str, Any]]:
        return [{"name": "t"}]


def test_a_request_is_answered_with_so_many_rows() -> None:
    engine = Lists(few=[(1, True), (None, DAY)])
    assert execute_request(engine, ["tables"]) == ["ok", [{"name": "t"}]]
    assert execute_request(engine, ["run", "few", 2.5, 2]) == ["ok", ["a", "b"], [[1, 1], [None, "1 day"]], False]
    assert execute_request(engine, ["explain", "few", 2.5, 1]) == ["ok", ["a", "b"], [[1, 1]], True]
    assert execute_request(engine, ["run", "few", 2.5, 0]) == ["ok", ["a", "b"], [], True]
    assert engine.asked[:2] == [("few", 2.5, False), ("few", 2.5, True)]


def test_a_result_is_too_large_by_its_texts_and_sixteen_bytes_for_any_other_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Lists(texts=[("x" * 30, 5), ("x" * 34, 5)])
    monkeypatch.setattr(child, "RESULT_BYTES", 96)
    assert execute_request(engine, ["run", "texts", 1, 9])[0] == "ok"
    monkeypatch.setattr(child, "RESULT_BYTES", 95)
    with pytest.raises(Refused, match="the result is larger than 0 MB") as refused:
        execute_request(engine, ["run", "texts", 1, 9])
    assert refused.value.kind == "too_large"


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (Refused("denied", "no"), ["error", "denied", "no"]),
        (ValueError("what?"), ["error", "ValueError", "what?"]),
        (ModuleNotFoundError("no duckdb"), ["error", "missing", "no duckdb"]),
        (RuntimeError(1064, "syntax"), ["error", "RuntimeError", "(1064) syntax"]),
        (RuntimeError("a", "b"), ["error", "RuntimeError", "('a', 'b')"]),
        (RuntimeError(1, 2, 3), ["error", "RuntimeError", "(1, 2, 3)"]),
        (ValueError("x" * 5000), ["error", "ValueError", "x" * 4000]),
    ],
)
def test_an_error_is_told_in_the_engine_s_own_words(error: BaseException, reply: list[str]) -> None:
    assert error_reply(error) == reply


MESSAGES = {
    "canceling statement due to statement timeout": "timeout",
    "Code: 159. DB::Exception: TIMEOUT_EXCEEDED": "timeout",
    'Binder Error: Ambiguous reference to column name "a"': "ambiguous_column",
    'column reference "a" is ambiguous': "ambiguous_column",
    "Catalog Error: Table with name order does not exist!": "unknown_table",
    'relation "t" does not exist': "unknown_table",
    "(1146) Table 'x.t' doesn't exist": "unknown_table",
    'Binder Error: Referenced column "read_only" not found': "unknown_column",
    "(1054) Unknown column 'a' in 'SELECT'": "unknown_column",
    'missing FROM-clause entry for table "t"': "unknown_column",
    'syntax error at or near "FRM"': "syntax",
    "Parser Error: syntax": "syntax",
    "cannot insert multiple commands into a prepared statement": "multi_statement",
    "cannot execute DELETE in a read-only transaction": "denied",
    "permission denied for table t": "denied",
    "aggregate functions are not allowed in WHERE": "other",
    "Out of Memory Error: failed": "memory",
    "division by zero\nLINE 1: syntax error": "other",
}
HOST = "postgres://me:secret@db.example:6543/shop"


@pytest.mark.parametrize(("message", "kind"), MESSAGES.items())
def test_a_message_of_an_engine_has_its_kind(message: str, kind: str) -> None:
    assert engine_error_kind(message) == kind


def test_a_message_of_an_engine_is_told_without_excerpt_and_secret() -> None:
    assert without_excerpt("Binder Error: no\n\nLINE 1: SELECT x\n        ^") == "Binder Error: no"
    some = "no match\nCandidate functions:\n" + "".join(f"\tf({n})\n" for n in range(8))
    assert without_excerpt(some).splitlines()[-2:] == ["\tf(4)", "\t... and 3 more"]
    assert without_excerpt(some.replace("\tf(5)\n\tf(6)\n\tf(7)\n", "")).splitlines()[-1] == "\tf(4)"
    assert _hidden(f'cannot reach "{HOST}" as "secret" or secret', "postgres", HOST) == (
        'cannot reach "***" as "***" or secret'
    )
    assert _hidden('"t.duckdb" is locked', "duckdb", "t.duckdb") == '"t.duckdb" is locked'


@pytest.mark.parametrize(
    ("dialect", "target", "error", "step"),
    [
        ("postgres", HOST, "OperationalError", "; does it answer? pg_isready -h db.example -p 6543"),
        ("postgres", "postgres:///shop", "OperationalError", "; does it answer? pg_isready -h 127.0.0.1 -p 5432"),
        ("mysql", "mysql://h/x", "OperationalError", "; does it answer? mariadb-admin -h h -P 3306 ping"),
        ("postgres", "postgres://a:1,b:2/shop", "OperationalError", ""),
        ("postgres", HOST, "denied", ""),
        ("duckdb", "t.duckdb", "OperationalError", ""),
    ],
)
def test_what_to_type_where_a_server_does_not_answer(dialect: str, target: str, error: str, step: str) -> None:
    assert _next_step(dialect, target, error) == step


def test_a_description_becomes_a_table() -> None:
    rows = [["t", "id", "integer", True], ["t", "mood", "enum('Sad','ok')", False], ["v", "n", "bigint", False]]
    keys = [["t", ["mood"], "v", ["n"]]]
    first, second = (_table(entry, "duckdb") for entry in described(rows, {"t": ["id"]}, keys, {"v"}))
    columns = (Column("id", "INTEGER", True, True), Column("mood", "ENUM('Sad','ok')"))
    assert first == Table("t", columns, (ForeignKey(("mood",), "v", ("n",)),))
    assert second == Table("v", (Column("n", "BIGINT"),), is_view=True)
    assert _kind("Nullable(String)", "clickhouse") == "Nullable(String)" and _kind('a "b" c', "duckdb") == 'A "b" C'
    with pytest.raises(UsageError, match="no engine for 'oracle'; known: clickhouse, duckdb, postgres, mysql"):
        EngineDatabase("oracle", "x")


SCHEMA = """CREATE TABLE p (id INTEGER PRIMARY KEY, name TEXT, "zip code" TEXT);
CREATE TABLE c (p INTEGER REFERENCES p, n REAL);"""
FILES = {"schema.sql": SCHEMA, "p.csv": 'id,name,zip code\n1,"A, B",01\n2,\\N,\n', "c.csv": "p,n\n1,2\n\\N,0.5\n"}


def folder(path: Path, **changes: str | None) -> Path:
    made = path / "shop"
    made.mkdir()
    for name, text in (FILES | {name.replace("_", "."): text for name, text in changes.items()}).items():
        if text is not None:
            (made / name).write_bytes(text.encode())
    return made


def test_a_packaged_database_is_built_from_its_schema_and_tables(tmp_path: Path) -> None:
    packaged.build_database(folder(tmp_path), tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        assert connection.execute("SELECT * FROM p").fetchall() == [(1, "A, B", "01"), (2, None, "")]
        assert connection.execute("SELECT * FROM c").fetchall() == [(1, 2.0), (None, 0.5)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"c_csv": None}, r"shop cannot be built: .*c\.csv"),
        ({"c_csv": "n,p\n"}, r"c\.csv has the columns \['n', 'p'\], the schema \['p', 'n'\]"),
        ({"c_csv": ""}, r"c\.csv has the columns \[\]"),
        ({"c_csv": "p,n\n1\n"}, "cannot be built: "),
        ({"c_csv": "p,n\n7,1\n8,1\n"}, "shop is broken: 2 foreign keys, check: ok"),
        ({"schema_sql": "CREATE TABLE ("}, "cannot be built: .*syntax error"),
    ],
)
def test_files_that_make_no_sound_database_are_told(changes: dict[str, str | None], said: str, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=said):
        packaged.build_database(folder(tmp_path, **changes), tmp_path / "shop.sqlite")


def test_a_packaged_database_is_built_once_and_goes_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    (root / "databases").mkdir(parents=True)
    made = folder(root / "databases")
    monkeypatch.setattr(packaged, "data_root", lambda: root)
    assert packaged.database_ids() == ("shop",)
    first = packaged.database_path("shop")
    stamp = first.stat().st_mtime_ns
    assert packaged.database_path("shop") == first and first.stat().st_mtime_ns == stamp and first.name == "shop.sqlite"
    (made / "c.csv").write_bytes(FILES["c.csv"].replace("\n", "\r\n").encode())
    assert packaged.database_path("shop") == first, "line ends are no content"
    (made / "c.csv").write_text("p,n\n1,3\n")
    assert packaged.database_path("shop") != first
    assert [file.name for file in first.parent.parent.rglob("*") if file.is_file()] == ["shop.sqlite"] * 2
    with pytest.raises(UsageError, match="no packaged database 'shops'; there are: shop"):
        packaged.database_path("shops")
