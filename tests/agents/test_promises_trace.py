"""What trace, decision log, event sink and the fallback promise (react-loop 7.4 and 8), record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loop_steps import (
    FAILS_IN_ITS_RUN,
    NO_COUNT,
    QUESTION,
    RIGHT,
    UNKNOWN_COLUMN,
    action,
    observations,
    play,
)

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode, summarize_trace
from nl2sql.cli.answer_text import event_text
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Completion, Question
from nl2sql.models.scripted import ScriptedModel

FIRST = ("extract_constraints", "generate_sql")
CHECKS = ("validate_sql", "validate_constraints")
CONSTRAINTS = {"agg": "COUNT", "needs_group_by": False, "needs_order_by": False, "limit": None, "distinct": False}


def entry(step: int, decision: str, reason: str, status: str, **data: Any) -> dict[str, Any]:
    return {"step": step, "decision": decision, "reason": reason, "status": status, "data": data}


def test_the_trace_holds_what_the_model_wrote_and_what_was_done_with_which_arguments(shop: Path) -> None:
    samples = action("get_table_samples", table="orders", n=1)
    thought = f"Thought: I look first.\n{samples}\n"
    episode, _ = play(shop, "extract_constraints", thought, "finish", config={"max_steps": 3, "vanilla": False})
    row = {"order_id": 10, "customer_id": 1, "status": "shipped", "total": 20.0}
    assert episode.trace == [
        {"step": 0, "llm": action("extract_constraints")},
        {"step": 0, "action": "extract_constraints", "args": {}, "observation": CONSTRAINTS},
        {"step": 1, "llm": thought},
        {"step": 1, "action": "get_table_samples", "args": {"table": "orders", "n": 1}, "observation": [row]},
        {"step": 2, "llm": action("finish")},
        {
            "step": 2,
            "action": "finish",
            "args": {},
            "observation": {"error": "blocked: finish needs a successful run_sql first"},
        },
    ]
    assert episode.steps == 3


def test_an_override_is_recorded_with_what_was_asked_and_why(shop: Path) -> None:
    replies = ["finish", "generate_sql", "no idea", "finish", UNKNOWN_COLUMN, "validate_sql", "run_sql", RIGHT]
    episode, _ = play(shop, *replies, config={"max_steps": 5, "vanilla": False})
    due = [
        (0, "extract_constraints", "finish", "constraints_missing"),
        (2, "generate_sql", "finish", "pending_regenerate:clean_reject:no_select"),
        (4, "repair_sql", "run_sql", "pending_repair:unknown_column:state"),
    ]
    assert [record for record in episode.trace if "forced_action" in record] == [
        {"step": step, "forced_action": forced, "requested_action": asked, "reason": why}
        for step, forced, asked, why in due
    ]
    assert [logged for logged in episode.decision_log if logged["status"] == "forced"] == [
        entry(step, forced, why, "forced", requested=asked) for step, forced, asked, why in due
    ]


def test_the_decision_log_says_of_every_step_what_came_of_it_and_why(shop: Path) -> None:
    replies = [*FIRST, "no idea", "generate_sql", UNKNOWN_COLUMN, "run_sql", "validate_sql", "repair_sql", NO_COUNT]
    more = [*CHECKS, "run_sql", "repair_sql", RIGHT, *CHECKS, "run_sql", "finish"]
    episode, _ = play(shop, *replies, *more, config={"max_steps": 14})
    raw, wrong, other = "no idea", f"{UNKNOWN_COLUMN};", f"{NO_COUNT};"
    assert episode.decision_log == [
        entry(0, "extract_constraints", "ok", "accept", **CONSTRAINTS),
        entry(1, "generate_sql", "clean_reject:no_select", "reject", raw_sql=raw),
        entry(2, "generate_sql", "ok", "accept", sql=wrong),
        entry(3, "run_sql", "blocked: run_sql needs validate_sql to pass for the current query first", "blocked"),
        entry(4, "validate_sql", "unknown_column:state", "reject", sql=wrong),
        entry(5, "repair_sql", "ok", "accept", sql=other),
        entry(6, "validate_sql", "ok", "accept", sql=other),
        entry(7, "validate_constraints", "ok", "accept", sql=other),
        entry(8, "run_sql", "intent_mismatch:missing_agg:COUNT", "reject", row_count=1),
        entry(9, "repair_sql", "ok", "accept", sql=f"{RIGHT};"),
        entry(10, "validate_sql", "ok", "accept", sql=f"{RIGHT};"),
        entry(11, "validate_constraints", "ok", "accept", sql=f"{RIGHT};"),
        entry(12, "run_sql", "ok", "accept", row_count=1),
        entry(13, "finish", "ok", "accept"),
    ]
    assert episode.flags["blocked"] == 1


def test_a_format_error_and_a_failed_tool_are_logged_with_their_reasons(shop: Path) -> None:
    replies = ["extract_constraints", "I would run it.", action("get_table_samples", table="x")]
    episode, _ = play(shop, *replies, config={"max_steps": 3, "vanilla": False})
    assert episode.decision_log[1:] == [
        entry(1, "none", "format_error:I would run it.", "blocked"),
        entry(2, "get_table_samples", "unknown_table:x", "reject"),
    ]
    assert episode.flags["format_errors"] == 1
    assert "Observation: format_error:I would run it." in episode.transcript


def test_everything_that_was_refused_is_counted_with_who_refused_it(shop: Path) -> None:
    replies = [*FIRST, "no idea", "generate_sql", UNKNOWN_COLUMN, "validate_sql", "repair_sql", "SELECT * FROM orders"]
    more = [*CHECKS, "repair_sql", NO_COUNT, *CHECKS, "run_sql"]
    episode, _ = play(shop, *replies, *more, config={"max_steps": 11, "vanilla": False})
    assert [tuple(refused.values()) for refused in episode.flags["rejected"]] == [
        (1, "guardrails", "SELECTno idea", "clean_reject:no_select"),
        (3, "validate_sql", f"{UNKNOWN_COLUMN};", "unknown_column:state"),
        (6, "validate_constraints", "SELECT * FROM orders;", "missing_agg:COUNT"),
        (10, "intent_constraints", f"{NO_COUNT};", "missing_agg:COUNT"),
    ]


def test_the_sink_is_given_every_record_and_every_decision_with_its_question(shop: Path) -> None:
    events: list[Any] = []
    replies = ["finish", "generate_sql", UNKNOWN_COLUMN, "validate_sql", "finish", RIGHT]
    episode, _ = play(shop, *replies, config={"max_steps": 4, "vanilla": False}, sink=events.append)
    records = [event for event in events if "decision" not in event]
    assert len(episode.trace) == 10 and records == [{"question": QUESTION, **record} for record in episode.trace]
    decisions = [event for event in events if "decision" in event]
    assert decisions == [{"question": QUESTION, **logged} for logged in episode.decision_log]


def test_finish_gives_the_query_of_the_run_with_its_rows_even_when_a_newer_one_stands(shop: Path) -> None:
    replies = [*FIRST, RIGHT, *CHECKS, "run_sql", "generate_sql", NO_COUNT, "finish"]
    episode, _ = play(shop, *replies)
    (done,) = observations(episode, "finish")
    provenance = {"row_count": 1, "constraints": CONSTRAINTS}
    assert done == {"answer": "[[3]]", "sql": f"{RIGHT};", "provenance": provenance}
    assert (episode.sql, episode.rows, episode.columns) == (f"{RIGHT};", ((3,),), ("COUNT(*)",))
    assert episode.raw_sql == RIGHT and episode.error is None


def test_an_exhausted_loop_asks_once_more_with_the_schema_s_summary(shop: Path) -> None:
    vanilla = " COUNT(*) FROM ORDERS ORDER BY 1 LIMIT 5"
    episode, model = play(shop, *FIRST, NO_COUNT, vanilla, config={"max_steps": 2})
    summary = "customers: customer_id, name, city\norders: order_id, customer_id, status, total"
    assert f"Schema:\n{summary}\n\nQuestion: {QUESTION}\nSQL:" in model.sql_prompts()[-1]
    assert (episode.finish, episode.sql) == ("vanilla", "SELECT COUNT(*) FROM orders ORDER BY 1 LIMIT 5;")
    assert (episode.prefill, episode.raw_sql) == ("SELECT", vanilla)
    assert episode.flags["exhausted_after_success"] is False


@pytest.mark.parametrize(("candidate", "finish", "sql"), [(RIGHT, "last_sql", f"{RIGHT};"), ("no idea", "empty", "")])
def test_a_rejected_fallback_leaves_the_last_query_or_nothing(
    shop: Path, candidate: str, finish: str, sql: str
) -> None:
    episode, _ = play(shop, *FIRST, candidate, "no idea either", config={"max_steps": 2})
    assert (episode.finish, episode.sql) == (finish, sql)
    assert episode.error == (None if sql else "controller: no SQL")


def test_a_last_query_that_fails_is_an_episode_with_the_engine_s_error(shop: Path) -> None:
    episode, _ = play(shop, *FIRST, FAILS_IN_ITS_RUN, config={"max_steps": 2, "vanilla": False})
    assert (episode.finish, episode.error) == ("last_sql", "database: integer overflow")


def test_a_model_that_fails_ends_the_episode_with_what_was_recorded(shop: Path) -> None:
    episode, _ = play(shop, *FIRST, RIGHT, "validate_sql")
    assert episode.finish == "error" and (episode.error or "").startswith("model: scripted model 'scripted' has")
    assert episode.sql == f"{RIGHT};" and [record["step"] for record in episode.trace] == [0, 0, 1, 1, 2, 2]
    assert [call["kind"] for call in episode.calls] == ["act", "act", "sql", "act"]
    assert [call["text"] for call in episode.calls][2] == RIGHT


def seen(name: str, **observation: Any) -> dict[str, Any]:
    return {"step": 0, "action": name, "args": {}, "observation": observation}


@pytest.mark.parametrize(
    ("trace", "flags"),
    [
        ([seen("generate_sql", sql="x")], {"generate_without_constraints"}),
        ([seen("extract_constraints", error="x"), seen("generate_sql", sql="x")], {"generate_without_constraints"}),
        ([seen("extract_constraints", agg=None), seen("generate_sql", sql="x")], set()),
        ([seen("repair_sql", sql="x")], set()),
        ([seen("validate_sql", valid=True), seen("run_sql", success=True)], {"run_without_validate_constraints"}),
        ([seen("validate_constraints", valid=True), seen("run_sql", success=True)], {"run_without_validate"}),
        (
            [
                seen("validate_sql", valid=False),
                seen("validate_constraints", valid=True),
                seen("run_sql", success=True),
            ],
            {"run_without_validate"},
        ),
        (
            [*(seen(check, valid=True) for check in CHECKS), seen("repair_sql", sql="x"), seen("run_sql", error="x")],
            {"run_without_validate", "run_without_validate_constraints"},
        ),
        (
            [
                *(seen(check, valid=True) for check in CHECKS),
                seen("repair_sql", error="x"),
                seen("run_sql", error=""),
            ],
            set(),
        ),
        ([*(seen(check, valid=True) for check in CHECKS), seen("run_sql", success=True), seen("finish")], set()),
        (
            [*(seen(check, valid=True) for check in CHECKS), seen("run_sql", success=False), seen("finish")],
            {"finish_without_run"},
        ),
        (
            [*(seen(c, valid=True) for c in CHECKS), seen("run_sql", success=True), seen("run_sql"), seen("finish")],
            set(),
        ),
        ([seen("finish")], {"finish_without_run"}),
    ],
)
def test_the_compliance_summary_flags_each_violation_alone(trace: list[Any], flags: set[str]) -> None:
    assert {name for name, on in summarize_trace(trace).items() if on} == flags


class Unwell(ScriptedModel):
    """A user's own model: at its last reply it raises what no back end of ours does, or gives no completion."""

    def __init__(self, replies: list[str], *, silent: bool = False) -> None:
        super().__init__(replies)
        self.left, self.silent = len(replies), silent

    def for_episode(self, question_text: str, controller: str) -> ScriptedModel:
        return self

    def generate(self, messages: Any, **options: Any) -> list[Completion]:
        self.left -= 1
        if self.left:
            return super().generate(messages, **options)
        if self.silent:
            return []
        raise ConnectionError("hung up")


