"""Columns are tied to the tables that a query reads: what the SELECT grammar accepts, SQLite can prepare."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("llguidance")
from fixture_lines import read_cases
from models.tiny import tiny_tokenizer
from test_grammars import accepts

from nl2sql.agents.grammars.select import MOST_OF_A_TABLE, joined_sets, other_joins, select_grammar
from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import Column, ForeignKey, Schema, Table, introspect, quote_name
from nl2sql.interfaces import Grammar
from nl2sql.models.rows import Constrainer

TABLES = """
    CREATE TABLE stadium (stadium_id INTEGER PRIMARY KEY, name TEXT, capacity INTEGER);
    CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, title TEXT, year INTEGER,
                          stadium_id INTEGER REFERENCES stadium);
    CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT);
    CREATE TABLE performance (concert_id INTEGER REFERENCES concert, singer_id INTEGER REFERENCES singer, fee REAL);
    CREATE TABLE album (album_id INTEGER PRIMARY KEY, singer_id INTEGER REFERENCES singer, price REAL);
    CREATE TABLE sponsor (sponsor_id INTEGER PRIMARY KEY, brand TEXT);
"""
CASES = read_cases("select_joins.txt")


@pytest.fixture(scope="module")
def music() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(TABLES)
    yield connection
    connection.close()


@pytest.mark.parametrize(("verdict", "text"), CASES)
def test_a_column_belongs_to_a_table_that_is_read(
    constrainer: Constrainer, music: sqlite3.Connection, verdict: str, text: str
) -> None:
    assert accepts(constrainer, select_grammar(introspect(music)), text) is (verdict == "yes")
    problem = complaint(music, f"SELECT{text}")
    assert problem is None if verdict == "yes" else problem and "column" in problem, problem


QUERIES = [  # over two linked tables a and b; every ? becomes some column of them, or of another table
    " {a}.* FROM {a} JOIN {b} ON ? = ? WHERE ? > 3",
    " count(*), ? FROM {b}, {a} WHERE ? = ? GROUP BY ? HAVING max(?) < 5 ORDER BY sum(?) DESC",
    " ROUND(AVG(?), 2) FROM {b} LEFT JOIN {a} ON ? = ? WHERE ? LIKE 'A%' OR NOT ? IS NULL",
    " ? FROM {a} JOIN {b} ON ? = ? WHERE ? NOT IN (SELECT {x} FROM {a} WHERE {x} = 2)",
    " {a}.{x} FROM {a} WHERE {a}.{x} IN (SELECT ? FROM {b} JOIN {a} ON ? = ?)",
    " {a}.{x} FROM {a} UNION SELECT ? FROM {a} JOIN {b} WHERE ? BETWEEN 1 AND 2",
]


@pytest.mark.parametrize("db_id", ["campus_registry", "chess_league", "library_network", "weather_network"])
def test_linked_tables_are_joined_as_sqlite_can_prepare_it(constrainer: Constrainer, db_id: str) -> None:
    database = load_benchmark("packaged", split="all").database(db_id)
    schema = database.schema()
    grammar, chosen = select_grammar(schema), random.Random(db_id)
    pairs = [tables for tables in joined_sets(schema) if len(tables) == 2]
    verdicts: Counter[bool] = Counter()
    for number in range(60):
        a, b = (schema.tables[i] for i in chosen.choice(pairs))
        tables = [*[a, b] * 4, chosen.choice(schema.tables)]
        text = QUERIES[number % len(QUERIES)].format(a=quote_name(a.name), b=quote_name(b.name), x=spelled(chosen, a))
        bare = chosen.random() < 0.3
        text = re.sub(r"\?", lambda _, bare=bare, tables=tables: reference(chosen, tables, bare), text)
        found, ok = database.explain(f"SELECT{text}"), taken(constrainer, grammar, text)
        assert found.success or not ok, (text, found.error)
        assert ok or bare or not found.success, text
        verdicts[ok] += 1
    assert min(verdicts[True], verdicts[False]) > 10


def test_sets_are_linked_tables_and_bounded() -> None:
    chain = Schema(tuple(linked(f"t{i}", f"t{i + 1}" if i < 6 else None) for i in range(7)))
    assert joined_sets(chain) == [(i, i + 1) for i in range(6)] + [
        (0, 1, 2),
        (4, 5, 6),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 5),
    ]
    few = Schema(tuple(linked(f"t{i}", None) for i in range(4)))
    assert len(joined_sets(few)) == 6 + 4
    star = Schema((linked("hub", None), *(linked(f"t{i}", "hub") for i in range(30))))
    assert joined_sets(star) == [(0, i) for i in range(1, MOST_OF_A_TABLE + 1)]


def linked(name: str, other: str | None) -> Table:
    keys = (ForeignKey(("ref",), other, ("id",)),) if other else ()
    return Table(name, (Column("id"), Column("ref")), keys)


def test_nothing_is_left_to_the_unchecked_joins_of_a_small_schema() -> None:
    few = other_joins(3, [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
    assert not few, few
    middle = other_joins(3, [(0, 1), (0, 2)])
    assert "TABLE_0 (JOIN TABLE_1 on_g? beyond_0_1" in middle["sources_g"]
    assert middle["beyond_0_1"].startswith("JOIN (TABLE_2)")


def spelled(chosen: random.Random, table: Table) -> str:
    return quote_name(chosen.choice(table.columns).name)


def reference(chosen: random.Random, tables: Sequence[Table], bare: bool) -> str:
    table = chosen.choice(tables)
    return f"{'' if bare else quote_name(table.name) + '.'}{spelled(chosen, table)}"


def taken(constrainer: Constrainer, grammar: Grammar, text: str) -> bool:
    state = constrainer.start(grammar)
    for token in tiny_tokenizer()(text)["input_ids"]:
        if not state.allows(token):
            return False
        state.consume(token)
    return state.accepting


def complaint(connection: sqlite3.Connection, sql: str) -> str | None:
    try:
        connection.execute(f"EXPLAIN {sql}")
    except sqlite3.Error as error:
        return str(error)
    return None
