"""Structured queries over a data source: written, validated, refined and executed (docs/vizql.md).

``vizql`` is the controller. The planner picks the tables that a question is about, the schema fetch writes their
fields and looks up values; then the graph of ``graph`` runs: query builder, validator, executor, refiner, formatter,
error handler. ``Episode.sql`` is the compiled SQL, ``Episode.raw_sql`` the query as JSON, and ``flags["vizql"]`` has
the query, its version and the errors of each version.

Not covered: table calculations and LOD expressions, which are valid and not executed here; more than one draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import takes_grammars
from nl2sql.agents.task import Task
from nl2sql.agents.vizql import context, drafts
from nl2sql.agents.vizql.grammar import query_grammar
from nl2sql.agents.vizql.graph import RECURSION_LIMIT, check_installed, graph
from nl2sql.agents.vizql.state import Context, initial_state
from nl2sql.config import Config
from nl2sql.interfaces import Grammar, Question, Resources
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import is_request
from nl2sql.vizql.source import DataSource, FieldMetadata
from nl2sql.vizql.values import distinct_texts

__all__ = ["check_installed", "vizql"]
MOST_VALUES = 100  # distinct texts of a column that the grammar lists


def vizql(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer by a structured query. Raises UsageError and DatabaseError as the loop does, also without LangGraph."""
    task = open_task(question, resources, config, shown_example)
    source = context.source_of(task)
    fields = context.linked_fields(task, source)
    here = Context(
        task,
        source,
        fields,
        context.within_budget(task, fields, source),
        context.asked(task, source),
        _grammar(task, source, fields),
        task.examples,
    )
    task.examples = ()  # a prompt for SQL shows no JSON
    values = graph().invoke(initial_state(), {"recursion_limit": RECURSION_LIMIT}, context=here)
    return _episode(task, values)


def shown_example(question: Question) -> tuple[str, str] | None:
    """A few-shot example as the prompt shows it; None where the question has no structured query."""
    query = question.meta.get("vizql")
    if query is None:
        return None
    return question.text.strip(), as_json(query if is_request(query) else {"query": query})


def _grammar(task: Task, source: DataSource, fields: Sequence[FieldMetadata]) -> Grammar | None:
    wanted = task.config.vizql.constrain
    if wanted == "none" or (wanted == "auto" and not takes_grammars(task.resources.model, "json_schema")):
        return None
    values = distinct_texts(source, fields, task.resources.database, most=MOST_VALUES)
    for field in fields:  # of a column with more texts: those that the question names
        if field.fieldCaption not in values and field.dataType == "STRING":
            place = source.table_of(field).lower(), field.column.lower()
            there = {m.value for m in task.values if (m.table.lower(), m.column.lower()) == place}
            values |= {field.fieldCaption: sorted(there)} if there else {}
    return query_grammar(fields, values)


def _episode(task: Task, values: dict[str, Any]) -> Episode:
    """The Episode of the final state: its SQL with the rows, and all that was recorded."""
    attempts, answer = values["attempts"], values["answer"]
    chosen = attempts[answer] if answer is not None else (attempts[-1] if attempts else {})
    sql = str(chosen.get("sql", "")) if answer is not None else ""
    errors: dict[str, list[str]] = {}
    for attempt in attempts:
        errors.setdefault(str(attempt["version"]), []).extend(attempt["errors"])
    said: dict[str, Any] = {
        "query": chosen.get("query"),
        "query_version": chosen.get("version", 0),
        "errors": errors,
        "stages": [attempt["stage"] for attempt in attempts],
    }
    return task.episode(
        "vizql",
        sql,
        raw_sql=drafts.draft_text(chosen["query"]) if chosen.get("query") is not None else "",
        finish=values["finish"],
        error=values["failure"] or values["error"],
        steps=len(values["trace"]),
        trace=values["trace"],
        decision_log=values["decision_log"],
        messages=next((call["messages"] for call in task.calls if call["messages"]), []),
        transcript="",
        flags={"vizql": said},
    )
