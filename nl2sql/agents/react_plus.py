"""What ``react_plus`` adds to the loop: one function for each place where it acts.

Each addition has a switch in ``ReactConfig`` that is off in ``react``, where every function here adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nl2sql.agents import repairing
from nl2sql.agents.prompts import HINT
from nl2sql.agents.ranking import Candidate, rank, suspected_by, tells
from nl2sql.agents.record import failed
from nl2sql.agents.setup import other_orders
from nl2sql.agents.task import State, Task
from nl2sql.agents.writing import Draft, complete_sql, guard, sql_messages
from nl2sql.interfaces import Sampling


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


def hint(state: State, action: str, args: Mapping[str, Any], observation: Any) -> list[str]:
    """``repeat_hint``: behind an action that gives the same as the last one of the trace, what to do instead."""
    last: dict[str, Any] = next((record for record in reversed(state.trace) if "action" in record), {})
    repeated = (last.get("action"), last.get("args"), last.get("observation")) == (action, args, observation)
    return [f"{HINT}{next_action(state)}."] if repeated and state.task.config.react.repeat_hint else []


def best_so_far(state: State) -> str | None:
    """``best_so_far``, with the steps used up: the last query that passed all checks; with ``confident_at`` the
    likeliest of all that were written; else the current one, where it runs and only steps were missing."""
    task, sql = state.task, state.last_sql
    if not task.config.react.best_so_far:
        return None
    if best := task.best_sql or (_likeliest(task) if task.config.react.confident_at else None):
        return best
    return sql if sql and not state.candidate_failed and task.result_of(sql).success else None


# ----------------------------------------------------------------------------------------- the loop's own doubt
# A model that is asked to repair repeats itself; under another order of the tables it writes other queries. Once an
# episode, ``repair_samples`` of them are written where the model held its query for unlikely (``confident_at``) or a
# repair is due. The best of all, by the candidates' own rule (``ranking.rank``), is the repair.

RESAMPLED = "resampled"  # the episode's flag


def unlikely(state: State) -> str:
    """Why the current query, which ran, is doubted: its model gave it a probability below ``react.confident_at``, or it
    is suspicious; "" where it is not, and once others were written."""
    react, task, sql = state.task.config.react, state.task, state.last_sql or ""
    if not react.confident_at or RESAMPLED in task.flags:
        return ""
    p_query = _p_query(_note_current(state))
    if p_query is not None and p_query < react.confident_at:
        doubt = f"P(query)={p_query:.2f} is below {react.confident_at:g}"
    else:
        doubt = ", ".join(suspected_by(task, sql))
    if doubt and not react.repair_samples:  # else ``another`` counts
        task.count(RESAMPLED)
    return doubt


def another(state: State) -> str:
    """The best of all queries that were written and run, as a raw text; new ones are written at the first call.

    Where none runs, one that was not tried; "" without any, and with ``repair_samples`` 0.
    """
    task = state.task
    if not task.config.react.repair_samples:
        return ""
    _note_current(state)
    if RESAMPLED not in task.flags:
        task.count(RESAMPLED)
        for draft in _written(state):
            _note(state, draft)
    if best := _likeliest(task):
        return task.candidate(best).raw_sql
    tried = {sql for sql, _ in repairing.refused_candidates(state.trace)} | {state.last_sql or ""}
    return next((candidate.raw_sql for candidate in _choices(task) if candidate.sql not in tried), "")


def _written(state: State) -> list[Draft]:
    """One greedy answer under another order of the tables, where there is one, and sampled ones."""
    task, config = state.task, state.task.config
    orders = other_orders(task, 1)
    messages = sql_messages(task, state.constraints, orders[0] if orders else None)
    limit = config.react.max_new_tokens
    written = complete_sql(task, messages, limit, n=1) if orders else []
    if left := config.react.repair_samples - len(written):
        sampling = Sampling(config.candidates.temperature, config.candidates.top_p)
        written += complete_sql(task, messages, limit, sampling=sampling, n=left)
    return written


def _likeliest(task: Task) -> str | None:
    """The best of the noted queries that run, by ``config.candidates``; None where none runs."""
    entries = [candidate for candidate in _choices(task) if task.result_of(candidate.sql).success]
    results = [task.result_of(candidate.sql) for candidate in entries]
    for candidate, result in zip(entries, results, strict=True):
        candidate.suspected = suspected_by(task, candidate.sql)
        candidate.parts |= {"executes": 1.0, "rows": float(tells(result)), "probability": _p_query(candidate)}
    return rank(entries, results, task.config.candidates)[0].sql if entries else None


def _choices(task: Task) -> list[Candidate]:
    """The queries that a choice is made among, in the order of writing."""
    return [candidate for candidate in task.candidates.values() if candidate.steps]


def _note_current(state: State) -> Candidate:
    current = state.task.candidate(state.last_sql or "")
    if current.sql and not current.steps:
        current.steps.append(_step(state))
        if draft := state.task.drafts.get(current.raw_sql):
            current.logprob = draft.completion.logprob
    return current


def _note(state: State, draft: Draft) -> None:
    """A draft that the guardrails accept is a candidate; of several writings the likeliest counts."""
    sql, reason = guard(state.task, draft.raw_sql, enabled=state.task.config.react.guardrails)
    if reason is None:
        candidate, logprob = state.task.candidate(sql), draft.completion.logprob
        if not candidate.steps or (logprob is not None and (candidate.logprob is None or logprob > candidate.logprob)):
            candidate.raw_sql, candidate.logprob = draft.raw_sql, logprob
        candidate.steps.append(_step(state))


def _step(state: State) -> int:
    return int(state.trace[-1]["step"]) if state.trace else 0


def _p_query(candidate: Candidate) -> float | None:
    return None if candidate.logprob is None else math.exp(candidate.logprob)
