"""The control: the loop's own ``generate_sql`` prompt, asked once.

Same prompt, same linked schema text, same constraint lines and same model as the loop's first ``generate_sql``, so
that whatever differs in the scores comes from the loop. One call gives both controls: ``Episode.sql`` went through
the guardrails, ``Episode.raw_sql`` is the model's text untouched (no guardrail, not even cleaning); it is
scored behind ``Episode.prefill``, the opened turn that it continues.

With ``samples > 1`` the candidates are sampled and the vote by result decides: candidates that execute are grouped
by their rows (as a multiset), the largest group wins, ties go to the earliest candidate. This is the control at a
loop's own token budget.
"""

from __future__ import annotations

from nl2sql.agents.checks import constraints
from nl2sql.agents.ranking import agreement, as_samples
from nl2sql.agents.record import Episode, EpisodeError, make_episode, own_text
from nl2sql.agents.setup import link, open_task
from nl2sql.agents.task import State, Task
from nl2sql.agents.writing import guard, sql_messages, write_sql
from nl2sql.config import Config
from nl2sql.interfaces import Question, Resources, Sampling


def single_shot(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer with one generation (or the vote of several). Raises UsageError and DatabaseError as the loop does."""
    task = open_task(question, resources, config)
    link(task)
    messages = sql_messages(task, constraints.extract_constraints(question.text))
    shot = config.single_shot
    sampling = Sampling(shot.temperature, shot.top_p) if shot.samples > 1 else None
    raws: list[str] = []
    error: str | None = None
    try:
        raws = write_sql(task, messages, shot.max_new_tokens, sampling=sampling, n=shot.samples)
    except EpisodeError as broken:
        error = str(broken)
    candidates = [(raw, *guard(task, raw, enabled=shot.guardrails)) for raw in raws]
    raw_sql, sql, reason = vote(task, candidates) if candidates else ("", "", None)
    state = State(task)
    for step, raw in enumerate(raws):
        state.record({"step": step, "llm": own_text(task, raw)})
    if reason is not None:
        state.refuse(0, "guardrails", raw_sql, reason)
    if len(candidates) > 1:
        queries = [written for _, written, _ in candidates]
        task.flags["samples"] = as_samples(queries, [task.result_of(written) for written in queries])
    status = "reject" if reason or error else "accept"
    state.decide(0, "generate_sql", reason or error or "ok", status, {"candidates": len(candidates)})
    return make_episode(
        task,
        "single_shot",
        sql,
        raw_sql=raw_sql,
        finish="answered" if sql else ("empty" if raws else "error"),
        error=error,
        why_none=f"model: {reason}",
        steps=1,
        trace=state.trace,
        decision_log=state.decision_log,
        messages=messages,
        transcript=raw_sql,
    )


def vote(task: Task, candidates: list[tuple[str, str, str | None]]) -> tuple[str, str, str | None]:
    """The candidate ``(raw, sql, reject reason)`` whose result most candidates share; else the first accepted."""
    if len(candidates) == 1:
        return candidates[0]
    votes = agreement([task.result_of(sql) for _, sql, _ in candidates])
    if any(votes):
        return candidates[votes.index(max(votes))]
    return next((c for c in candidates if c[2] is None), candidates[0])
