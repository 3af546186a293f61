"""Questions over DuckDB, ClickHouse, PostgreSQL and MariaDB: prompts, guardrails and suspicions speak the dialect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nl2sql.agents.candidates import ReactSqlAgent
from nl2sql.agents.controllers import answer
from nl2sql.agents.react import react_sql
from nl2sql.interfaces import Database
from nl2sql.models.scripted import ScriptedModel

ENGINES = {
    "duckdb": ("DuckDB", "SELECT name FROM customers WHERE name ILIKE 'a%' QUALIFY row_number() OVER () = 1"),
    "clickhouse": ("ClickHouse", "SELECT argMin(name, name) FROM customers"),
    "postgres": ("PostgreSQL", "SELECT name FROM customers WHERE name ~ '^A'"),
    "mysql": ("MySQL", "SELECT `name` FROM `customers` WHERE name REGEXP '^A'"),
}
STEPS = ("extract_constraints", "generate_sql", "", "validate_sql", "validate_constraints", "run_sql", "finish")


def script(sql: str) -> ScriptedModel:
    return ScriptedModel([f"Action: {step}[{{}}]" if step else sql for step in STEPS])


@pytest.mark.parametrize("dialect", ENGINES)
def test_the_loop_speaks_the_engine_s_dialect(dialect: str, engine: Callable[[str], Database]) -> None:
    named, sql = ENGINES[dialect]
    episode = answer("Which names begin with A?", engine(dialect), script(sql), "react")
    assert episode.error is None and episode.rows == (("Ada Moss",),), episode.error
    assert f"about a {named} database" in episode.messages[0]["content"]
    asked = next(call for call in episode.calls if call["kind"] == "sql")
    assert f"You write {named} queries" in asked["messages"][0]["content"]


@pytest.mark.parametrize("dialect", ENGINES)
def test_an_answer_is_suspicious_on_any_engine(dialect: str, engine: Callable[[str], Database]) -> None:
    sql = "SELECT count(*) FROM customers WHERE name = 'Ada Mos'"
    model = ScriptedModel([sql] * 3)
    episode = answer("How many customers are called Ada Moss?", engine(dialect), model, "single_shot")
    assert [item["check"] for item in episode.flags["suspicions"]][:1] == ["unknown_literal"]
    assert "the closest is 'Ada Moss'" in episode.flags["suspicions"][0]["text"]


def test_the_functions_of_a_notebook_speak_the_engine_s_dialect_too(engine: Callable[[str], Database]) -> None:
    named, sql = ENGINES["duckdb"]
    looped = react_sql("Which names begin with A?", engine("duckdb"), script(sql))
    ranked = ReactSqlAgent(engine("duckdb"), ScriptedModel([sql] * 9)).answer("Which names begin with A?")
    for episode in (looped, ranked):
        asked = next(call for call in episode.calls if call["kind"] == "sql")
        assert f"You write {named} queries" in asked["messages"][0]["content"]
