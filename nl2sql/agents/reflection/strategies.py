"""Another call instead of the same one, for a model that gave the same SQL again after a refinement.

>>> next_strategy([{"sql": "SELECT 1", "strategy": "schema"}], listed=["schema", "sample"])
'sample'

Greedy decoding answers the same prompt with the same query, so each strategy changes something that counts: the part
of the schema that is shown (``schema``), an example of a query that runs (``exemplar``), or the choice among several
sampled candidates (``sample``). All of them ask the question afresh and list what has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nl2sql.agents import prompts
from nl2sql.agents.context import linking
from nl2sql.agents.opening import focus_text
from nl2sql.agents.task import State, guard
from nl2sql.databases.schema import Schema, Table, quote_name
from nl2sql.errors import DatabaseError, one_line
from nl2sql.interfaces import Sampling
from nl2sql.sql.same import same_sql

if TYPE_CHECKING:
    from nl2sql.agents.reflection.state import ReflectState


log = logging.getLogger(__name__)


def next_strategy(attempts: Sequence[dict[str, Any]], listed: Sequence[str]) -> str:
    """The first of the listed strategies that no attempt has used; the last one again once all are used."""
    used = {attempt["strategy"] for attempt in attempts}
    return next((name for name in listed if name not in used), listed[-1])


def by_strategy(state: ReflectState, work: State) -> str:
    """Raw SQL text by the strategy that the state names."""
    return STRATEGIES[state["strategy"]](state, work)


def _other_schema(state: ReflectState, work: State) -> str:
    """For this one call: all tables where a part is shown otherwise; else the half that suits the question best."""
    task = work.task
    partial = task.schema_text_focus != task.schema_text_full
    task.schema_text_focus, _ = focus_text(task, 0 if partial else max(1, len(task.schema.tables) // 2))
    return _afresh(state, work)[0]


def _with_exemplar(state: ReflectState, work: State) -> str:
    return _afresh(state, work, exemplar=exemplar(work))[0]


def _best_sample(state: ReflectState, work: State) -> str:
    """The first sampled candidate that the guardrails accept and that has not failed yet; else the first."""
    task, tried = work.task, [attempt["sql"] for attempt in state["attempts"]]
    config = task.config.reflect
    sampling = Sampling(config.temperature, config.top_p)
    samples = _afresh(state, work, sampling=sampling, n=config.samples)
    for raw in samples:
        sql, reason = guard(task, raw, enabled=task.config.react.guardrails)
        if reason is None and not any(same_sql(sql, other) for other in tried):
            return raw
    return samples[0]


STRATEGIES: dict[str, Callable[[ReflectState, State], str]] = {
    "schema": _other_schema,
    "exemplar": _with_exemplar,
    "sample": _best_sample,
}


def _afresh(state: ReflectState, work: State, *, exemplar: str = "", **options: Any) -> list[str]:
    """Ask the question again, with what has failed; ``repair.guidance`` none leaves the errors out."""
    task = work.task
    blind = task.config.repair.guidance == "none"
    demanded = work.constraints if task.config.react.constraints_gate else None
    messages = prompts.retry_messages(
        task.nlq,
        task.schema_text_focus,
        demanded,
        [
            (attempt["sql"], "" if blind else one_line(attempt["error"], 200))
            for attempt in distinct_attempts(state["attempts"])
        ],
        exemplar,
        task.config.prompts,
    )
    options.setdefault("sampling", task.sampling())
    return task.write_sql(messages, task.config.react.max_new_tokens, **options)


def distinct_attempts(attempts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts without those that repeat an earlier one."""
    kept: list[dict[str, Any]] = []
    for attempt in attempts:
        if not any(same_sql(attempt["sql"], other["sql"]) for other in kept):
            kept.append(attempt)
    return kept


def exemplar(work: State) -> str:
    """A query that runs on this database: the closest fix of the corpus where one is used, else one of its own tables.

    The latter shows the names of the table that suits the question best, joined to a table that it refers to.
    """
    task = work.task
    fix = _stored_fix(work)
    if fix:
        return fix
    ranked = [table for name, _ in linking.rank_tables(task.nlq, task.schema) if (table := task.schema.table(name))]
    for table in ranked:
        sql = _sample_query(table, task.schema)
        if task.resources.database.explain(sql).success:
            return sql
    return ""


def _stored_fix(work: State) -> str:
    from nl2sql.repair.corpus import source_of_question

    task, config = work.task, work.task.config.repair
    if config.guidance != "patterns+corpus":
        return ""
    try:
        entries = task.resources.corpus.search(
            work.last_error or "",
            work.last_sql or "",
            dialect=task.resources.database.dialect,
            limit=1,
            threshold=config.threshold,
            exclude=source_of_question(task.question),
        )
    except DatabaseError as error:  # of the corpus, which an answer can do without
        log.warning("no similar fix: %s", error)
        return ""
    return entries[0].sql if entries else ""


def _sample_query(table: Table, schema: Schema) -> str:
    quote = partial(quote_name, dialect=schema.dialect)
    name = quote(table.name)
    columns = [f"{name}.{quote(column.name)}" for column in table.columns[:3]]
    joined = ""
    for key in table.foreign_keys[:1]:
        other = schema.table(key.ref_table)
        if other is None or other is table or len(key.columns) != len(key.ref_columns):
            continue
        there = quote(other.name)
        on = " AND ".join(
            f"{name}.{quote(own)} = {there}.{quote(ref)}" for own, ref in zip(key.columns, key.ref_columns, strict=True)
        )
        joined = f" JOIN {there} ON {on}"
        columns.append(f"{there}.{quote(other.columns[-1].name)}")
    return f"SELECT {', '.join(columns)} FROM {name}{joined} LIMIT 3"
