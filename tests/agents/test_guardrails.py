"""The guardrails, held by fixture files of one case per line and by property tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.checks.guardrails import (
    apply_guardrails,
    canonicalize_table_casing,
    clean_candidate_with_reason,
    enforce_projection_contract,
    guarded_postprocess,
    vanilla_candidate,
)
from nl2sql.benchmarks.packaged import load_packaged
from nl2sql.databases.schema import Column, Schema, Table

packaged = cache(load_packaged)
FIXTURES = Path(__file__).parents[1] / "fixtures"


def cases(name: str) -> list[tuple[str, ...]]:
    """The cases of a fixture file: fields between |||, line breaks and tabs written as \\n and \\t, % for comments."""
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("%")]
    return [tuple(_meant(part.strip(" ")) for part in line.split("|||")) for line in kept]


def _meant(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n").replace("\\t", "\t") for part in text.split("\\\\"))


def table(name: str, *columns: str) -> Table:
    return Table(name, tuple(Column(column) for column in columns))


SCHEMA = Schema(
    (
        table("Books", "id", "title", "author_id", "pages"),
        table("authors", "id", "name", "born"),
        table("LoanDesk", "id", "order"),
        table("order", "id", "total"),
        table("My Table", "id", "a b"),
    )
)


@pytest.mark.parametrize(("raw", "expected"), cases("clean.txt"))
def test_clean_keeps_one_select_or_says_why_not(raw: str, expected: str) -> None:
    sql, reason = clean_candidate_with_reason(raw)
    assert (f"!{reason}" if sql is None else sql) == expected
    assert (reason == "ok") == (sql is not None)


@pytest.mark.parametrize(("text", "expected"), cases("behind_prefill.txt"))
def test_a_model_that_starts_over_behind_the_prefill_is_not_doubled(text: str, expected: str) -> None:
    sql, reason = clean_candidate_with_reason(behind_prefill("SELECT ", text))
    assert (f"!{reason}" if sql is None else sql) == expected


@pytest.mark.parametrize(("nlq", "sql", "expected"), cases("projection.txt"))
def test_projection_follows_the_enumeration_of_the_question(nlq: str, sql: str, expected: str) -> None:
    assert enforce_projection_contract(sql, nlq) == (sql if expected == "=" else expected)


@pytest.mark.parametrize(("sql", "expected"), cases("casing.txt"))
def test_table_names_get_the_casing_of_the_schema_and_nothing_else_changes(sql: str, expected: str) -> None:
    assert canonicalize_table_casing(sql, SCHEMA) == (sql if expected == "=" else expected)


def test_tables_that_differ_in_casing_alone_are_told_apart() -> None:
    both = Schema((Table("events", (Column("a"),)), Table("Events", (Column("b"),))), "clickhouse")
    for sql in ("SELECT a FROM events", "SELECT Events.b FROM Events"):
        assert canonicalize_table_casing(sql, both) == sql


OTHER_ENGINES = [  # (dialect, what the model wrote; = stays, else what comes out)
    ("duckdb", "SELECT tags[id] FROM Books;", "="),
    ("duckdb", "SELECT [pages] AS p FROM Books;", "="),
    ("postgres", "SELECT ARRAY[title] FROM Books;", "="),
    ("postgres", "SELECT title FROM Books WHERE title = $$it's;$$;", "="),
    ("mysql", "SELECT `interval` FROM Books;", "="),
    ("mysql", "SELECT title FROM Books WHERE title = 'it\\'s; so';", "="),
    ("mysql", "SELECT title FROM Books # all\nWHERE pages > 3;", "="),
    ("duckdb", "SELECT title  FROM Books", "SELECT title FROM Books;"),
]


@pytest.mark.parametrize(("dialect", "raw", "expected"), OTHER_ENGINES)
def test_the_words_of_another_engine_are_read_by_its_own_rules(dialect: str, raw: str, expected: str) -> None:
    sql, reason = apply_guardrails(raw, "List the titles.", Schema(SCHEMA.tables, dialect))
    assert (sql, reason) == (raw if expected == "=" else expected, None)


@pytest.mark.parametrize(("db_id", "nlq", "sql"), cases("paraphrases.txt"))
def test_right_sql_stays_whatever_words_ask_for_its_order_or_its_fields(db_id: str, nlq: str, sql: str) -> None:
    database = packaged().database(db_id)
    assert apply_guardrails(sql, nlq, database.schema()) == (f"{sql};", None)
    assert database.run(sql).rows


def test_there_are_at_least_two_hundred_paraphrases() -> None:
    assert len(cases("paraphrases.txt")) >= 200


def test_guardrails_run_in_the_order_of_the_specification() -> None:
    raw = "```sql\nSELECT id, pages, title\nFROM `BOOKS` ORDER BY id LIMIT 50;\n```"
    assert apply_guardrails(raw, "Show the title and pages of all books.", SCHEMA) == (
        "SELECT title, pages FROM Books ORDER BY id LIMIT 50;",
        None,
    )


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("postprocess", "SELECT title, pages  FROM Books;"),
        ("projection_contract", "SELECT id, pages, title FROM Books;"),
        ("table_casing", "SELECT title, pages FROM BOOKS;"),
    ],
)
def test_each_part_of_the_guardrails_can_be_cut_alone(cut: str, expected: str) -> None:
    raw = "SELECT id, pages, title  FROM BOOKS"
    sql, _ = apply_guardrails(raw, "Show the title and pages of all books.", SCHEMA, cut=[cut])
    assert sql == expected


def test_a_reject_is_an_empty_text_and_a_reason() -> None:
    assert apply_guardrails("DELETE FROM Books", "Remove it", SCHEMA) == ("", "clean_reject:not_select")


def test_the_vanilla_candidate_is_one_call_through_the_guardrails() -> None:
    asked: list[tuple[str, str]] = []

    def generate(nlq: str, schema_summary: str) -> str:
        asked.append((nlq, schema_summary))
        return "SQL: SELECT name FROM AUTHORS"

    assert vanilla_candidate("Who writes?", "authors(id, name)", generate, SCHEMA) == "SELECT name FROM authors;"
    assert asked == [("Who writes?", "authors(id, name)")]
    assert vanilla_candidate("Who writes?", "", lambda nlq, summary: "no idea", SCHEMA) == ""


def test_a_very_long_output_is_answered_quickly() -> None:
    for raw in ("SELECT a FROM t " * 900, "SQL: SELECT\n" * 1500, "SELECT (" * 2400, "`" * 9000 + ";" * 9000):
        assert clean_candidate_with_reason(raw)[0] is None
    assert clean_candidate_with_reason("SELECT a FROM t " * 9000) == (None, "junk")


FRAGMENTS = [case[0] for case in cases("clean.txt")] + [case[1] for case in cases("postprocess.txt")]
WORDS = "SELECT FROM WHERE WITH UNION ORDER GROUP LIMIT BY AS JOIN ON IN AND NOT CASE END"
PIECES = st.sampled_from(
    [
        *"();,'\"`[]-*.<>%&",
        *WORDS.split(),
        *["--", "/*", "*/", "\n", " ", "books", "AUTHORS", "a", "1", "'x'", "```", "SQL:", "\x00", "é", "‘", "\ud800"],
    ]
)
SQLISH = st.one_of(
    st.text(max_size=80),
    st.lists(PIECES, max_size=30).map(" ".join),
    st.lists(PIECES, max_size=30).map("".join),
    st.tuples(st.sampled_from(FRAGMENTS), st.integers(0, 80)).map(lambda pair: pair[0][: pair[1]]),
    st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(FRAGMENTS)).map("\n".join),
    st.sampled_from(FRAGMENTS),
)
QUESTIONS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["Show the title and pages of all books.", "top 3 books", "list name, id and born of authors", ""]),
)


@settings(max_examples=100, deadline=None)
@given(raw=SQLISH, nlq=QUESTIONS)
def test_guardrails_never_raise_and_change_nothing_the_second_time(raw: str, nlq: str) -> None:
    sql, reason = apply_guardrails(raw, nlq, SCHEMA)
    assert (sql == "") == (reason is not None)
    if sql:
        assert apply_guardrails(sql, nlq, SCHEMA) == (sql, None)


@settings(max_examples=100, deadline=None)
@given(sql=SQLISH, nlq=QUESTIONS)
def test_each_guardrail_takes_any_text(sql: str, nlq: str) -> None:
    for step in (guarded_postprocess, enforce_projection_contract):
        assert step(step(sql, nlq), nlq) == step(sql, nlq)
    cased = canonicalize_table_casing(sql, SCHEMA)
    assert canonicalize_table_casing(cased, SCHEMA) == cased
    assert len(cased) == len(sql)
