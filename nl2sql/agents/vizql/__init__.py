"""Structured queries over a data source: written, validated, refined and executed (docs/vizql.md).

``vizql`` is the controller. The planner picks the tables that a question is about, the schema fetch writes their
fields and looks up values (``state``); then the graph runs, as the specification draws it: query builder -> validator
-> executor -> formatter, with the refiner back to the validator, and the error handler (``nodes``). ``Episode.sql`` is
the compiled SQL, ``Episode.raw_sql`` the query as JSON, and ``flags["vizql"]`` has the query, its version and the
errors of each version.

Not covered: table calculations and LOD expressions, which are valid and not executed here; more than one draft.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import takes_grammars
from nl2sql.agents.state_graph import as_node, check_langgraph
from nl2sql.agents.task import Task
from nl2sql.agents.vizql import drafts, nodes, state
from nl2sql.agents.vizql.grammar import query_grammar
from nl2sql.agents.vizql.state import Context, VizqlState, initial_state, work_of
from nl2sql.config import Config
from nl2sql.interfaces import Grammar, Question, Resources
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import is_request
from nl2sql.vizql.source import DataSource, FieldMetadata
from nl2sql.vizql.values import distinct_texts

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["check_installed", "vizql"]
MOST_VALUES = 100  # distinct texts of a column that the grammar lists
RECURSION_LIMIT = 18  # validator, executor, refiner for each of four versions; builder and end
_AFTER: dict[Hashable, str] = {
    "execute": "executor",
    "refine": "refiner",
    "format": "formatter",
    "error_handler": "error_handler",
}


def vizql(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer by a structured query. Raises UsageError and DatabaseError as the loop does, also without LangGraph."""
    task = open_task(question, resources, config, shown_example)
    source = state.source_of(task)
    fields = state.linked_fields(task, source)
    here = Context(
        task,
        source,
        fields,
        state.within_budget(task, fields, source),
        state.asked(task, source),
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


# ------------------------------------------------------------------------------------------- the graph on LangGraph


@functools.cache
def graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The compiled graph; any number of threads may run it at once. Raises UsageError without LangGraph."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    drawn = StateGraph(VizqlState, context_schema=Context)
    for name in ("query_builder", "validator", "executor", "refiner", "formatter", "error_handler"):
        drawn.add_node(name, as_node(getattr(nodes, name), work_of))

    def after_validation(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_validation(state, runtime.context.task.config.vizql)

    def after_execution(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_execution(state, runtime.context.task.config.vizql)

    drawn.add_edge(START, "query_builder")
    drawn.add_edge("query_builder", "validator")
    drawn.add_conditional_edges("validator", after_validation, _AFTER)
    drawn.add_conditional_edges("executor", after_execution, _AFTER)
    drawn.add_edge("refiner", "validator")
    drawn.add_edge("formatter", END)
    drawn.add_edge("error_handler", END)
    return drawn.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    check_langgraph("vizql")
