"""What gates, overrides and the state variables promise: react-loop 2.3, 6 and 7.3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loop_steps import (
    FAILS_IN_ITS_RUN,
    NO_COUNT,
    OTHER,
    RIGHT,
    UNKNOWN_COLUMN,
    action,
    forced,
    observations,
    play,
)

from nl2sql.agents.react import parse_action

FIRST = ("extract_constraints", "generate_sql")
CHECKS = ("validate_sql", "validate_constraints")
LONG = {"max_steps": 14}


class StateSeen:
    """A gate that blocks nothing and keeps a state variable as it is before every action that no gate blocks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, Any]] = []

    def __call__(self, state: Any, action: str, args: Any) -> None:
        self.seen.append((action, getattr(state, self.name)))


@pytest.mark.parametrize(("done", "missing"), [CHECKS, CHECKS[::-1]])
def test_run_sql_needs_each_of_the_two_validations(shop: Path, done: str, missing: str) -> None:
    episode, _ = play(shop, *FIRST, RIGHT, done, "run_sql", missing, "run_sql", "finish", config=LONG)
    blocked, ran = observations(episode, "run_sql")
    assert blocked == {"error": f"blocked: run_sql needs {missing} to pass for the current query first"}
    assert ran["success"] is True and episode.finish == "finish"


@pytest.mark.parametrize(("again", "missing"), [CHECKS, CHECKS[::-1]])
def test_a_new_candidate_voids_both_validations(shop: Path, again: str, missing: str) -> None:
    replies = [*FIRST, RIGHT, *CHECKS, "generate_sql", OTHER, again, "run_sql", missing, "run_sql", "finish"]
    episode, _ = play(shop, *replies, config=LONG)
    assert "error" in observations(episode, "run_sql")[0]
    assert episode.finish == "finish" and episode.sql == f"{OTHER};"


def test_finish_needs_a_run_that_succeeded_not_only_one_that_was_tried(shop: Path) -> None:
    replies = [
        *FIRST,
        FAILS_IN_ITS_RUN,
        *CHECKS,
        "run_sql",
        "repair_sql",
        RIGHT,
        "finish",
        *CHECKS,
        "run_sql",
        "finish",
    ]
    episode, _ = play(shop, *replies, config=LONG)
    refused, done = observations(episode, "finish")
    assert refused == {"error": "blocked: finish needs a successful run_sql first"}
    assert done["sql"] == f"{RIGHT};" and episode.finish == "finish"


def test_finish_after_an_intent_mismatch_is_blocked(shop: Path) -> None:
    replies = [*FIRST, NO_COUNT, *CHECKS, "run_sql", "repair_sql", RIGHT, "finish"]
    episode, _ = play(shop, *replies, config={"max_steps": 7, "vanilla": False})
    assert observations(episode, "finish") == [{"error": "blocked: finish needs a successful run_sql first"}]
    assert episode.finish == "last_sql"


@pytest.mark.parametrize("candidate", [UNKNOWN_COLUMN, "SELECT * FROM orders"])
def test_a_validation_that_failed_does_not_let_a_run_through(shop: Path, candidate: str) -> None:
    config = {"max_steps": 5, "vanilla": False, "repair": False}
    episode, _ = play(shop, *FIRST, candidate, *CHECKS, "run_sql", config=config)
    (blocked,) = observations(episode, "run_sql")
    assert blocked["error"].startswith("blocked: run_sql needs validate_")


def test_a_gate_that_is_switched_off_leaves_the_others_on(shop: Path) -> None:
    config = {"max_steps": 4, "vanilla": False, "finish_gate": False}
    episode, _ = play(shop, *FIRST, RIGHT, "run_sql", "finish", config=config)
    assert "blocked: run_sql needs validate_sql" in observations(episode, "run_sql")[0]["error"]
    assert episode.finish == "finish"


def test_finish_looks_at_the_last_run_not_at_one_that_once_succeeded(shop: Path) -> None:
    replies = [*FIRST, RIGHT, *CHECKS, "run_sql", "generate_sql", FAILS_IN_ITS_RUN, *CHECKS, "run_sql"]
    episode, _ = play(shop, *replies, "repair_sql", OTHER, "finish", config={"max_steps": 11, "vanilla": False})
    assert [ran["success"] for ran in observations(episode, "run_sql")] == [True, False]
    assert observations(episode, "finish") == [{"error": "blocked: finish needs a successful run_sql first"}]


