"""The state that flows through the graph, plain data, and the context: what a node may touch and the model reads.

>>> fields = [{"fieldCaption": "Region"}, {"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL"}]
>>> source_text(DataSource.model_validate({"fields": fields}).fields, DataSource.model_validate({"fields": fields}))
'dimensions: Region\\nmeasures: Sales'

The text leaves out descriptions, hierarchies, parameters and formulas.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from nl2sql.agents import prompts
from nl2sql.agents.task import State, Task
from nl2sql.interfaces import Grammar
from nl2sql.vizql.infer import infer
from nl2sql.vizql.source import DataSource, FieldMetadata, read_source
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


# ------------------------------------------------------------------------------ the data source as a model reads it

_TYPES_SHOWN = {"DATE": "date", "DATETIME": "time", "BOOLEAN": "true or false", "INTEGER": "number", "REAL": "number"}
_SHORTEST = 8  # fields that are shown however small the budget is


def source_of(task: Task) -> DataSource:
    """The data source that ``vizql.source`` names, else the database's own, else one that is inferred from it.

    Raises UsageError for a file that is no data source, and DatabaseError.
    """
    if named := task.config.vizql.source:
        return read_source(Path(named))
    own: DataSource | None = getattr(task.resources.database, "source", None)
    return own or infer(task.resources.database)


def linked_fields(task: Task, source: DataSource) -> tuple[FieldMetadata, ...]:
    """The fields of the tables that the question is about, as ``link_schema`` chooses them; hidden ones are none."""
    tables = {table.name.lower() for table in task.linked(task.tables_kept).tables}
    shown = tuple(field for field in source.fields if not field.hidden)
    linked = tuple(field for field in shown if source.table_of(field).lower() in tables)
    beside = tuple(field for field in shown if not source.table_of(field))  # calculations belong to no table
    return linked + beside if linked else shown


def source_text(fields: Sequence[FieldMetadata], source: DataSource) -> str:
    """One block per logical table: its dimensions and measures by caption; then what joins the tables."""
    blocks: list[str] = []
    for table_id in dict.fromkeys(field.logicalTableId for field in fields):
        table, inside = source.table(table_id), [field for field in fields if field.logicalTableId == table_id]
        lines = [f"{table.caption}:"] if table else []
        for role, measured in (("dimensions", False), ("measures", True)):
            names = [_shown(field) for field in inside if (field.fieldRole == "MEASURE") == measured]
            lines += [f"{role}: {', '.join(names)}"] if names else []
        blocks.append("\n  ".join(lines) if table else "\n".join(lines))
    return "\n".join(blocks)


def within_budget(task: Task, fields: Sequence[FieldMetadata], source: DataSource) -> str:
    """The text of as many fields as ``schema_text.max_tokens`` and the model's window leave room for."""
    model, shown = task.resources.model, list(fields)
    budget = min(task.config.schema_text.max_tokens, model.context_window // 4)
    while True:
        text = source_text(shown, source)
        used = model.count_tokens([{"role": "user", "content": text}])
        if used <= budget or len(shown) <= _SHORTEST:
            return text
        shown = shown[: max(_SHORTEST, len(shown) * budget // used)]


def asked(task: Task, source: DataSource) -> str:
    """The question with its evidence, the values of the data source that it names, and the query it speaks of."""
    config, question = task.config.schema_text, task.question
    lines = [prompts.question_text(question.text.strip(), question.evidence if config.evidence else "")]
    if values := list(_values(task, source)):
        lines.append("Values: " + ", ".join(values))
    if question.previous_sql:
        lines.append(f"Previous query: {question.previous_sql}")
    return "\n".join(lines)


def _values(task: Task, source: DataSource) -> Iterable[str]:
    for match in task.values:
        for field in source.fields:
            if source.table_of(field).lower() == match.table.lower() and field.column.lower() == match.column.lower():
                yield f"{field.fieldCaption} = {match.value!r}"


def _shown(field: FieldMetadata) -> str:
    kind = _TYPES_SHOWN.get(field.dataType, "") if field.fieldRole != "MEASURE" else ""
    return f"{field.fieldCaption} ({kind})" if kind else field.fieldCaption
