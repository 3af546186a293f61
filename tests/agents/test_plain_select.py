"""The plain SELECT grammar: whatever it lets a model write SQLite can prepare, and it reads the training style."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

pytest.importorskip("llguidance")
from fixture_lines import read_cases
from test_grammars import accepts, written
from test_join_scopes import TABLES
from training.sql_style import in_style

from nl2sql.agents.context.linking import link_schema
from nl2sql.agents.grammars.plain_select import MOST_TABLES, _Rules, key_links, plain_grammar
from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import Schema, introspect
from nl2sql.models.rows import Constrainer

ODD = """
    CREATE TABLE "order" ("group" TEXT, "Total Price" REAL, "it's" TEXT, größe REAL, PRIMARY KEY ("group", "it's"));
    CREATE TABLE "line item" (id INTEGER PRIMARY KEY, "group" TEXT, "it's" TEXT, "a""b" TEXT,
                              FOREIGN KEY ("group", "it's") REFERENCES "order");
    CREATE TABLE alone (x TEXT, y TEXT);
"""
CASES = read_cases("select_plain.txt")


def opened(script: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    return connection


@pytest.fixture(scope="module")
def music() -> Iterator[sqlite3.Connection]:
    connection = opened(TABLES)
    yield connection
    connection.close()


@pytest.mark.parametrize(("verdict", "text"), CASES)
def test_a_query_names_what_its_tables_have(
    constrainer: Constrainer, music: sqlite3.Connection, verdict: str, text: str
) -> None:
    assert accepts(constrainer, plain_grammar(introspect(music)), text) is (verdict == "yes")
    if verdict == "yes":
        music.execute(f"EXPLAIN SELECT{text}")


@pytest.mark.parametrize("script", [TABLES, ODD, "CREATE TABLE one (only_column TEXT)"])
def test_whatever_is_written_can_be_prepared(constrainer: Constrainer, script: str) -> None:
    connection = opened(script)
    grammar = plain_grammar(introspect(connection))
    texts = {written(constrainer, grammar, seed) for seed in range(60)}
    assert len(texts) > 20
    for text in texts:
        connection.execute(f"EXPLAIN SELECT{text}")
    connection.close()


@pytest.mark.parametrize("prefill", ["SELECT", "SELECT ", ""])
def test_it_continues_the_prefill(constrainer: Constrainer, music: sqlite3.Connection, prefill: str) -> None:
    rest = "SELECT name FROM singer"[len(prefill) :]
    assert accepts(constrainer, plain_grammar(introspect(music), prefill), rest)


def test_packaged_golds_in_the_training_style_are_accepted(constrainer: Constrainer) -> None:
    benchmark = load_benchmark("packaged", split="dev")
    verdicts = []
    for question in benchmark.questions[::4]:
        schema = benchmark.database(question.db_id).schema()
        if styled := in_style(question.gold[0], schema):
            verdicts.append(accepts(constrainer, plain_grammar(schema), styled.removeprefix("SELECT")))
    assert sum(verdicts) > 0.6 * len(verdicts) > 6, (sum(verdicts), len(verdicts))


def test_links_follow_keys_and_leave_no_table_alone() -> None:
    connection = opened(TABLES)
    schema = introspect(connection)
    connection.close()
    names = [table.name for table in schema.tables]
    links = {(names[i], names[j]): ways for (i, j), ways in key_links(schema).items()}
    assert links["stadium", "concert"] == [
        " ON concert.stadium_id = stadium.stadium_id",
        " ON stadium.stadium_id = concert.stadium_id",
    ]
    assert ("stadium", "singer") not in links
    assert len([pair for pair in links if "sponsor" in pair]) == len(names) - 1


def test_a_large_schema_joins_fewer_tables_instead_of_growing(constrainer: Constrainer) -> None:
    columns = ", ".join(f"c{i} INTEGER" for i in range(8))
    script = ";".join(
        f"CREATE TABLE t{i} (id{i} INTEGER PRIMARY KEY, {columns}, "
        + ", ".join(f"id{j} INTEGER REFERENCES t{j}" for j in range(max(0, i - 3), i))
        + ("" if i else "x INTEGER")
        + ")"
        for i in range(16)
    )
    connection = opened(script)
    schema: Schema = introspect(connection)
    connection.close()
    assert _Rules(schema, 4).written() is None
    text = " t3.c1 FROM t3 JOIN t4 ON t4.id3 = t3.id3"
    assert accepts(constrainer, plain_grammar(schema), text)


def test_of_hundreds_of_tables_those_that_the_question_is_about_can_be_read(constrainer: Constrainer) -> None:
    connection = opened(";".join(f"CREATE TABLE t{i} (id{i} INTEGER PRIMARY KEY, c{i} TEXT)" for i in range(300)))
    schema = introspect(connection)
    connection.close()
    shown = link_schema("What is c299 where id299 is above 3?", schema, MOST_TABLES)
    assert accepts(constrainer, plain_grammar(shown), " c299 FROM t299 WHERE id299 > 3")