@pytest.mark.parametrize("calls", [2, 3, 4])  # a turn, the query within one, the turn behind it
@pytest.mark.parametrize("silent", [True, False])
def test_whatever_a_user_s_model_does_is_data_of_the_episode(shop: Path, calls: int, silent: bool) -> None:
    replies = [action("extract_constraints"), action("generate_sql"), RIGHT, action("finish")][:calls]
    with SqliteDatabase(shop) as database:
        episode = answer(QUESTION, database, Unwell(replies, silent=silent), "react")
    said = "it gave 0 completions where 1 were asked for" if silent else "ConnectionError: hung up"
    assert (episode.error, episode.finish) == (f"model: {said}", "error")
    assert [r["action"] for r in episode.trace if "action" in r] == list(FIRST)[: 1 if calls < 4 else 2]
    assert episode.sql.startswith("SELECT" if calls == 4 else "") and episode.usage.model_calls == calls - 1


class Gone:
    """A user's own database whose runs raise what no database of ours does."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database

    def run(self, sql: str, **limits: Any) -> Any:
        raise OSError("the disk is gone")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


@pytest.mark.parametrize("controller", ["react", "single_shot", "reflect", "candidates"])
def test_whatever_a_user_s_database_raises_is_a_failed_run(shop: Path, controller: str) -> None:
    turns = [action("extract_constraints"), action("generate_sql"), RIGHT, *map(action, CHECKS), action("run_sql")]
    model = ScriptedModel(turns if controller == "react" else [RIGHT], on_exhausted="repeat")
    with SqliteDatabase(shop) as database:
        episode = answer(QUESTION, Gone(database), model, controller, build_config({"react": {"max_steps": 5}}))  # type: ignore[arg-type]
    assert episode.error == "database: OSError: the disk is gone"
    assert episode.sql.startswith("SELECT") and episode.trace and episode.decision_log


def test_records_of_a_user_s_controller_are_shown_whatever_their_keys(shop: Path) -> None:
    def own(question: Question, resources: Any, config: Any) -> Episode:
        trace: list[Any] = [{"llm": "I think"}, {"action": "look"}, {"forced_action": "look"}, {"mine": 1}, "said"]
        return Episode(question, "own", sql=None, trace=trace, decision_log=[{"why": "x"}, "y"])  # type: ignore[arg-type, list-item]

    with SqliteDatabase(shop) as database:
        episode = answer(QUESTION, database, ScriptedModel([]), own)
    assert (episode.error, episode.sql, episode.finish) == (None, "", "empty")
    text = "\n".join(map(event_text, [*episode.trace, *episode.decision_log]))
    assert all(part in text for part in ("I think", "look", "note", '{"mine": 1}', "said", "y")), text
    assert "mine" in episode._repr_html_()
