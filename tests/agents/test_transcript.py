"""An episode as text, and what is counted of its overrides and repairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import repair_counts
from nl2sql.cli.answer_text import MOST_LINES, event_text
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.models.scripted import ScriptedModel

REPLIES = [
    "Thought: how many?\nAction: extract_constraints[{}]",
    "Action: generate_sql[{}]",
    "SELECT COUNT(*) FROM orders WHERE stat = 'shipped'",
    "Action: validate_sql[{}]",
    "Action: run_sql[{}]",  # overridden: a repair is due
    "SELECT COUNT(*) FROM orders WHERE status = 'shipped'",
    "Action: repair_sql[{}]",  # asked for
    "DROP TABLE orders",
]
QUESTION = "How many orders were shipped?"


def test_a_transcript_has_thought_action_override_and_why(shop: Path) -> None:
    heard: list[dict[str, Any]] = []
    with SqliteDatabase(shop) as database:
        episode = answer(QUESTION, database, ScriptedModel(REPLIES), sink=lambda event: heard.append(dict(event)))
    text = "\n".join(map(event_text, heard))
    wanted = [
        "step 0  | model      Thought: how many?",
        "        |            Action: extract_constraints[{}]",
        "step 2  | reject     validate_sql: unknown_column:stat",
        "step 2  | validate_sql",
        "step 3  | forced     run_sql -> repair_sql: pending_repair:unknown_column:stat",
        "step 3  | accept     repair_sql: ok",
        "step 4  | reject     repair_sql: clean_reject:",
    ]
    places = [text.find(line) for line in wanted]
    assert -1 not in places and places == sorted(places), text
    of_log = [event for event in heard if "decision" in event]
    assert [{k: v for k, v in event.items() if k != "question"} for event in of_log] == episode.decision_log
    assert len(heard) == len(episode.trace) + len(episode.decision_log)


def test_overrides_and_repairs_are_counted_by_who_wanted_them(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        episode = answer(QUESTION, database, ScriptedModel(REPLIES))
    forced = sum("forced_action" in record for record in episode.trace)
    counts = repair_counts(episode.trace)
    assert counts["overrides"] == forced and counts["repairs_forced"] == 1
    assert counts["repairs_asked"] == 1 and counts["repairs_accepted"] == 1
    assert {name: episode.flags[name] for name in counts} == counts


@pytest.mark.parametrize(
    ("event", "shown", "hidden"),
    [
        ({"step": 1, "llm": "a\x1b[2Jb"}, "a\\x1b[2Jb", "\x1b"),
        ({"step": 1, "llm": "\n".join(map(str, range(99)))}, f"{99 - MOST_LINES} more lines", "\n98"),
    ],
)
def test_no_text_drives_or_floods_the_terminal(event: dict[str, Any], shown: str, hidden: str) -> None:
    text = event_text(event)
    assert shown in text and hidden not in text
