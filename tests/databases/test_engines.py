"""Databases of other engines than SQLite behind the Database interface: what they say, and that they come back."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import servers

from nl2sql.databases.engines import open_database
from nl2sql.databases.engines.database import EngineDatabase, engine_error_kind, without_excerpt
from nl2sql.databases.schema import column_samples
from nl2sql.errors import DatabaseError, Nl2SqlError, UsageError
from nl2sql.interfaces import Database

OTHERS = ("clickhouse", "duckdb", "postgres", "mysql")
COLUMNS = {
    "customers": ["customer_id", "name", "city", "joined"],
    "orders": ["order_id", "customer_id", "ordered", "status", "total"],
    "balances": ["account_id", "day", "balance"],
}


@pytest.mark.parametrize("dialect", OTHERS)
def test_schema_rows_and_fingerprint_are_read(dialect: str, engine: Callable[[str], Database]) -> None:
    database = engine(dialect)
    assert isinstance(database, Database)
    schema = database.schema()
    assert {table.name: [column.name for column in table.columns] for table in schema.tables} == COLUMNS
    assert schema.dialect == dialect
    if dialect != "clickhouse":  # which has neither unique nor foreign keys
        orders = schema.table("orders")
        assert orders is not None
        assert [key.ref_table for key in orders.foreign_keys] == ["customers"]
        assert [column.name for column in orders.columns if column.primary_key] == ["order_id"]
    found = database.run("SELECT order_id, ordered, status, total FROM orders WHERE order_id = 11")
    assert found.rows == ((11, "2024-03-04", "open", 5.5),) and found.columns[0] == "order_id"
    assert database.sample("ORDERS", 2)[0]["status"] == "shipped"
    assert database.fingerprint == database.fingerprint and len(database.fingerprint) == 64
    with pytest.raises(UsageError, match="its tables: "):
        database.sample("nowhere")


@pytest.mark.parametrize("dialect", OTHERS)
def test_results_are_bounded_and_say_so(dialect: str, engine: Callable[[str], Database]) -> None:
    cut = engine(dialect).run("SELECT name FROM customers", max_rows=1)
    assert (len(cut.rows), cut.truncated, cut.success) == (1, True, True)
    whole = engine(dialect).run("SELECT name FROM customers", max_rows=2)
    assert (len(whole.rows), whole.truncated) == (2, False)
    assert engine(dialect).run("x" * 200_000).error_kind == "too_large"
    with pytest.raises(UsageError, match="timeout_s"):
        engine(dialect).run("SELECT 1", timeout_s=0)


@pytest.mark.parametrize("dialect", OTHERS)
def test_a_killed_statement_costs_only_itself(dialect: str, engine: Callable[[str], Database]) -> None:
    database = engine(dialect)
    assert isinstance(database, EngineDatabase)
    assert database.run("SELECT 1").success
    process = database._worker.process  # type: ignore[union-attr]
    process.kill()
    process.wait()
    assert database.run("SELECT COUNT(*) FROM orders").rows == ((3,),)
    database.close()
    assert database.run("SELECT COUNT(*) FROM orders").rows == ((3,),)


def test_threads_share_a_database(engine: Callable[[str], Database]) -> None:
    database, found = engine("duckdb"), []

    def ask(number: int) -> None:
        found.append(database.run(f"SELECT {number}").rows[0][0])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(20))


VALUES = [
    ("duckdb", "SELECT TRUE, NULL, 1.50::DECIMAL(5, 2), 'ü', DATE '2024-01-02', [1, 2], '\\xAB'::BLOB, 'nan'::DOUBLE",
     (1, None, 1.5, "ü", "2024-01-02", "[1, 2]", b"\xab", "nan")),
    ("postgres",
     "SELECT TRUE, NULL, 1.50::numeric, 'ü', DATE '2024-01-02', TIMESTAMP '2024-01-02 03:04:05', '\\xab'::bytea",
     (1, None, 1.5, "ü", "2024-01-02", "2024-01-02 03:04:05", b"\xab")),
    ("mysql", "SELECT TRUE, NULL, CAST(1.5 AS DECIMAL(5, 2)), 'ü', DATE '2024-01-02', x'AB'",
     (1, None, 1.5, "ü", "2024-01-02", b"\xab")),
    ("clickhouse", "SELECT true, NULL, toDecimal32(1.5, 2), 'ü', toDate('2024-01-02'), [1, 2]",
     (1, None, 1.5, "ü", "2024-01-02", "[1, 2]")),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "sql", "wanted"), VALUES)
def test_values_come_as_sqlite_would_hold_them(
    dialect: str, sql: str, wanted: tuple, engine: Callable[[str], Database]
) -> None:
    found = engine(dialect).run(sql)
    assert found.rows == (wanted,), found.error


@pytest.mark.parametrize("dialect", OTHERS)
def test_a_text_may_hold_whatever_ends_a_line_somewhere(dialect: str, engine: Callable[[str], Database]) -> None:
    text = "a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\nh\ri"
    found = engine(dialect).run(f"SELECT '{text}', name FROM customers ORDER BY name LIMIT 1")
    assert [row[0] for row in found.rows] == [text], found.error


@pytest.mark.parametrize("dialect", OTHERS)
def test_columns_have_samples_on_any_engine(dialect: str, engine: Callable[[str], Database]) -> None:
    database = engine(dialect)
    samples = column_samples(database, database.schema(), 2)
    assert set(samples["orders"]) == set(COLUMNS["orders"])
    assert all(len(values) == 2 for values in samples["orders"].values())
    assert "Ada Moss" in samples["customers"]["name"]


KINDS = [
    ("SELECT nam FROM customers", "unknown_column"),
    ("SELECT read_only FROM customers", "unknown_column"),
    ("SELECT name FROM nowhere", "unknown_table"),
    ("SELECT name FROM customers WHERE count(*) > 1", "other"),
    ("SELECT name FROM customers WHERE", "syntax"),
    ("DELETE FROM customers", "denied"),
    ("", "empty"),
]


@pytest.mark.parametrize("dialect", OTHERS)
def test_errors_have_sqlites_kinds(dialect: str, engine: Callable[[str], Database]) -> None:
    for sql, kind in KINDS:
        found = engine(dialect).run(sql)
        assert (found.success, found.error_kind) == (False, kind), (sql, found.error)


def test_an_excerpt_of_the_statement_is_no_part_of_a_message() -> None:
    message = 'column "nam" does not exist\nLINE 1: SELECT nam, "read-only"\n               ^\nHINT:  Perhaps name.'
    assert without_excerpt(message) == 'column "nam" does not exist\nHINT:  Perhaps name.'
    assert engine_error_kind(message) == "unknown_column"


def test_of_many_candidate_functions_a_few_are_named() -> None:
    many = "".join(f"\tabs(T{n}) -> T{n}\n" for n in range(50))
    message = f"Binder Error: Could not choose a best candidate function\nCandidate functions:\n{many}"
    cut = without_excerpt(f"{message}\n\nLINE 1: SELECT abs('x')\n               ^")
    assert cut.splitlines()[-2:] == ["\tabs(T4) -> T4", "\t... and 45 more"]
    few = "Candidate functions:\n\tabs(A) -> A\n\tabs(B) -> B"
    assert without_excerpt(few) == few


def test_a_user_who_could_reach_the_servers_files_is_refused() -> None:
    with servers.postgres("CREATE TABLE t (a integer)") as url:
        if url is None:
            pytest.skip("no PostgreSQL server: apt-get install postgresql")
        with pytest.raises(DatabaseError, match="can reach the server's files; connect as a user"):
            open_database(url.replace(servers.READER, "postgres"))
    with servers.mysql("CREATE TABLE t (a INT)") as url:
        if url is None:
            pytest.skip("no MariaDB server: apt-get install mariadb-server")
        with pytest.raises(DatabaseError, match="rights on all databases"):
            open_database(url.replace(servers.READER, "root"))


BAD_SPECS = [
    ("nowhere.sqlite", "nowhere.sqlite"),
    ("duckdb:nowhere.duckdb", "duckdb database nowhere.duckdb does not exist"),
    ("clickhouse:nowhere", "clickhouse database nowhere does not exist"),
    ("postgresql://reader@127.0.0.1:1", "names no database"),
    ("oracle://x/y", "known forms"),
    ("packaged:nowhere", "no packaged database"),
]


@pytest.mark.parametrize(("spec", "wanted"), BAD_SPECS)
def test_a_wrong_spec_is_a_usage_error(spec: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        open_database(spec)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:hun/ter2@127.0.0.1/shop",
        "postgresql://u:hun@ter2@127.0.0.1:1/shop",
        "postgresql://u:12/ter2@127.0.0.1/shop",
        "postgresql://u:ter2%zz@127.0.0.1:1/shop",
        "mysql://u:hun/ter2@127.0.0.1/db",
        "mysql://u:12#ter2@127.0.0.1/db",
        "mysql://u:hun#ter2@[127.0.0.1/db",
        "duckdb://u:hunter2@box/shop",
        "clickhouse://u:hunter2@box:9000/shop",
        "clickhouse:u:hunter2@box",
        "duckdb://box/shop?password=hunter2",
    ],
)
def test_no_error_shows_a_password_with_signs_of_an_address(address: str) -> None:
    with pytest.raises(Nl2SqlError) as caught:
        open_database(address)
    assert not any(part in str(caught.value) for part in ("hun", "ter2"))


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with sqlite3.connect(tmp_path / "t.sqlite") as connection:
        connection.execute("CREATE TABLE t (a)")
    assert open_database("~/t.sqlite").run("SELECT count(*) FROM t").rows == ((0,),)
    with pytest.raises(UsageError, match="does not exist"):
        open_database("~no such user/t.sqlite")


def test_what_cannot_be_opened_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "x.duckdb").write_text("no database")
    (tmp_path / "folder").mkdir()
    specs = {
        f"duckdb:{tmp_path}/x.duckdb": "duckdb database x cannot be opened",
        f"clickhouse:{tmp_path}/folder": "is no ClickHouse folder",
        "postgresql://reader@127.0.0.1:1/x": "postgres database x cannot be opened.*pg_isready -h 127.0.0.1 -p 1$",
        "mysql://reader@127.0.0.1:1/x": "mysql database x cannot be opened.*mariadb-admin -h 127.0.0.1 -P 1 ping$",
    }
    for spec, wanted in specs.items():
        with pytest.raises(DatabaseError, match=wanted):
            open_database(spec)


CONFINED = """
import socket, sys
from nl2sql.databases.engines.confine import confine
assert confine([sys.argv[1]], [sys.argv[2]])
open(sys.argv[1] + "/given").read()
open(sys.argv[2] + "/new", "w").write("x")
for attempt in (lambda: open("/etc/hostname"), lambda: open(sys.argv[1] + "/new", "w"),
                lambda: open("/proc/self/environ"), lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])))):
    try:
        attempt()
    except PermissionError:
        continue
    sys.exit("not confined")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_a_confined_process_reaches_only_what_it_was_given(tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
    (tmp_path / "read" / "given").write_text("x")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-c", CONFINED, str(tmp_path / "read"), str(tmp_path / "write"), port]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy())
    assert done.returncode == 0, done.stderr


LONG = "SELECT COUNT(*) FROM range(3000000) AS a, range(3000000) AS b WHERE a.range * b.range % 7 = 3"


def test_an_interrupted_statement_does_not_answer_the_next(engine: Callable[[str], Database]) -> None:
    database = engine("duckdb")
    assert database.run("SELECT 1").success
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        database.run(LONG)
    timer.join()
    assert database.run("SELECT 222 AS second").columns == ("second",)


def test_a_forked_child_gets_processes_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install duckdb")
    program = """
import os, sys
from nl2sql.databases.engines import open_database
from nl2sql.databases.sqlite.process import READY
from nl2sql.databases.sqlite.disk import _readers
(folder,) = sys.argv[1:]
open(folder + "/t.csv", "w").write("n\\n1\\n")
import duckdb
with duckdb.connect(folder + "/t.duckdb") as made:
    made.execute("CREATE TABLE t (n INTEGER)")
database = open_database(f"duckdb:{folder}/t.duckdb")
with _readers.lent() as reader:
    theirs = {reader.process.pid, database._worker.process.pid}
child = os.fork()
ok = database.run("SELECT 2").rows == ((2,),)
with _readers.lent() as reader:
    ok = ok and reader.ask(READY, 10) == READY
    mine = {reader.process.pid, database._worker.process.pid}
if child == 0:
    database.close()
    os._exit(0 if ok and not mine & theirs else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert os.path.isdir(database._scratch.name)  # the child's end left it alone
assert ok and mine == theirs and database.run("SELECT 3").success
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
