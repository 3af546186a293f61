"""A small SQLite database with the names and values that trip a careless reader, and a plain shop."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from nl2sql.databases.sqlite.batch import ROWS, run_pairs
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.interfaces import RunResult

SCHEMA = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER, note BLOB);
INSERT INTO people VALUES (1, 'Ann', 31, x'00ff'), (2, 'Bob', NULL, NULL), (3, 'Cid', 17, NULL);
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, owner REFERENCES people);
CREATE VIEW adults AS SELECT * FROM people WHERE age >= 18;
CREATE TABLE numbers (i INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO numbers SELECT i FROM n;
CREATE TABLE "order" ("my column" TEXT, "select" INT);
INSERT INTO "order" VALUES ('a', 1);
CREATE TABLE "it's ""odd"";--" (x);
INSERT INTO "it's ""odd"";--" VALUES (7);
"""

SHOP = """
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, status TEXT, total REAL);
INSERT INTO customers VALUES (1, 'Ada', 'Bern'), (2, 'Ben', 'Basel'), (3, 'Cleo', 'Bern');
INSERT INTO orders VALUES (10, 1, 'shipped', 20.0), (11, 1, 'open', 5.5), (12, 2, 'shipped', 9.0);
INSERT INTO orders VALUES (13, 3, 'shipped', 1.0);
"""


def make_database(path: Path, script: str = SCHEMA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def every_result(pool: QueryPool, path: Path, statements: Sequence[str], *, timeout_s: float = 30.0) -> list[RunResult]:
    """The result of each statement, with its rows, of one batch."""
    pairs = [(-1, index, ROWS) for index in range(len(statements))]
    judged = run_pairs(pool, [path], statements, pairs, timeout_s=timeout_s, max_rows=10_000)
    return [judged.results[0, index] for index in range(len(statements))]
