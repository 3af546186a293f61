"""Resampling in ``react_plus``: a query that its model held for unlikely is written again, once.

    react.sure             after run_sql: a lower probability of the query, or a suspicion, is a failure
    react.repair_samples   repair_sql then draws so many queries under another order of the tables

A model that is asked to repair repeats itself; under another order of the tables it writes other
queries. The best of all that were written, by likelihood, votes and suspicions, is the repair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nl2sql.agents.opening import other_orders
from nl2sql.agents.ranking import rank
from nl2sql.agents.repairing import refused_candidates
from nl2sql.agents.task import Draft, State, Task, guard
from nl2sql.agents.voting import tells
from nl2sql.interfaces import Sampling

RESAMPLED = "resampled"  # the episode's flag


def unlikely(state: State) -> str:
    """Why the current query, which ran, is doubted; "" where it is not, and once it was written again."""
    react, task, sql = state.task.config.react, state.task, state.last_sql or ""
    if not react.sure or RESAMPLED in task.flags:
        return ""
    _note_current(state)
    logprob = task.candidate(sql).logprob
    if logprob is not None and math.exp(logprob) < react.sure:
        doubt = f"P(query)={math.exp(logprob):.2f} is below {react.sure:g}"
    else:
        doubt = ", ".join(task.suspected_by(sql))
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
    if best := best_written(task):
        return task.candidate(best).raw_sql
    tried = {sql for sql, _ in refused_candidates(state.trace)} | {state.last_sql or ""}
    return next((task.candidate(sql).raw_sql for sql in _noted(task) if sql not in tried), "")


def best_written(task: Task) -> str | None:
    """The best of the noted queries that run, by the candidates' own rule; None where none runs."""
    runs = [sql for sql in _noted(task) if task.result_of(sql).success]
    if not runs:
        return None
    results, entries = [task.result_of(sql) for sql in runs], [task.candidate(sql) for sql in runs]
    for one, result in zip(entries, results, strict=True):
        one.suspected = task.suspected_by(one.sql)
        likely = None if one.logprob is None else math.exp(one.logprob)
        one.parts |= {"executes": 1.0, "rows": float(tells(result)), "probability": likely}
    return rank(entries, results, task.config.candidates)[0].sql


def _written(state: State) -> Sequence[Draft]:
    """One greedy answer under another order of the tables, if there is one, and sampled ones."""
    task, config = state.task, state.task.config
    samples, limit = config.react.repair_samples, config.react.max_new_tokens
    orders = other_orders(task, 1)
    messages = task.sql_messages(state.constraints, orders[0] if orders else None)
    written = task.complete_sql(messages, limit, n=1) if orders else []
    if left := samples - len(written):
        sampling = Sampling(config.candidates.temperature, config.candidates.top_p)
        written += task.complete_sql(messages, limit, sampling=sampling, n=left)
    return written


def _noted(task: Task) -> list[str]:
    """The queries that a choice is made among, in the order of writing."""
    return [known.sql for known in task.candidates.values() if known.steps]


def _note_current(state: State) -> None:
    current = state.task.candidate(state.last_sql or "")
    if current.sql and not current.steps:
        current.steps.append(_step(state))
        if draft := state.task.drafts.get(current.raw_sql):
            current.logprob = draft.completion.logprob


def _note(state: State, draft: Draft) -> None:
    """A draft that the guardrails accept is a candidate; of several writings the likeliest counts."""
    sql, reason = guard(state.task, draft.raw_sql, enabled=state.task.config.react.guardrails)
    if reason is None:
        known, logprob = state.task.candidate(sql), draft.completion.logprob
        if not known.steps or _known(logprob) > _known(known.logprob):
            known.raw_sql, known.logprob = draft.raw_sql, logprob
        known.steps.append(_step(state))


def _step(state: State) -> int:
    return int(state.trace[-1]["step"]) if state.trace else 0


def _known(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob
