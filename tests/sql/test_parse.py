"""SQL that no parser should be left alone with: each room that parses answers at once, and in its own way."""

import sqlite3
import time

import pytest
from sqlglot.errors import SqlglotError

from nl2sql.errors import UsageError
from nl2sql.eval.suites.arena import SourceDatabase, read_source
from nl2sql.eval.suites.neighbours import neighbours_of
from nl2sql.sql.features import hardness, order_free
from nl2sql.sql.parse import MAX_DEPTH, parse_bounded

DEEP = 3000
TEXTS = {
    "brackets": "SELECT " + "(" * DEEP + "1" + ")" * DEEP,
    "subqueries": "SELECT " + "(SELECT " * DEEP + "1" + ")" * DEEP,
    "derived tables": "SELECT * FROM " + "(SELECT * FROM " * DEEP + "t" + ")" * DEEP,
    "functions": "SELECT " + "abs(" * DEEP + "a" + ")" * DEEP + " FROM t",
    "functions that parse": "SELECT " + "abs(" * 150 + "a" + ")" * 150 + " FROM t",
    "CASE": "SELECT " + "CASE WHEN 1 THEN " * DEEP + "1" + " END" * DEEP,
    "NOT": "SELECT 1 WHERE " + "NOT " * DEEP + "1",
    "IN": "SELECT 1 WHERE " + "1 IN (SELECT 1 WHERE " * DEEP + "1" + ")" * DEEP,
    "a long sum": "SELECT 1" + " + 1" * DEEP,
    "a long text": "SELECT 'a'" + " || 'a'" * DEEP,
    "a megabyte": "SELECT a FROM t WHERE a IN (" + ", ".join(["12345678"] * 100_000) + ")",
    "a megabyte of text": "SELECT '" + "x" * 1_000_000 + "'",
    "a megabyte of brackets": "SELECT " + "(" * 500_000 + "1" + ")" * 500_000,
    "joins without ON": "SELECT * FROM t" + " JOIN t" * 30,
    "what the parser trips over": "SELECT a ->> 1 ->> FROM t ->>",
}

SEEN_WITHOUT_PARSING = ("joins without ON", "what the parser trips over")  # no word in them that orders or calls


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> SourceDatabase:
    path = tmp_path_factory.mktemp("source") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    connection.close()
    return read_source(path)


@pytest.mark.parametrize("name", TEXTS)
def test_every_room_that_parses_refuses_at_once(name, source):
    sql = TEXTS[name]
    started = time.monotonic()
    with pytest.raises(SqlglotError):
        parse_bounded(sql)
    assert hardness(sql) is None
    assert order_free(sql) is (name in SEEN_WITHOUT_PARSING)
    with pytest.raises(UsageError) as error:
        neighbours_of(sql, source)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert time.monotonic() - started < 20  # many times what it takes; without a bound it is hours, or a crash


def test_long_but_flat_queries_are_read(source):
    many = " OR ".join(f"a = {n}" for n in range(300))
    sql = f"SELECT a FROM t WHERE {many}"
    assert hardness(sql) is not None
    assert order_free(sql) is True
    assert parse_bounded(sql).sql() == sql
    assert parse_bounded("SELECT " + "(" * (MAX_DEPTH - 10) + "a" + ")" * (MAX_DEPTH - 10)).sql()


def test_a_number_that_is_no_float_makes_no_neighbour(source):
    found = neighbours_of(f"SELECT a FROM t WHERE a > {'9' * 5000}", source)
    assert len(found) >= 50