def test_the_intent_gate_refuses_what_both_validations_pass(shop: Path) -> None:
    replies = [*FIRST, NO_COUNT, *CHECKS, "run_sql", "finish", RIGHT, *CHECKS, "run_sql", "finish"]
    episode, _ = play(shop, *replies, config=LONG)
    first, second = observations(episode, "run_sql")
    assert (first["success"], first["error"]) == (False, "intent_mismatch:missing_agg:COUNT")
    assert second["success"] is True and forced(episode) == ["finish->repair_sql"]
    assert episode.sql == f"{RIGHT};"
    refused = {"step": 4, "by": "intent_constraints", "sql": f"{NO_COUNT};", "reason": "missing_agg:COUNT"}
    assert episode.flags["rejected"] == [refused]


@pytest.mark.parametrize("budget", [1, 2])
def test_the_budget_of_regenerations_starts_again_with_an_accepted_candidate(shop: Path, budget: int) -> None:
    junk = ["no idea"] * (budget + 1)
    replies = [*FIRST, *(reply for text in junk for reply in (text, "finish"))]
    again = ["generate_sql", RIGHT, "generate_sql", *(reply for text in junk for reply in (text, "finish"))]
    config = LONG | {"max_steps": 20, "max_clean_reject_retries": budget, "vanilla": False}
    episode, _ = play(shop, *replies, *again, config=config)
    assert forced(episode) == ["finish->generate_sql"] * budget * 2


def test_a_rejected_repair_is_regenerated_once_and_then_repaired_again(shop: Path) -> None:
    replies = [*FIRST, UNKNOWN_COLUMN, "validate_sql", "repair_sql", "no idea", "finish", "none", "finish", RIGHT]
    episode, model = play(shop, *replies, *CHECKS, "run_sql", "finish", config=LONG)
    assert forced(episode) == ["finish->generate_sql", "finish->repair_sql"] and episode.finish == "finish"
    assert f"{UNKNOWN_COLUMN};\n" in model.sql_prompts()[-1] and "unknown_column:state" in model.sql_prompts()[-1]


def test_a_run_that_failed_says_nothing_of_another_query(shop: Path) -> None:
    """What is rejected after a repair demands no repair for the failure that the repair has mended."""
    failed_run = [*FIRST, FAILS_IN_ITS_RUN, *CHECKS, "run_sql", "repair_sql", RIGHT]
    replies = [*failed_run, "generate_sql", "no idea", "generate_sql", "none", "finish"]
    episode, _ = play(shop, *replies, config=LONG | {"max_steps": 9, "vanilla": False})
    assert forced(episode) == [] and observations(episode, "finish")[0]["error"].startswith("blocked")


def test_a_run_that_failed_is_told_in_the_engine_s_words_whatever_the_question_demands(shop: Path) -> None:
    lacking = FAILS_IN_ITS_RUN.replace("COUNT(*)", "status")
    config = LONG | {"constraints_gate": False, "vanilla": False}
    episode, _ = play(shop, *FIRST, lacking, *CHECKS, "run_sql", "finish", config=config | {"max_steps": 6})
    assert [seen["error"] for seen in observations(episode, "run_sql")] == ["integer overflow"]
    assert episode.flags["rejected"] == []


def test_the_last_error_is_set_by_every_failure_and_cleared_by_an_accepted_candidate(shop: Path) -> None:
    watch = StateSeen("last_error")
    replies = [*FIRST, "no idea", "generate_sql", UNKNOWN_COLUMN, "validate_sql", "repair_sql", "SELECT * FROM orders"]
    more = [*CHECKS, "repair_sql", FAILS_IN_ITS_RUN, *CHECKS, "run_sql", "repair_sql", RIGHT, "get_schema"]
    play(shop, *replies, *more, config=LONG | {"vanilla": False}, gates={"watch": watch})
    assert watch.seen[:2] == [("extract_constraints", None), ("generate_sql", None)]
    assert watch.seen[2:5] == [
        ("generate_sql", "clean_reject:no_select"),
        ("validate_sql", None),
        ("repair_sql", "unknown_column:state"),
    ]
    assert watch.seen[5:8] == [
        ("validate_sql", None),
        ("validate_constraints", None),
        ("repair_sql", "missing_agg:COUNT"),
    ]
    assert watch.seen[11] == ("repair_sql", "integer overflow") and watch.seen[12] == ("get_schema", None)


