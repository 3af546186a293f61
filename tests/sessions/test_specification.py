"""The specification's service (STORY-AGENT-7) beyond its own six tests, which are in ``test_session_management``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from people import make_database
from sessions.test_session_management import PRODUCTS, REPLIES, TOP

import nl2sql
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Database
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.conversation import AgenticText2SQLService

Q4, BY_REGION = "What about Q4?", "Show me by region"
TOP_SQL = "SELECT name FROM products WHERE quarter = 'Q3' ORDER BY revenue DESC LIMIT 10"
HISTORY = [{"user_query": TOP, "sql": TOP_SQL}]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(nl2sql.SqliteDatabase(make_database(tmp_path / "market.sqlite", PRODUCTS))) as opened:
        yield opened


def test_an_answer_is_a_dictionary_and_what_ran_is_kept_with_the_five_fields(database: Database) -> None:
    service = AgenticText2SQLService(database, ScriptedModel(REPLIES))
    first = service.generate_sql_with_agent(TOP, "s")
    assert (first["error"], first["is_followup"], first["rows"]) == (None, False, [["Nut"], ["Bolt"]])
    assert service.generate_sql_with_agent(Q4, "s")["rows"] == [["Nail"]]
    kept = service.chat_sessions["s"]
    assert [entry["resolved_query"] for entry in kept] == [TOP, "Top 10 products in Q4"]
    assert set(kept[0]) == {"user_query", "resolved_query", "sql", "results_summary", "timestamp"}
    assert kept[0]["results_summary"] == service._summarize_results(
        {"success": True, "data": [1, 2], "columns": ["name"]}
    )
    assert service._get_chat_history("other") == []


def test_a_query_that_fails_and_talk_are_not_kept(database: Database) -> None:
    service = AgenticText2SQLService(database, ScriptedModel([" nowhere FROM nothing"], on_exhausted="repeat"))
    assert service.generate_sql_with_agent("Which?", "s")["error"]
    assert service.generate_sql_with_agent("Thanks!", "s")["text"]
    assert service.chat_sessions == {}


def test_a_follow_up_needs_a_database_and_a_model() -> None:
    with pytest.raises(UsageError, match="AgenticText2SQLService\\(database, model\\)"):
        AgenticText2SQLService()._resolve_query_with_history(Q4, HISTORY)


def test_rewrite_is_the_specification_s_prompt_and_the_question_where_the_model_fails(database: Database) -> None:
    """Its history, whose SQL is no SQL."""
    history = [{"user_query": TOP, "sql": "SELECT..."}]
    rewrite = build_config({"session": {"resolve": "rewrite"}})
    large = ScriptedModel(["Top 10 products in Q4\nThis is a standalone query."])
    service = AgenticText2SQLService(database, large, rewrite)
    assert service._resolve_query_with_history(Q4, history) == "Top 10 products in Q4"
    broken = AgenticText2SQLService(database, ScriptedModel([{"error": "the server is gone"}]), rewrite)
    assert broken._resolve_query_with_history(Q4, history) == Q4


def test_the_number_of_iterations_is_reflect_s(database: Database) -> None:
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
        service = AgenticText2SQLService(database, model)
        given = [] if iterations == 3 else [iterations]  # 3 is the default
        assert service.generate_sql_with_agent("Which?", "s", *given)["error"]
        assert len(asked) == iterations
    with pytest.raises(UsageError, match="max_iterations=0; expected at least 1"):
        service.generate_sql_with_agent("Which?", "s", 0)
