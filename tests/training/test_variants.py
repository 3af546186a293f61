"""A schema that is written otherwise: the query finds in it what the gold finds in the database."""

from __future__ import annotations

import random
import re
import sqlite3

import pytest
from training import examples
from training.mixture import Shares, mixture
from training.variants import new_names, renamed, thinned, values_renamed, varied, with_names

from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import Column, ForeignKey, Schema, Table, quote_name
from nl2sql.interfaces import Question

ALL_COLUMNS = re.compile(r"SELECT \*|\.\*")
SCHEMA = Schema(
    (
        Table("Student", (Column("Stu_ID", "INT", primary_key=True), Column("Fname", "VARCHAR(20)"), Column("age"))),
        Table(
            "Pet",
            (
                Column("owner", "INT"),
                Column("pet name", "CHAR(3)"),
                Column("pet_name"),
                Column("weight"),
                Column("Count"),
            ),
            (ForeignKey(("owner",), "Student", ("Stu_ID",)),),
        ),
    )
)


@pytest.fixture(scope="module")
def asked_of():
    """database, its questions of the packaged benchmark as the training reads them."""
    benchmark = load_benchmark("packaged", split="dev")
    found = []
    for name in sorted({question.db_id for question in benchmark.questions}):
        database = benchmark.database(name)
        questions = [question for question in benchmark.questions if question.db_id == name][:12]
        items = [item for q in questions if (item := examples.asked(q, database, values=4)) is not None]
        found.append((database, items))
    return found


def copied(database, schema, names):
    """A database in memory that has the rows of ``database`` in the tables of ``schema``, under other names."""
    copy = sqlite3.connect(":memory:")
    for old, new in zip(schema.tables, with_names(schema, names).tables, strict=True):
        given, kept = (", ".join(quote_name(column.name) for column in table.columns) for table in (old, new))
        rows = database.run(f"SELECT {given} FROM {quote_name(old.name)}", max_rows=100_000).rows
        copy.execute(f"CREATE TABLE {quote_name(new.name)} ({kept})")
        copy.executemany(f"INSERT INTO {quote_name(new.name)} VALUES ({', '.join('?' * len(old.columns))})", rows)
    return copy


@pytest.mark.parametrize("seed", range(6))
def test_the_renamed_query_finds_what_the_gold_finds(asked_of, seed):
    checked = other = 0
    for database, items in asked_of:
        rng = random.Random(seed)
        schema = thinned(database.schema(), items, rng)
        names = new_names(schema, rng)
        copy = copied(database, schema, names)
        for item in items:
            if ALL_COLUMNS.search(item.sql):
                continue
            expected = database.run(item.sql, max_rows=100_000).rows
            sql = renamed(item.sql, names)
            assert sorted(map(str, copy.execute(sql))) == sorted(map(str, map(tuple, expected))), sql
            checked += 1
            other += sql != item.sql
    assert checked > 50 and other > checked / 3


def test_the_line_of_values_names_columns_of_the_variant(asked_of):
    shown = 0
    for database, items in asked_of:
        variant, others = varied(database.schema(), items, random.Random(1))
        places = {f"{quote_name(t.name)}.{quote_name(c.name)}" for t in variant.tables for c in t.columns}
        for item, other in zip(items, others, strict=True):
            assert other.text == item.text and other.schema is item.schema
            question, _, values = other.nlq.rpartition("\nValues: ")
            assert not values or question == item.nlq.rpartition("\nValues: ")[0]
            for place in re.findall(r"([^ ,]+) = '", values):
                assert place in places
                shown += 1
    assert shown > 20


def test_only_identifiers_are_renamed():
    names = {"age": "AGE_YEARS", "student": "Students", "pet name": "petName", "count": "never"}
    sql = """SELECT Age, "pet name", 'age' FROM Student WHERE x = 'the ''age''' AND age (1) > COUNT(age)"""
    assert renamed(sql, names) == (
        """SELECT AGE_YEARS, petName, 'age' FROM Students WHERE x = 'the ''age''' AND age (1) > COUNT(AGE_YEARS)"""
    )
    asked = "What is the age?\nValues: Student.age = 'age'"
    assert values_renamed(asked, names) == "What is the age?\nValues: Students.AGE_YEARS = 'age'"
    assert values_renamed("Student age?", names) == "Student age?"


def test_names_stay_apart_and_keywords_stay_as_they_are():
    for seed in range(200):
        rng = random.Random(seed)
        schema = with_names(SCHEMA, new_names(SCHEMA, rng))
        for table in schema.tables:
            assert len({column.name.lower() for column in table.columns}) == len(table.columns)
        assert len({table.name.lower() for table in schema.tables}) == 2
        assert [column.name for column in schema.tables[1].columns][4] == "Count"
        key = schema.tables[1].foreign_keys[0]
        assert key.ref_table == schema.tables[0].name and key.ref_columns == (schema.tables[0].columns[0].name,)
        assert key.columns == (schema.tables[1].columns[0].name,)


def test_used_columns_and_keys_are_never_left_out():
    question = Question("How heavy is it?", "pets", "q", gold=("SELECT weight FROM Pet",))
    item = examples.Asked(question, question.text, question.text, question.gold[0], SCHEMA, frozenset({"Pet"}))
    excluded = set()
    for seed in range(100):
        schema = thinned(SCHEMA, [item], random.Random(seed))
        kept = {column.name for table in schema.tables for column in table.columns}
        assert {"Stu_ID", "owner", "weight"} <= kept
        excluded |= {"Fname", "age", "pet name", "pet_name", "Count"} - kept
    assert excluded == {"Fname", "age", "pet name", "pet_name", "Count"}


def test_a_share_of_the_groups_is_varied_and_has_no_repairs():
    benchmark = load_benchmark("packaged", split="dev")
    kinds = []
    for group in mixture(benchmark, benchmark.questions, Shares(rounds=2, act=0, repair=1.0, vary=0.5)):
        database = benchmark.database(group.examples[0].db_id)
        names = {table.name for table in database.schema().tables}
        shown = re.findall(r"^(\w+)\(", group.examples[0].messages[-1]["content"], re.MULTILINE)
        kinds.append((set(shown) <= names, any(example.task == "repair" for example in group.examples)))
        if group.part == "held_out":
            assert set(shown) <= names
    assert (True, True) in kinds and (False, False) in kinds
    assert (False, True) not in kinds