def test_an_accepted_candidate_clears_both_pending_flags(shop: Path) -> None:
    repair, regenerate = StateSeen("pending_repair_error"), StateSeen("pending_force_generate")
    replies = [*FIRST, "no idea", "generate_sql", UNKNOWN_COLUMN, "validate_sql", "repair_sql", RIGHT, "get_schema"]
    gates = {"repair": repair, "regenerate": regenerate}
    play(shop, *replies, config={"max_steps": 6, "vanilla": False}, gates=gates)
    assert [value for _, value in regenerate.seen] == [None, None, "clean_reject:no_select", *[None] * 3]
    assert [value for _, value in repair.seen] == [*[None] * 4, "unknown_column:state", None]


@pytest.mark.parametrize("tool", [*CHECKS, "run_sql"])
def test_what_checks_or_runs_a_query_is_blocked_without_one_and_demands_no_repair(shop: Path, tool: str) -> None:
    episode, _ = play(
        shop, "extract_constraints", tool, "generate_sql", RIGHT, config={"max_steps": 3, "vanilla": False}
    )
    assert observations(episode, tool) == [{"error": f"blocked: {tool} needs a query; use generate_sql first"}]
    assert forced(episode) == []


def test_an_unknown_tool_is_answered_with_the_ten_that_there_are(shop: Path) -> None:
    episode, _ = play(shop, "extract_constraints", action("look_up"), config={"max_steps": 2, "vanilla": False})
    tools = "get_schema, link_schema, extract_constraints, generate_sql, validate_sql, validate_constraints, run_sql"
    wanted = f"unknown_tool:look_up; tools: {tools}, repair_sql, get_table_samples, finish"
    assert observations(episode, "look_up") == [{"error": wanted}]


@pytest.mark.parametrize(
    ("text", "tool", "excerpt"),
    [
        ('Action: run_sql[{"a": 1}', "", 'Action: run_sql[{"a": 1}'),
        ("Action: run_sql[{}\nObservation", "", "Action: run_sql[{} Observation"),
        ("Action: finish[{}]\nAction: run_sql[{}", "finish", ""),
        ("Action: finish[{}]\nAction: run_sql[{}]", "run_sql", ""),
        ("Action: run_sql[3]", "", "Action: run_sql[3]"),
        ("I would run it.", "", "I would run it."),
        ("", "", "nothing"),
    ],
)
def test_an_action_is_well_formed_or_an_error_that_shows_it(text: str, tool: str, excerpt: str) -> None:
    assert parse_action(text) == (tool, {}, excerpt)


def test_an_overridden_action_runs_without_the_arguments_that_were_meant_for_another(shop: Path) -> None:
    wanted = action("get_table_samples", table="orders")
    episode, model = play(shop, wanted, "finish", config={"max_steps": 2, "vanilla": False})
    assert [record["args"] for record in episode.trace if record.get("action") == "extract_constraints"] == [{}]
    assert f"{wanted}\nAction: extract_constraints[{{}}]\nObservation: " in model.asked[1]["prefill"]


@pytest.mark.parametrize("name", ["explain", "strip_unasked", "native_tools"])  # switches that are off
def test_a_user_s_gate_is_asked_whatever_its_name(shop: Path, name: str) -> None:
    replies = [*FIRST, RIGHT, *CHECKS, "run_sql"]
    gates = {name: lambda state, action, args: "not today" if action == "run_sql" else None}
    episode, _ = play(shop, *replies, config={"max_steps": 5, "vanilla": False}, gates=gates)
    assert observations(episode, "run_sql") == [{"error": "not today"}]
