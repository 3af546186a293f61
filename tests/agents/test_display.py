"""An episode in a notebook: marks, colours, SQL in lines, all text escaped."""

from __future__ import annotations

from typing import Any

import pytest

import nl2sql
from nl2sql.agents.display import Shown, blocked_steps, episode_html, mark, style

SQL = "SELECT COUNT(*) FROM \"order\" WHERE status = 'shipped' AND shipped_on IS NOT NULL ORDER BY 1"
SCRIPT = [
    "Action: generate_sql[{}]",  # forced: constraints come first
    "Action: generate_sql[{}]",
    "SELECT COUNT(*) FROM orders",
    "Action: validate_sql[{}]",  # fails
    "Action: repair_sql[{}]",
    SQL,
    "Action: run_sql[{}]",  # blocked
    "Action: validate_sql[{}]",
    "Action: validate_constraints[{}]",
    "Action: run_sql[{}]",
    "Action: finish[{}]",
]


@pytest.fixture(scope="module")
def episode() -> nl2sql.Episode:
    database = nl2sql.load_benchmark("packaged").database("scale_models")
    config = nl2sql.Config(react=nl2sql.ReactConfig(max_steps=10))
    return nl2sql.react_sql("How many orders?", database, nl2sql.ScriptedModel(SCRIPT), config)


def test_each_action_has_the_mark_of_how_it_ended(episode: nl2sql.Episode) -> None:
    blocked = blocked_steps(episode.decision_log)
    marks = [(record["action"], *mark(record, blocked)) for record in episode.trace if "action" in record]
    assert marks == [
        ("extract_constraints", "", ""),
        ("generate_sql", "", ""),
        ("validate_sql", "reject", "failed"),
        ("repair_sql", "", ""),
        ("run_sql", "blocked", "blocked"),
        ("validate_sql", "good", "passed"),
        ("validate_constraints", "good", "passed"),
        ("run_sql", "good", "ran"),
        ("finish", "", ""),
    ]


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        ({"error": "no such tool"}, "reject"),
        ({"success": False}, "reject"),
        ({"reflection_result": {"is_acceptable": False}}, "reject"),
        ({"reflection_result": {"is_acceptable": True}}, "good"),
        ("a text", ""),
        ({"rows": []}, ""),
    ],
)
def test_an_observation_says_how_its_action_ended(observation: Any, expected: str) -> None:
    assert mark({"step": 1, "action": "any", "observation": observation}, {0})[0] == expected


def test_the_trace_has_colours_signs_and_sql_in_lines(episode: nl2sql.Episode) -> None:
    page = episode._repr_html_()
    for part in ("✗ validate_sql</span>", "✓ run_sql</span>", "step forced", "step blocked", "step good"):
        assert part in page, part
    assert "\nWHERE status = &#x27;shipped&#x27;" in page and "unknown_table:orders" in page
    assert "<details><summary>" in page and "<details open>" in Shown(episode.to_dict())._repr_html_()


def test_the_style_of_a_trace_stays_within_it() -> None:
    assert style().count("{") == style().count("}")
    outside = style().partition(".nl2sql {\n")[0].splitlines()
    assert all(".nl2sql" in line.partition("{")[0] for line in outside if line.strip())


def test_rows_past_the_first_are_counted_and_markup_is_text(episode: nl2sql.Episode) -> None:
    shown = episode.to_dict() | {"rows": [["<b>"], [None]] * 8, "row_count": 16, "columns": ["<i>"]}
    page = episode_html(shown)
    assert "6 more rows" in page and "<b>" not in page.split("</table>")[0].split("<table>")[1] and "NULL" in page
