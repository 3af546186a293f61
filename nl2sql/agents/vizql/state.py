"""The state that flows through the graph: plain data. The context holds what a node may touch besides it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from nl2sql.agents.task import State, Task
from nl2sql.interfaces import Grammar
from nl2sql.vizql.source import DataSource, FieldMetadata
from nl2sql.vizql.validator import Validation, validate


class VizqlState(TypedDict):
    """The graph's state; the first seven are the specification's, and every value is JSON but for blobs among rows."""

    query_draft: Any  # the request as JSON; the model's text where that is no JSON
    query_version: int  # 0: not built; 1: built; 2, 3, 4: refined
    is_valid: bool
    validation_errors: list[str]  # of the validation, or of the execution
    validation_suggestions: list[str]
    error: str | None  # what the error handler says
    failure: str | None  # "<where>: <what>" when the episode cannot go on
    unread: str  # a reply of the refiner that held no query
    execution_result: dict[str, Any] | None
    finish: str
    answer: int | None  # the attempt that is the answer
    attempts: Annotated[list[dict[str, Any]], operator.add]  # version, query, errors, stage, sql
    trace: Annotated[list[dict[str, Any]], operator.add]
    decision_log: Annotated[list[dict[str, Any]], operator.add]


@dataclass(frozen=True)
class Context:
    """The runtime context: the task, the data source, and what of both the model is shown."""

    task: Task
    source: DataSource
    fields: Sequence[FieldMetadata]
    schema: str
    question: str
    grammar: Grammar | None
    examples: Sequence[tuple[str, str]]  # few-shot (question, query as JSON)

    def check(self, draft: Any) -> Validation:
        """The validation of a draft against the data source and its database."""
        return validate(draft, self.source, self.task.config.vizql, self.task.resources.database)


@dataclass
class Work(State):
    """The work of one visit of a node: trace and decision log go on where the graph's end."""

    context: Context | None = None

    @property
    def here(self) -> Context:
        assert self.context is not None
        return self.context


def work_of(state: Mapping[str, Any], context: Context) -> Work:
    """The work of a visit."""
    return Work(context.task, trace=list(state["trace"]), decision_log=list(state["decision_log"]), context=context)


def initial_state() -> VizqlState:
    """The state before the first node."""
    return VizqlState(
        query_draft=None,
        query_version=0,
        is_valid=False,
        validation_errors=[],
        validation_suggestions=[],
        error=None,
        failure=None,
        unread="",
        execution_result=None,
        finish="",
        answer=None,
        attempts=[],
        trace=[],
        decision_log=[],
    )
