"""The state that flows through the graph, plain data, and the graph's five nodes and two routes.

A node is a ``Step``: it reads the graph's state, works with the tools' ``State`` (whose trace and decision log grow as
in the loop) and returns an update. Nodes do not know LangGraph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

from nl2sql.agents import prompts, repairing
from nl2sql.agents.agent_tools import dispatch
from nl2sql.agents.react import after_candidate
from nl2sql.agents.reflection.judge import judge_attempt, quality_parts, quality_score
from nl2sql.agents.task import State, Task
from nl2sql.agents.turns import failed
from nl2sql.repair.analyzer import engine_version
from nl2sql.sql.same import same_sql

# ---------------------------------------------------------------------------------------- the state
# ``Workspace`` is the other direction: the tools' own ``State``, filled from the graph's for the
# length of one node.


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


# ---------------------------------------------------------------------------------------- the nodes

Update: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[ReflectState, State], Update]
EMPTY_ATTEMPT: Update = {"sql_query": None, "execution_result": None, "validation_result": None}
ORDER = (  # what is missing -> what fills it
    ("schema", "get_schema"),
    ("sql_query", "generate_sql"),
    ("execution_result", "execute_sql"),
    ("validation_result", "validate_results"),
    ("reflection_result", "reflect"),
)


# --------------------------------------------------------------------------------------------- plan, and routing


def plan(state: ReflectState, work: State) -> Update:
    """The next action: whatever the state still lacks, in the specification's order."""
    missing = next((action for name, action in ORDER if state.get(name) is None), "complete")
    exhausted = missing == "generate_sql" and state["iteration"] >= state["max_iterations"]
    return {"next_action": "complete" if state["failure"] or exhausted else missing}


def should_execute_or_generate(state: ReflectState) -> str:
    """The node that plan leads to: generate_sql, reflect, complete, or execute_tools for everything else."""
    action = state["next_action"]
    return action if action in ("generate_sql", "reflect", "complete") else "execute_tools"


def should_refine(state: ReflectState) -> str:
    """The next node after reflect: ``refine`` while it is asked for and generations are left, else ``complete``."""
    asked = bool((state["reflection_result"] or {}).get("should_refine"))
    return "refine" if asked and state["iteration"] < state["max_iterations"] else "complete"


# ------------------------------------------------------------------------------------------------- execute_tools


def execute_tools(state: ReflectState, work: State) -> Update:
    """The tools behind the planned action."""
    return TOOL_STEPS[state["next_action"]](state, work)


def get_schema(state: ReflectState, work: State) -> Update:
    """The schema text of the linked tables, and what the question demands: what ``single_shot`` is shown as well."""
    linked = use(work, "link_schema")
    work.task.schema_text_focus = linked["schema_text"] or work.task.schema_text_full
    return {"schema": work.task.schema_text_focus, "constraints": use(work, "extract_constraints")}


def execute_sql(state: ReflectState, work: State) -> Update:
    """The loop's checks before a run, then the run. A query that cannot compile is not executed."""
    sql = state["sql_query"] or ""
    checked = use(work, "validate_sql")
    if checked["valid"] is not True:
        reason = str(checked["reason"])
        work.refuse(next_step(work) - 1, "validate_sql", sql, reason)
        kind, _, said = reason.partition(":")
        error = said if kind == "other" else reason
        return {"execution_result": {"success": False, "error": error, "error_kind": kind, "sql": sql}}
    structure = use(work, "validate_constraints")
    ran = dict(use(work, "run_sql"))
    if result := work.task.candidate(sql).result:
        ran["seconds"] = round(result.seconds, 3)
    return {"structure": dict(structure), "execution_result": ran}


def validate_results(state: ReflectState, work: State) -> Update:
    """Whether the result can be an answer: the structure that the question demands, its intent, and any rows."""
    ran, structure, reason = state["execution_result"] or {}, state["structure"] or {}, "ok"
    if not ran.get("success"):
        reason = "not_executed"
    elif structure.get("valid") is False:
        reason = str(structure.get("reason"))
    else:
        reason = work.task.intent_mismatch(state["sql_query"] or "") or "ok"
    verdict = {"is_valid": reason == "ok", "has_results": bool(ran.get("row_count")), "reason": reason}
    log(work, "validate_results", {}, verdict, "ok" if verdict["is_valid"] else reason)
    return {"validation_result": verdict}


TOOL_STEPS: dict[str, Step] = {
    "get_schema": get_schema,
    "execute_sql": execute_sql,
    "validate_results": validate_results,
}


# -------------------------------------------------------------------------------------------------- generate_sql


def generate_sql(state: ReflectState, work: State) -> Update:
    """One generation: the question, or a repair that is told what failed; then the guardrails.

    What the guardrails reject is a failed attempt like any other. The reflection on the attempt before ends here.
    """
    attempts = state["attempts"]
    action = "repair_sql" if attempts else "generate_sql"
    if attempts:
        work.last_sql = attempts[-1]["sql"] or None
        work.last_error = work.pending_repair_error = told(state, work.task)
    raw = str(dispatch(work, action, {}))
    step = next_step(work)
    observation = after_candidate(work, step, action, raw)
    work.record({"step": step, "action": action, "args": {}, "observation": observation})
    update: Update = {
        **EMPTY_ATTEMPT,
        "sql_query": observation.get("sql", ""),
        "raw_sql": raw,
        "structure": None,
        "reflection_result": None,
        "suggestions": [],
        "iteration": state["iteration"] + 1,
    }
    if failed(observation):
        rejected = {"success": False, "error": observation["error"], "error_kind": "clean_reject", "sql": ""}
        update["execution_result"] = rejected
    return update


