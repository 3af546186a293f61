"""The state that flows through the graph: plain data. The runtime context holds model, database and task.

``Workspace`` is the other direction: the tools' own ``State``, filled from the graph's for the length of one node.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from nl2sql.agents.task import State, Task


class ReflectState(TypedDict):
    """The graph's state; every value is JSON-serialisable but for blobs among the rows."""

    question: str  # with its evidence
    schema: str | None  # the schema text that the model is shown
    constraints: dict[str, Any] | None  # of the question
    sql_query: str | None  # None: to be generated; "": the guardrails rejected what came
    raw_sql: str | None  # the model's text behind it
    structure: dict[str, Any] | None  # what validate_constraints says of the query
    execution_result: dict[str, Any] | None
    validation_result: dict[str, Any] | None
    reflection_result: dict[str, Any] | None
    quality_score: int | None
    quality_parts: dict[str, bool]
    suggestions: list[str]  # for the next generation
    iteration: int  # generations so far
    max_iterations: int
    next_action: str
    is_complete: bool
    finish: str
    failure: str | None  # "<where>: <what>" when the episode cannot go on
    attempts: Annotated[list[dict[str, Any]], operator.add]
    trace: Annotated[list[dict[str, Any]], operator.add]
    decision_log: Annotated[list[dict[str, Any]], operator.add]


@dataclass(frozen=True)
class Context:
    """The runtime context: what a node may touch besides the state."""

    task: Task


def initial_state(question: str, max_iterations: int) -> ReflectState:
    return ReflectState(
        question=question,
        schema=None,
        constraints=None,
        sql_query=None,
        raw_sql=None,
        structure=None,
        execution_result=None,
        validation_result=None,
        reflection_result=None,
        quality_score=None,
        quality_parts={},
        suggestions=[],
        iteration=0,
        max_iterations=max_iterations,
        next_action="",
        is_complete=False,
        finish="",
        failure=None,
        attempts=[],
        trace=[],
        decision_log=[],
    )


def workspace(state: ReflectState, task: Task) -> State:
    """The tools' state for one node: its trace and decision log go on where the graph's end."""
    task.schema_text_focus = state["schema"] or task.schema_text_full
    return State(
        task,
        trace=list(state["trace"]),
        decision_log=list(state["decision_log"]),
        last_sql=state["sql_query"] or None,
        last_run=state["execution_result"],
        constraints=state["constraints"],
    )
