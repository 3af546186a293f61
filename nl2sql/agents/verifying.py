"""The verifier inside the loop: a query that ran and is likelier wrong is repaired by one that was not tried yet.

    react.verify           after run_sql: P(right) below it is a failure, which forces repair_sql
    react.repair_samples   repair_sql draws so many queries under another order of the tables

A model that is asked to repair repeats itself; under another order of the tables it writes other queries. Of all that
were written in the episode and give other rows than those that were tried, the likeliest right (``checks.verifier``)
is the repair. After ``react.repair_views`` repairs the likeliest of all is taken as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nl2sql.agents.opening import other_orders
from nl2sql.agents.ranking import rank
from nl2sql.agents.repairing import refused_candidates
from nl2sql.agents.task import Draft, State, Task, guard
from nl2sql.agents.voting import same_rows, tells
from nl2sql.interfaces import Sampling


def unlikely(state: State) -> str:
    """Why the current query, which ran, is held for wrong; "" where it is not, and after the last view: what is left is
    the best there is."""
    react, task, sql = state.task.config.react, state.task, state.last_sql or ""
    if not (react.verify or react.sure) or task.flags.get("repair_views", 0) >= react.repair_views:
        return ""
    _note_current(state)
    doubt = _model_doubts(task, sql) if react.sure else _verifier_doubts(task, sql)
    if doubt and not react.repair_samples:  # else they count themselves
        task.count("repair_views")
    return doubt


def _verifier_doubts(task: Task, sql: str) -> str:
    sure, least = how_sure(task, [sql])[0], task.config.react.verify
    return "" if sure >= least else f"P(right)={sure:.2f} is below {least:g}"


def _model_doubts(task: Task, sql: str) -> str:
    """Whether the model itself held the query for unlikely when it wrote it, or what it gives is suspicious."""
    logprob, least = task.candidate(sql).logprob, task.config.react.sure
    if logprob is not None and math.exp(logprob) < least:
        return f"P(query)={math.exp(logprob):.2f} is below {least:g}"
    return ", ".join(task.suspected_by(sql))


def chooses(task: Task) -> bool:
    """Whether ``another`` makes the repair: with ``repair_samples``, or once ``verify`` alone has used up its views."""
    react = task.config.react
    return react.repair_samples > 0 or (react.verify > 0 and task.flags.get("repair_views", 0) >= react.repair_views)


def another(state: State) -> str:
    """A query that was not tried, as a raw text: the likeliest right of all that were written; else the best of those
    that were tried. "" where no query runs and no other was written."""
    react, task = state.task.config.react, state.task
    _note_current(state)
    views = task.flags.get("repair_views", 0)
    if views < react.repair_views:
        task.count("repair_views")
        for draft in _written(state, views):
            _note(state, draft)
    tried = {sql for sql, _ in refused_candidates(state.trace)} | {state.last_sql or ""}
    written = _noted(task)
    new = [sql for sql in written if sql not in tried]
    runs = [sql for sql in written if task.result_of(sql).success]
    if not runs:
        return task.candidate(new[0]).raw_sql if new else ""
    queries = list(tried | set(new))
    rows = dict(zip(queries, same_rows([task.result_of(sql) for sql in queries]), strict=True))
    known = {rows[sql] for sql in tried}
    other = [sql for sql in new if sql in runs and rows[sql] not in known]
    last = views + 1 >= react.repair_views
    return task.candidate(_likeliest(task, runs if last or not other else other)).raw_sql


def best_written(task: Task) -> str | None:
    """The likeliest right of all queries that were written and run; None where none runs."""
    runs = [sql for sql in _noted(task) if task.result_of(sql).success]
    return _likeliest(task, runs) if runs else None


def how_sure(task: Task, queries: Sequence[str]) -> list[float]:
    """P(right) of each query that ran, from 0 to 1; each is asked about once. Raises EpisodeFailed."""
    new = [sql for sql in dict.fromkeys(queries) if task.candidate(sql).sure is None]
    if new:
        for sql, read_back in zip(new, task.read_back(new), strict=True):
            known = task.candidate(sql)
            known.sure = task.probability_right(sql, known.logprob, read_back)
    return [task.candidate(sql).sure or 0.0 for sql in queries]


def _written(state: State, views: int) -> list[Draft]:
    """The queries of one more view: its greedy answer and sampled ones; sampled ones where there is no other order."""
    task, config = state.task, state.task.config
    samples, limit = config.react.repair_samples or 1, config.react.max_new_tokens
    orders = other_orders(task, views + 1)
    messages = task.sql_messages(state.constraints, orders[views] if views < len(orders) else None)
    written = task.complete_sql(messages, limit, n=1) if views < len(orders) else []
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
    """A draft that the guardrails accept is a candidate; of several writings the likeliest is kept."""
    sql, reason = guard(state.task, draft.raw_sql, enabled=state.task.config.react.guardrails)
    if reason is None:
        known, logprob = state.task.candidate(sql), draft.completion.logprob
        if not known.steps or _known(logprob) > _known(known.logprob):
            known.raw_sql, known.logprob, known.sure = draft.raw_sql, logprob, None
        known.steps.append(_step(state))


def _step(state: State) -> int:
    return int(state.trace[-1]["step"]) if state.trace else 0


def _known(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob


def _likeliest(task: Task, queries: Sequence[str]) -> str:
    if task.config.react.sure:
        return _ranked(task, queries)
    sure = dict(zip(queries, how_sure(task, queries), strict=True))
    return max(queries, key=sure.__getitem__)


def _ranked(task: Task, queries: Sequence[str]) -> str:
    """The best of ``queries`` by the candidates' own rule: likelihood, votes and suspicions."""
    results = [task.result_of(sql) for sql in queries]
    entries = [task.candidate(sql) for sql in queries]
    for one, result in zip(entries, results, strict=True):
        one.suspected = task.suspected_by(one.sql)
        likely = None if one.logprob is None else math.exp(one.logprob)
        one.parts |= {"executes": float(result.success), "rows": float(tells(result)), "probability": likely}
    return rank(entries, results, task.config.candidates)[0].sql
