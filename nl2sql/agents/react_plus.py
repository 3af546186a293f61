"""What ``react_plus`` adds to the loop: one function for each place where they act.

Each addition has a switch in ``ReactConfig`` that is off in ``react``, where every function here adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nl2sql.agents import repairing, resampling
from nl2sql.agents.prompt_texts import HINT
from nl2sql.agents.task import State, Task
from nl2sql.agents.turns import failed


def opening(question_line: str, task: Task) -> list[str]:
    """``history_order: schema_first``: the history begins with the schema, which all questions of a database share."""
    first = task.config.react.history_order == "schema_first"
    return [f"Schema:\n{task.schema_text_full}\n\n{question_line}"] if first else []


def next_action(state: State) -> str:
    """The step that the policy (2.2) expects next."""
    if state.constraints is None:
        return "extract_constraints"
    if not state.last_sql:
        return "generate_sql"
    if state.last_valid is not True:
        return "validate_sql"
    if state.last_constraints_ok is not True:
        return "validate_constraints"
    return "finish" if state.last_run and state.last_run.get("success") else "run_sql"


def next_step(state: State, requested: str) -> tuple[str, str] | None:
    """The forced ``(action, reason)`` where nothing else is forced: with ``forced_checks`` the next check of a query
    that no check has refused; with ``forced_next`` the next step behind a blocked action."""
    config, last, due = state.task.config.react, state.decision_log[-1:], next_action(state)
    status = last[0]["status"] if last else "reject"
    if config.forced_checks and due in repairing.CHECKS and status != "reject":
        return None if requested == due else (due, f"next_check:{due}")
    if config.forced_next and status == "blocked":
        return None if due in (requested, last[0]["decision"]) else (due, f"blocked_before:{last[0]['decision']}")
    return None


def ends(state: State, action: str, observation: Any) -> bool:
    """``auto_finish``: a run that passes its checks ends the episode."""
    return state.task.config.react.auto_finish and action == "run_sql" and not failed(observation)


def hint(state: State, repeated: bool) -> list[str]:
    """``repeat_hint``: behind an action that gave the same as the last one, what to do instead."""
    return [f"{HINT}{next_action(state)}."] if repeated and state.task.config.react.repeat_hint else []


def best_so_far(state: State) -> str | None:
    """``best_so_far``, with the steps used up: the last query that passed all checks; with ``sure`` the
    likeliest of all that were written; else the current one, where it runs and only steps were missing."""
    task, react = state.task, state.task.config.react
    if not react.best_so_far:
        return None
    likeliest = resampling.best_written(task) if react.sure else None
    return task.best_sql or likeliest or _waiting(state)


def _waiting(state: State) -> str | None:
    sql = state.last_sql
    return sql if sql and not state.candidate_failed and state.task.result_of(sql).success else None


# Of a query that ran: the check's name, the reason that it gives, and why the query is no answer.
CHECKS_AFTER_RUN: tuple[tuple[str, str, Callable[[State], str]], ...] = (
    ("suspicions", "suspicious", lambda state: state.task.suspicion(state.last_sql or "")),  # react.suspicion_repair
    ("resampling", "unlikely", resampling.unlikely),  # react.sure
)
