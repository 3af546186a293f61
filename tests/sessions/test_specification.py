"""The six tests of the specification of sessions (STORY-AGENT-7), under their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from people import make_database

import nl2sql
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Database, Model
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.specification import (
    add_to_history,
    generate_sql_with_agent,
    get_chat_history,
    resolve_query_with_history,
)
from nl2sql.sessions.stores import MemoryStore, SessionStore

PRODUCTS = """
CREATE TABLE products (name TEXT, quarter TEXT, region TEXT, revenue REAL);
INSERT INTO products VALUES ('Bolt', 'Q3', 'North', 5), ('Nut', 'Q3', 'South', 7), ('Nail', 'Q4', 'North', 4);
"""
TOP, Q4 = "Top 10 products in Q3", "What about Q4?"
TOP_SQL = "SELECT name FROM products WHERE quarter = 'Q3' ORDER BY revenue DESC LIMIT 10"
REPLIES = {
    TOP: [" name FROM products WHERE quarter = 'Q3' ORDER BY revenue DESC LIMIT 10"],
    Q4: [" name FROM products WHERE quarter = 'Q4' ORDER BY revenue DESC LIMIT 10"],
}


@pytest.fixture
def store() -> SessionStore:
    return MemoryStore()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(nl2sql.SqliteDatabase(make_database(tmp_path / "market.sqlite", PRODUCTS))) as opened:
        yield opened


@pytest.fixture(params=["scripted", pytest.param("embedded", marks=pytest.mark.model)])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    if request.param == "scripted":
        yield ScriptedModel(REPLIES)
    else:
        with closing(nl2sql.load_model("smollm2-135m")) as loaded:
            yield loaded


def test_get_empty_history(store: SessionStore) -> None:
    assert get_chat_history("new-session", store=store) == []
    assert get_chat_history("a-session-of-this-process-that-nobody-began") == []


def test_add_to_history(store: SessionStore) -> None:
    entry = {"user_query": "test query", "sql": "SELECT * FROM products", "timestamp": "2024-01-01T00:00:00"}
    add_to_history("test-session", entry, store=store)
    history = get_chat_history("test-session", store=store)
    assert len(history) == 1 and history[0].user_query == "test query"
    assert (history[0].sql, history[0].timestamp) == ("SELECT * FROM products", "2024-01-01T00:00:00")


def test_history_limit(store: SessionStore) -> None:
    for number in range(15):
        add_to_history("test", {"user_query": f"query-{number}"}, store=store)
    history = get_chat_history("test", store=store)
    assert len(history) == 10 and history[0].user_query == "query-5" and history[-1].user_query == "query-14"


def test_resolve_query_standalone() -> None:
    assert resolve_query_with_history("Top 10 products by revenue", []) == "Top 10 products by revenue"


def test_resolve_query_followup(database: Database, model: Model) -> None:
    history = [{"user_query": TOP, "sql": TOP_SQL}]
    resolved = resolve_query_with_history(Q4, history, database=database, model=model)
    assert "Q4" in resolved and "products" in resolved and "Q3" not in resolved


def test_resolve_query_followup_as_the_specification_asks_a_large_model(database: Database) -> None:
    """Its prompt, and its history whose SQL is no SQL."""
    options: dict[str, Any] = {"config": build_config({"session": {"resolve": "rewrite"}}), "database": database}
    history = [{"user_query": TOP, "sql": "SELECT..."}]
    large = ScriptedModel(["Top 10 products in Q4\nThis is a standalone query."])
    assert resolve_query_with_history(Q4, history, model=large, **options) == "Top 10 products in Q4"
    broken = ScriptedModel([{"error": "the server is gone"}])
    assert resolve_query_with_history(Q4, history, model=broken, **options) == Q4


def test_workflow_with_followup(database: Database, model: Model, store: SessionStore) -> None:
    options: dict[str, Any] = {"session_id": "test-123", "database": database, "model": model, "store": store}
    result1 = generate_sql_with_agent(TOP, **options)
    assert result1["error"] is None and result1["is_followup"] is False
    result2 = generate_sql_with_agent(Q4, **options)
    assert result2.get("is_followup") is True
    assert result2.get("resolved_query") is not None
    assert "Q4" in result2["resolved_query"] and "products" in result2["resolved_query"]
    assert get_chat_history("test-123", store=store)[0].user_query == TOP


def test_the_number_of_iterations_is_reflect_s(database: Database, store: SessionStore) -> None:
    asked: list[int] = []

    class Counted(ScriptedModel):
        def for_episode(self, question_text: str, controller: str) -> ScriptedModel:
            return self

        def generate(self, *arguments: Any, **options: Any) -> Any:
            asked.append(1)
            return super().generate(*arguments, **options)

    for iterations in (1, 2, 3):
        asked.clear()
        model = Counted([" nowhere FROM nothing"], on_exhausted="repeat")
        options: dict[str, Any] = {"database": database, "model": model, "store": store}
        given = [] if iterations == 3 else [iterations]  # 3 is the default
        assert generate_sql_with_agent("Which?", "s", *given, **options)["error"]
        assert len(asked) == iterations
    with pytest.raises(UsageError, match="max_iterations=0; expected at least 1"):
        generate_sql_with_agent("Which?", "s", 0, **options)


@pytest.mark.model
def test_the_examples_of_the_page_are_what_the_strategies_make(database: Database) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if re.match(r"\| (question|Top|What|Show)", line)]
    head, *rows = [line.strip("| ").split(" | ") for line in lines]
    history = [{"user_query": TOP, "sql": TOP_SQL}]
    with closing(nl2sql.load_model("smollm2-135m")) as model:
        for question, *said in rows:
            before = [] if question == TOP else history
            for strategy, text in zip(head[1:], said, strict=True):
                config = build_config({"session": {"resolve": strategy.strip("`")}})
                options: dict[str, Any] = {"database": database, "model": model, "config": config}
                assert resolve_query_with_history(question, before, **options) == text, (question, strategy)
    assert [question for question, *_ in rows] == [TOP, Q4, "Show me by region"]
