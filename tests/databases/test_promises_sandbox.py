"""Each layer of the SQLite sandbox alone: what one of them holds back when the others are taken away."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nl2sql.databases.sqlite import sandbox
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.databases.sqlite.files import WalCopies
from nl2sql.databases.sqlite.sandbox import Rejected, Sandbox, single_statement

NEVER = float("inf")


@pytest.fixture
def box(shop: Path) -> Iterator[Sandbox]:
    """A sandbox on a file that could be written to, as far as its opening goes."""
    made = Sandbox(f"{shop.as_uri()}?mode=rw", "1")
    yield made
    made.close()


@contextlib.contextmanager
def without_authorizer(box: Sandbox) -> Iterator[sqlite3.Connection]:
    box.connection.set_authorizer(None)
    yield box.connection
    box.connection.set_authorizer(box._authorize)


def writable(box: Sandbox) -> Sandbox:
    """The same with the authorizer as its only layer."""
    with without_authorizer(box) as connection:
        connection.execute("PRAGMA query_only=off")
    return box


def orders(box: Sandbox) -> int:
    return box.rows("SELECT count(*) FROM orders", NEVER, 10)[1][0][0]


def test_the_file_is_opened_for_reading_only(shop: Path) -> None:
    uri, _ = WalCopies().readable(shop)
    opened = contextlib.closing(sqlite3.connect(uri, uri=True))
    with opened as connection, pytest.raises(sqlite3.OperationalError, match="readonly database"):
        connection.execute("DELETE FROM orders")


def test_the_connection_is_read_only_without_its_authorizer(box: Sandbox) -> None:
    with without_authorizer(box) as connection, pytest.raises(sqlite3.OperationalError, match="readonly database"):
        connection.execute("DELETE FROM orders")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM orders", "not allowed: DELETE"),
        ("CREATE TABLE x (y)", "not allowed: INSERT"),
        ("ATTACH ':memory:' AS other", "not allowed: ATTACH"),
        ("SELECT * FROM pragma_table_info('orders')", "built-in virtual tables such as pragma_table_info"),
    ],
)
def test_the_authorizer_holds_back_alone_what_does_not_only_read(box: Sandbox, sql: str, said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        writable(box).rows(sql, NEVER, 10)
    assert refused.value.kind == "denied" and orders(box) == 4


def test_a_new_connection_has_its_authorizer(box: Sandbox) -> None:
    with pytest.raises(Rejected, match="not allowed: DELETE"):
        box.rows("DELETE FROM orders", NEVER, 10)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        box.connection.execute("PRAGMA table_info(orders)")


@pytest.mark.parametrize("name", ["load_extension", "LOAD_Extension", "fts3_tokenizer", "readfile", "writefile"])
def test_functions_that_leave_the_database_are_denied_in_any_case(box: Sandbox, name: str) -> None:
    assert box._authorize(sqlite3.SQLITE_FUNCTION, None, name, None, None) == sqlite3.SQLITE_DENY
    assert box._authorize(sqlite3.SQLITE_FUNCTION, None, "count", None, None) == sqlite3.SQLITE_OK


def test_a_statement_without_columns_is_denied_by_itself(box: Sandbox) -> None:
    with without_authorizer(writable(box)), pytest.raises(Rejected, match="returns no columns"):
        box._fetch("UPDATE orders SET total = 0 WHERE 0", 10)


def test_what_one_statement_may_ask_for_is_bounded(box: Sandbox) -> None:
    limits = {
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_LENGTH: 64 * 2**20,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
        sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
        sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
        sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
    assert {limit: box.connection.getlimit(limit) for limit in limits} == limits
    with without_authorizer(box) as connection:
        assert connection.execute("PRAGMA hard_heap_limit").fetchone() == (512 * 2**20,)


def test_a_statement_past_its_deadline_is_interrupted_within_sqlite(box: Sandbox) -> None:
    long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000) SELECT count(*) FROM n"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        box.rows(long, time.monotonic() - 1, 10)


def test_a_result_is_bounded_by_what_its_rows_take(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "HELD_BYTES", 10_000)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) SELECT NULL FROM n"
    with pytest.raises(Rejected, match="the result is larger than") as refused:
        box.rows(many, NEVER, 10_000)
    assert refused.value.kind == "too_large"


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT 1; SELECT 2", "multi_statement"),
        ("SELECT 1; DELETE FROM orders", "multi_statement"),
        ("", "empty"),
        (" ; ;", "empty"),
        ("-- only this", "empty"),
        ("PRAGMA table_info(orders)", "denied"),
        ("explain SELECT 1", "denied"),
        ("/* so */ Explain QUERY PLAN SELECT 1", "denied"),
    ],
)
def test_what_is_not_one_query_is_refused_before_sqlite_sees_it(sql: str, kind: str) -> None:
    with pytest.raises(Rejected) as refused:
        single_statement(sql)
    assert refused.value.kind == kind


@pytest.mark.parametrize("sql", ["SELECT ';' FROM orders", "SELECT ';--' AS \"a;b\"", "SELECT `;` FROM [a;b]"])
def test_a_semicolon_inside_quotes_ends_nothing(sql: str) -> None:
    assert single_statement(f"/* so; */ {sql} ; -- that is all") == sql


LIMITS = """
import resource
from nl2sql.databases.sqlite.worker import restrict_process
restrict_process()
print([resource.getrlimit(getattr(resource, name))[1] for name in ("RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_CORE")])
"""


def test_the_worker_s_process_can_grow_no_file_and_has_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, text=True)
    assert done.stdout.strip() == f"[0, {2 * 2**30}, 0]", done.stderr


def test_a_statement_that_is_too_long_is_never_sent(shop: Path, pool: QueryPool) -> None:
    result = pool.run(shop, f"SELECT 1{' ' * 100_000}")
    assert result.error_kind == "too_large" and "at most 100000 are allowed" in (result.error or "")
