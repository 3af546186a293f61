"""The ten tools of the loop (specification, section 3): ``(state, args) -> observation``.

A tool reads the shared ``State`` and may ignore the model's arguments. It computes an observation; what an observation
*does* to the loop (pending repairs, voided validations) is written in ``react.py``. Users add a tool by passing
``{"name": function}`` as ``Resources.tools`` (docs/adding/tool.md); one with the name of a built-in tool replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nl2sql.agents import prompts, react_plus, repairing
from nl2sql.agents.checks import constraints
from nl2sql.agents.record import EpisodeError, blaming_tool, json_tree
from nl2sql.agents.setup import link
from nl2sql.agents.task import State
from nl2sql.agents.writing import sql_messages, write_sql
from nl2sql.databases import validation
from nl2sql.databases.schema import schema_to_dict
from nl2sql.interfaces import Tool

KEPT_ROWS = 20  # of a result in an observation, and so in the trace


def get_schema(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """The database's tables, columns and foreign keys as a dict."""
    return schema_to_dict(state.task.schema)


def link_schema(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Schema text of the (at most six) tables that matter for the question [17]; all of it when linking is off."""
    return link(state.task)


def extract_constraints(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """What the question demands: agg, needs_group_by, needs_order_by, limit, distinct."""
    return constraints.extract_constraints(state.task.question.text)


def generate_sql(state: State, args: Mapping[str, Any]) -> str:
    """Raw SQL text from the model, for the question under the focused schema and the constraints."""
    task = state.task
    messages = sql_messages(task, state.constraints)
    return write_sql(task, messages, task.config.react.max_new_tokens, sampling=task.sampling())[0]


def repair_sql(state: State, args: Mapping[str, Any]) -> str:
    """Raw SQL text from the model, given the failed query and its error [2]."""
    task = state.task
    error = state.pending_repair_error or state.last_error or "the query may be wrong"
    if other := repairing.fixed(state, error) or react_plus.another(state):  # repair.deterministic, repair_samples
        return other
    messages = repairing.messages(state, state.last_sql or "", error) or prompts.repair_messages(
        task.nlq, state.last_sql or "(none)", error, task.schema_text_focus, task.config.prompts
    )
    return repairing.written(state, messages)


def validate_sql(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{valid, reason}``: form, tables and columns of the current SQL, before it is executed."""
    react, database = state.task.config.react, state.task.resources.database
    if not react.validation_gate:
        return {"valid": True, "reason": "gate_off"}
    asked = database if react.explain or database.dialect != "sqlite" else None  # react_plus
    verdict = validation.validate_sql(state.last_sql or "", state.task.schema, asked)
    if not (react.suggestions and verdict["suggestions"]):  # react_plus
        del verdict["suggestions"]
    return verdict


def validate_constraints(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{valid, reason}``: does the current SQL have the structure that the question demands? [13]"""
    if not state.task.config.react.constraints_gate:
        return {"valid": True, "reason": "gate_off"}
    return constraints.validate_constraints(state.last_sql or "", state.constraints or {}, state.task.schema)


def run_sql(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{success, rows, ...}`` or ``{success: False, error}`` of executing the current SQL, read-only and bounded."""
    sql = state.last_sql or ""
    result = state.task.result_of(sql)
    if not result.success:
        return {"success": False, "error": result.error, "error_kind": result.error_kind, "sql": sql}
    return {
        "success": True,
        "sql": sql,
        "columns": list(result.columns),
        "rows": [list(row) for row in result.rows[:KEPT_ROWS]],
        "row_count": len(result.rows),
        "truncated": result.truncated,
    }


def get_table_samples(state: State, args: Mapping[str, Any]) -> Any:
    """The first rows of the table that the arguments name, long values cut."""
    table, n = args.get("table"), args.get("n", 3)
    if not isinstance(table, str) or state.task.schema.table(table) is None:
        names = ", ".join(t.name for t in state.task.schema.tables[:20])
        return {"error": f"unknown_table:{table}", "tables": names}
    wanted = n if isinstance(n, int) and not isinstance(n, bool) else 3
    return prompts.samples_text(state.task.resources.database.sample(table, max(1, min(wanted, 10))))


def finish(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """The terminal container: the last run's rows (as text), the SQL that gave them, and where it came from."""
    run = state.last_run or {}
    return {
        "answer": prompts.observation_text(run.get("rows", []), 500),
        "sql": run.get("sql") or "",
        "provenance": {"row_count": run.get("row_count"), "constraints": state.constraints},
    }


TOOLS: dict[str, Tool] = {
    tool.__name__: tool
    for tool in (
        *(get_schema, link_schema, extract_constraints, generate_sql, validate_sql),
        *(validate_constraints, run_sql, repair_sql, get_table_samples, finish),
    )
}
RETURNS = {  # the keys of an observation that the loop reads, whoever wrote the tool; () for any mapping
    "link_schema": ("schema_text",),
    "extract_constraints": (),
    "validate_sql": ("valid", "reason"),
    "validate_constraints": ("valid", "reason"),
    "run_sql": ("success",),
}


def dispatch(state: State, action: str, args: Mapping[str, Any]) -> Any:
    """Run the tool. What it raises ends the episode, attributed to the tool, the database or the model."""
    function = {**TOOLS, **state.task.resources.tools}[action]
    with blaming_tool(action):
        observation = function(state, dict(args))  # a tool may take them out of its own copy
        if function is not TOOLS.get(action) and action not in RETURNS:
            observation = json_tree(observation)  # a copy that JSON can hold: the tool may change its own later
    if action == "extract_constraints" and not isinstance(observation, Mapping):
        raise EpisodeError("tool", f"{action}: its observation is no dict of constraints: {str(observation)[:100]}")
    missing = [k for k in RETURNS.get(action, ()) if not isinstance(observation, Mapping) or k not in observation]
    if missing:
        raise EpisodeError("tool", f"{action}: its observation lacks {', '.join(missing)}: {str(observation)[:100]}")
    return observation