def told(state: ReflectState, task: Task) -> str:
    """The last attempt's error; at guidance ``error`` with the failures before it, which higher levels show anyway."""
    last = state["attempts"][-1]
    before: list[dict[str, Any]] = []
    for attempt in state["attempts"]:
        if not any(same_sql(attempt["sql"], other["sql"]) for other in (last, *before)):
            before.append(attempt)
    if task.config.repair.guidance != "error" or not before:
        return str(last["error"])
    earlier = prompts.failed_before([(a["sql"], a["error"][: repairing.MAX_ERROR]) for a in before])
    return f"{last['error']}\n\n{earlier.rstrip()}"


# ------------------------------------------------------------------------------------------------------- reflect


def reflect(state: ReflectState, work: State) -> Update:
    """Judge the attempt; where another one is due, its update resets the three fields.

    The reflection itself stays until the next generation: the routing function, which runs after this, reads it.
    """
    task, config = work.task, work.task.config.reflect
    sql = state["sql_query"] or (state["raw_sql"] or "").strip()
    execution, validation = state["execution_result"] or {}, state["validation_result"]
    ran = execution.get("success") is True
    twin = next((a["iteration"] for a in state["attempts"] if same_sql(a["sql"], sql)), None)
    database = task.resources.database
    judged = judge_attempt(
        execution,
        validation,
        sql=sql,
        dialect=database.dialect,
        version=engine_version(database),
        schema=task.schema,
        refine_on=config.refine_on,
        slow_s=config.slow_s,
        repeats=twin,
    )
    parts = quality_parts(task.question.text, execution, validation or {})
    score = quality_score(parts)
    refine = judged.result["should_refine"] and state["iteration"] < state["max_iterations"]
    attempt = {
        "iteration": state["iteration"],
        "sql": sql,
        "raw_sql": state["raw_sql"] or "",
        "rejected": not state["sql_query"],
        "success": ran,
        "error": judged.error,
        "quality_score": score,
    }
    observation = {
        "reflection_result": judged.result,
        "quality_score": score,
        "quality_parts": parts,
        "suggestions": judged.suggestions,
        "severity": judged.severity,
    }
    if refine and ran:
        work.refuse(next_step(work), "reflection", sql, judged.error)
    if twin is not None:
        task.count("repeated_sql")
    reason = "ok" if judged.result["is_acceptable"] else judged.error
    log(work, "reflect", {"iteration": state["iteration"]}, observation, reason)
    update: Update = {
        "reflection_result": dict(judged.result),
        "quality_score": score,
        "quality_parts": parts,
        "suggestions": judged.suggestions,
        "attempts": [attempt],
    }
    return update | (EMPTY_ATTEMPT if refine else {})


# ------------------------------------------------------------------------------------------------------ complete


def complete(state: ReflectState, work: State) -> Update:
    """Settle the answer; with ``repair.learn`` the episode's repair goes into the corpus."""
    if work.task.config.repair.learn:
        repairing.remember(work)
    finish, sql = ending(state)
    return {"is_complete": True, "finish": finish, "sql_query": sql}


def ending(state: ReflectState) -> tuple[str, str]:
    """The end of the episode, and its SQL: the accepted attempt; else the best that ran; else the last."""
    accepted = (state["reflection_result"] or {}).get("is_acceptable") is True
    usable = [attempt for attempt in state["attempts"] if not attempt["rejected"]]
    ran = [attempt for attempt in usable if attempt["success"]]
    if accepted and usable:
        finish, sql = "finish", usable[-1]["sql"]
    elif ran:
        best = max(ran, key=lambda attempt: (attempt["quality_score"], attempt["iteration"]))
        finish, sql = "best_so_far", best["sql"]
    else:
        sql = usable[-1]["sql"] if usable else state["sql_query"] or ""
        finish = "last_sql" if sql else "empty"
    return ("error" if state["failure"] else finish), sql


# ------------------------------------------------------------------------------------------------------- records


def use(work: State, action: str) -> Any:
    """One of the loop's tools, dispatched and recorded."""
    observation = dispatch(work, action, {})
    bad = failed(observation) or observation.get("valid") is False
    reason = str(observation.get("error") or observation.get("reason") or "failed") if bad else "ok"
    log(work, action, {}, observation, reason)
    return observation


def log(work: State, action: str, args: Mapping[str, Any], observation: Any, reason: str) -> None:
    """Append a trace record and a decision; ``reason`` is ``ok`` for what was accepted."""
    step = next_step(work)
    work.decide(step, action, reason, "accept" if reason == "ok" else "reject", {})
    work.record({"step": step, "action": action, "args": dict(args), "observation": observation})


def next_step(work: State) -> int:
    return int(work.trace[-1]["step"]) + 1 if work.trace else 0
