"""What runs in an engine's process, in threads of this one: the reach that is given up, catalogues, values and bounds.

Landlock holds for the thread that asks for it, so that the rest of this process keeps its rights.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nl2sql.databases.engines import adapters, confine
from nl2sql.databases.engines.adapters import ADAPTERS, Refused
from nl2sql.databases.engines.database import EngineDatabase
from nl2sql.databases.schema import Column, ForeignKey
from nl2sql.interfaces import Database

KEYS = """CREATE TABLE p (a INTEGER, b INTEGER NOT NULL, c VARCHAR, PRIMARY KEY (b, a));
        CREATE TABLE q (x INTEGER, y INTEGER, z INTEGER PRIMARY KEY, FOREIGN KEY (y, x) REFERENCES p (b, a));
    CREATE VIEW v AS SELECT c FROM p; CREATE SCHEMA other; CREATE TABLE other.p (hidden INTEGER PRIMARY KEY);
    INSERT INTO p VALUES (1, 2, 'x'), (3, 4, NULL)"""


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` gives or raises, in a thread of its own."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - handed on
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def attempt(work: Callable[[], Any]) -> str:
    try:
        work()
    except PermissionError:
        return "denied"
    except OSError as error:
        return type(error).__name__
    return "done"


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_a_confined_thread_reaches_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    mine, scratch, other = (tmp_path / name for name in ("mine", "scratch", "other"))
    for folder in (mine, scratch, other):
        folder.mkdir()
        (folder / "f").write_text("x")
    listening = socket.create_server(("127.0.0.1", 0))
    free = socket.socket()

    def confined() -> dict[str, str] | None:
        if not confine.confine([str(mine), str(tmp_path / "gone")], [str(scratch)]):
            return None
        return {
            "read mine": attempt(lambda: (mine / "f").read_text()),
            "list mine": attempt(lambda: list(mine.iterdir())),
            "write mine": attempt(lambda: (mine / "f").write_text("y")),
            "make in mine": attempt(lambda: (mine / "g").touch()),
            "read scratch": attempt(lambda: (scratch / "f").read_text()),
            "write scratch": attempt(lambda: (scratch / "g").write_text("y")),
            "remove in scratch": attempt(lambda: (scratch / "g").unlink()),
            "make a folder in scratch": attempt(lambda: (scratch / "d").mkdir()),
            "move in scratch": attempt(lambda: (scratch / "f").rename(scratch / "d" / "f")),
            "truncate scratch": attempt(lambda: (scratch / "d" / "f").open("w").close()),
            "read other": attempt(lambda: (other / "f").read_text()),
            "list other": attempt(lambda: list(other.iterdir())),
            "remove in other": attempt(lambda: (other / "f").unlink()),
            "write nowhere": attempt(lambda: Path("/dev/null").write_text("y")),
            "read a library": attempt(lambda: Path(threading.__file__).read_text()),
            "connect": attempt(lambda: socket.create_connection(listening.getsockname(), timeout=5).close()),
            "listen": attempt(lambda: free.bind(("127.0.0.1", 0))),
        }

    found = in_a_thread(confined)
    free.close()
    reached = attempt(lambda: socket.create_connection(listening.getsockname(), timeout=5).close())
    listening.close()
    if found is None:
        pytest.skip("this kernel has no Landlock")
    denied = {what for what, outcome in found.items() if outcome == "denied"}
    tcp = {"connect", "listen"} & denied
    assert denied - tcp == {"write mine", "make in mine", "read other", "list other", "remove in other"}
    assert set(found.values()) == {"done", "denied"} and len(tcp) in (0, 2)  # TCP from Linux 6.7
    assert (attempt(lambda: (other / "f").read_text()), reached) == ("done", "done"), "of that thread alone"


def duckdb_file(folder: Path, script: str) -> str:
    import duckdb

    with duckdb.connect(str(folder / "x.duckdb")) as connection:
        connection.execute(script)
    return str(folder / "x.duckdb")


def test_duckdb_s_catalogue_has_keys_in_order_views_and_main_alone(tmp_path: Path) -> None:
    file = duckdb_file(tmp_path, KEYS)

    def asked() -> Any:
        adapter = ADAPTERS["duckdb"](file, str(tmp_path))
        columns, found = adapter.query("SELECT c, a FROM p ORDER BY a", 5.0, False)
        rows, plan = list(found), list(adapter.query("SELECT c FROM p", 5.0, True)[1])
        settings = "memory_limit", "threads", "temp_directory", "allow_community_extensions", "lock_configuration"
        held = [next(adapter.query(f"SELECT current_setting('{s}')::VARCHAR", 5.0, False)[1])[0] for s in settings]
        kinds = []
        for sql in ("", "SELECT 1; SELECT 2", "DELETE FROM p"):
            with pytest.raises(Refused) as refused:
                adapter.query(sql, 5.0, False)
            kinds.append(refused.value.kind)
        return adapter.tables(), columns, rows, "physical_plan" in str(plan), held, kinds

    tables, columns, rows, planned, held, kinds = in_a_thread(asked)
    assert tables == [
        {"name": "p", "view": False, "foreign_keys": [],
         "columns": [["a", "INTEGER", True, True], ["b", "INTEGER", True, True], ["c", "VARCHAR", False, False]]},
        {"name": "q", "view": False, "foreign_keys": [[["y", "x"], "p", ["b", "a"]]],
         "columns": [["x", "INTEGER", False, False], ["y", "INTEGER", False, False], ["z", "INTEGER", True, True]]},
        {"name": "v", "view": True, "foreign_keys": [], "columns": [["c", "VARCHAR", False, False]]},
    ]  # fmt: skip
    assert (columns, rows, planned) == (["c", "a"], [("x", 1), (None, 3)], True)
    assert held == ["953.6 MiB", "1", "", "false", "true"], "1 GB, one thread, no extensions"
    assert kinds == ["empty", "multi_statement", "denied"]


def test_a_duckdb_file_without_tables_is_refused(tmp_path: Path) -> None:
    file = duckdb_file(tmp_path, "CREATE SCHEMA other; CREATE TABLE other.t (a INTEGER)")
    with pytest.raises(Refused, match="schema main has no tables, and only those of main are read"):
        in_a_thread(lambda: ADAPTERS["duckdb"](file, str(tmp_path)).tables())


@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_a_server_s_catalogue_and_rows_are_read(dialect: str, engine: Callable[[str], Database]) -> None:
    database = engine(dialect)
    assert isinstance(database, EngineDatabase)
    orders = database.schema().table("orders")
    assert orders is not None and not orders.is_view and orders.columns[0] == Column("order_id", "INTEGER" if
        dialect == "postgres" else orders.columns[0].type, True, True)  # fmt: skip
    assert orders.foreign_keys == (ForeignKey(("customer_id",), "customers", ("customer_id",)),)
    adapter = ADAPTERS[dialect](database._target, "")
    assert adapter.version == database.version and adapter.version.split(".")[0].isdigit()
    rows = "SELECT order_id, total FROM orders ORDER BY order_id"
    for _ in range(2):  # each statement begins anew
        columns, found = adapter.query(rows, 5.0, False)
        assert columns == ["order_id", "total"] and [row[0] for row in found] == [10, 11, 12]
    next(adapter.query(rows, 5.0, False)[1])  # whose other rows nobody takes
    assert adapter.query(f"{rows} LIMIT 0", 5.0, False)[0] == ["order_id", "total"]
    assert list(adapter.query(rows, 5.0, True)[1])
    assert {table["name"] for table in adapter.tables()} == {"customers", "orders", "balances"}
    for sql in ("DELETE FROM orders", "SELECT 1; SELECT 2", ""):
        with pytest.raises(Exception, match=r"not a SELECT|multiple|syntax|no statement|Commands out of sync"):
            list(adapter.query(sql, 5.0, False)[1])
    adapter.connection.close()
    assert list(adapter.query("SELECT 7", 5.0, False)[1]) == [(7,)], "on a new connection"


@pytest.mark.parametrize("options", ["socket=/s&ssl=1&charset=", "ssl="])
def test_an_address_of_mysql_has_no_options_but_its_socket(options: str) -> None:
    with pytest.raises(Refused, match="the address has the option 'ssl'; the only one is socket=PATH"):
        ADAPTERS["mysql"](f"mysql://me@h/x?{options}", "")


def test_clickhouse_is_read_only_within_the_bounds_of_the_page(tmp_path: Path) -> None:
    settings = adapters.SETTINGS
    assert (settings["mode"], settings["readonly"], settings["max_threads"]) == ("ro", "1", "1")
    assert (settings["max_memory_usage"], settings["max_result_bytes"]) == (str(2**30), str(2**26))
    (tmp_path / "metadata").mkdir()
    with pytest.raises(Refused, match="is no ClickHouse folder: it has no store"):
        ADAPTERS["clickhouse"](str(tmp_path), str(tmp_path))
    values = [None, "é", 1, 1.5, True, [1, "ü"], {"a": [None]}]
    assert [adapters._value(value) for value in values] == [None, "é", 1, 1.5, True, '[1, "ü"]', '{"a": [null]}']
