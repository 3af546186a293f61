"""Turns: their five fields, summaries without values, and the names of owners and sessions."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

from nl2sql.errors import UsageError
from nl2sql.interfaces import RunResult, Turn
from nl2sql.sessions.turns import new_session_id, new_turn, summarize_results, turn_of


def test_a_turn_has_the_specification_s_fields() -> None:
    assert [field.name for field in fields(Turn)] == [
        "user_query",
        "resolved_query",
        "sql",
        "results_summary",
        "timestamp",
    ]


ROWS = (("Ada", "Bern", 1, 2),) * 10
RESULTS: list[tuple[Any, str]] = [
    (RunResult(True, ("a", "b", "c", "d"), ROWS), "10 rows, columns: a, b, c"),
    ({"success": True, "data": [{"a": 1}] * 10, "columns": ["a", "b", "c", "d"]}, "10 rows, columns: a, b, c"),
    (RunResult(True, ("n",), ()), "0 rows, columns: n"),
    (RunResult(False, error="no such column: Ada"), "No results"),
    ({"success": False, "error": "x"}, "No results"),
    ({}, "No results"),
    (None, "No results"),
    (RunResult(True, ("a\n\x1b[2J b", "x" * 100), ()), f"0 rows, columns: a ?[2J b, {'x' * 60}"),
]


@pytest.mark.parametrize(("result", "wanted"), RESULTS)
def test_a_result_is_summed_up_without_a_value_of_it(result: Any, wanted: str) -> None:
    assert summarize_results(result) == wanted


def test_a_new_turn_has_the_time_in_utc_and_the_question_it_was_resolved_to() -> None:
    turn = new_turn("What about Q4?", "SELECT 1", RunResult(True, ("n",), ((1,),)), "Top 10 products in Q4")
    assert turn.resolved_query == "Top 10 products in Q4" and turn.results_summary == "1 rows, columns: n"
    for text in (turn.timestamp, turn_of({"user_query": "one that came without a time"}).timestamp):
        moment = datetime.fromisoformat(text)
        assert moment.tzinfo == UTC and abs((datetime.now(UTC) - moment).total_seconds()) < 600
    assert new_turn("How many?", "SELECT 1", None).resolved_query == "How many?"


BAD_TURNS: list[tuple[dict[str, Any], str]] = [
    ({}, "without a user_query"),
    ({"user_query": "  "}, "without a user_query"),
    ({"user_query": 7}, "user_query of a turn is 7; expected text"),
    ({"user_query": "x", "rows": "y"}, "no field 'rows'"),
    ({"user_query": "x", "sql": "y" * 80_001}, "80,001 characters"),
]


@pytest.mark.parametrize(("entry", "wanted"), BAD_TURNS)
def test_what_is_no_turn_is_refused(entry: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        turn_of(entry)


def test_made_session_ids_are_long_and_never_the_same() -> None:
    made = {new_session_id() for _ in range(1000)}
    assert len(made) == 1000 and all(re.fullmatch("[0-9a-f]{32}", name) for name in made)
