"""Reflection and retry: an attempt is executed, judged, and made again with what went wrong (docs/reflection.md).

``reflect`` is the controller, ``stream`` the same with an event for every node. Both work on the loop's tools, prompts,
guardrails and runner; what is worth another attempt is in ``judge``. A node reads the graph's state, works with the
tools' ``State`` (whose trace and decision log grow as in the loop) and returns an update; it does not know LangGraph.

Not covered: a wrong answer that runs and looks sound is accepted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict, cast

from nl2sql.agents import prompts, repairing
from nl2sql.agents.agent_tools import dispatch
from nl2sql.agents.react import after_candidate
from nl2sql.agents.record import Episode, EpisodeError, failed, make_episode
from nl2sql.agents.reflection.judge import judge_attempt, quality_parts, quality_score
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State, Task
from nl2sql.agents.writing import intent_mismatch
from nl2sql.config import Config
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Question, Resources
from nl2sql.machine import install_command
from nl2sql.repair.analyzer import engine_version
from nl2sql.sql.same import same_sql

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["NodeEvent", "check_installed", "reflect", "stream"]

# ------------------------------------------------------------------------------------------------------- the state


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


def initial_state(question: str, max_iterations: int) -> ReflectState:
    lists: dict[str, Any] = {name: [] for name in ("suggestions", "attempts", "trace", "decision_log")}
    blank = dict.fromkeys(ReflectState.__annotations__) | lists
    about = {"question": question, "max_iterations": max_iterations, "iteration": 0, "quality_parts": {}}
    return cast(ReflectState, {**blank, **about, "next_action": "", "is_complete": False, "finish": ""})


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


# ------------------------------------------------------------------------------------------------------- the nodes

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
        kind, _, message = reason.partition(":")
        error = message if kind == "other" else reason
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
        reason = intent_mismatch(work.task, state["sql_query"] or "") or "ok"
    verdict = {"is_valid": reason == "ok", "has_results": bool(ran.get("row_count")), "reason": reason}
    log(work, "validate_results", {}, verdict, "ok" if verdict["is_valid"] else reason)
    return {"validation_result": verdict}


TOOL_STEPS: dict[str, Step] = {
    "get_schema": get_schema,
    "execute_sql": execute_sql,
    "validate_results": validate_results,
}


def generate_sql(state: ReflectState, work: State) -> Update:
    """One generation: the question, or a repair that is told what failed; then the guardrails.

    What the guardrails reject is a failed attempt like any other. The reflection on the attempt before ends here.
    """
    attempts = state["attempts"]
    action = "repair_sql" if attempts else "generate_sql"
    if attempts:
        work.last_sql = attempts[-1]["sql"] or None
        work.last_error = work.pending_repair_error = error_text(state, work.task)
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


def error_text(state: ReflectState, task: Task) -> str:
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


def reflect_node(state: ReflectState, work: State) -> Update:
    """Judge the attempt; where another one is due, its update resets the three fields.

    The reflection itself stays until the next generation: the routing function, which runs after this, reads it.
    """
    task, config = work.task, work.task.config.reflect
    sql = state["sql_query"] or (state["raw_sql"] or "").strip()
    execution, validation = state["execution_result"] or {}, state["validation_result"]
    twin = next((a["iteration"] for a in state["attempts"] if same_sql(a["sql"], sql)), None)
    database = task.resources.database
    judged = judge_attempt(
        execution,
        validation,
        sql=sql,
        dialect=database.dialect,
        version=engine_version(database),
        schema=task.schema,
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
        "error": judged.error,
    }
    observation = {
        "reflection_result": dict(judged.result),
        "quality_score": score,
        "quality_parts": parts,
        "suggestions": judged.suggestions,
        "severity": judged.severity,
    }
    if twin is not None:
        task.count("repeated_sql")
    reason = "ok" if judged.result["is_acceptable"] else judged.error
    log(work, "reflect", {"iteration": state["iteration"]}, observation, reason)
    update: Update = {name: value for name, value in observation.items() if name != "severity"}
    return update | {"attempts": [attempt]} | (EMPTY_ATTEMPT if refine else {})


def complete(state: ReflectState, work: State) -> Update:
    """Settle the answer; with ``repair.learn`` the episode's repair goes into the corpus."""
    if work.task.config.repair.learn:
        repairing.remember(work)
    finish, sql = ending(state)
    return {"is_complete": True, "finish": finish, "sql_query": sql}


def ending(state: ReflectState) -> tuple[str, str]:
    """The end of the episode, and its SQL: the accepted attempt, else the last."""
    accepted = (state["reflection_result"] or {}).get("is_acceptable") is True
    usable = [attempt for attempt in state["attempts"] if not attempt["rejected"]]
    sql = usable[-1]["sql"] if usable else state["sql_query"] or ""
    finish = "finish" if accepted and usable else "last_sql" if sql else "empty"
    return ("error" if state["failure"] else finish), sql


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


NODES: dict[str, Step] = {
    "plan": plan,
    "execute_tools": execute_tools,
    "generate_sql": generate_sql,
    "reflect": reflect_node,
    "complete": complete,
}

# --------------------------------------------------------------------------------- the state machine on LangGraph

# LangGraph counts the nodes that it visits, and ends an episode at a limit: these are the most of one in order.
ATTEMPT_VISITS = 8  # plan, generate_sql, plan, execute_tools, plan, execute_tools, plan, reflect
OTHER_VISITS = 6  # plan and execute_tools before the first, complete behind the last, and a plan behind a failure


def recursion_limit(max_iterations: int) -> int:
    """The most nodes that an episode may visit: LangGraph's own default would let a mistake go round 10,000 times."""
    return ATTEMPT_VISITS * max_iterations + OTHER_VISITS


def as_node(step: Step) -> Callable[..., dict[str, Any]]:
    """``step`` as LangGraph calls it. What it adds to the trace and the decision log is added to the state's; a failure
    of the model, a tool or the database becomes ``failure`` of the state."""

    def visit(state: Any, runtime: Any) -> dict[str, Any]:
        work = workspace(state, runtime.context)
        try:
            update = step(state, work)
        except EpisodeError as failed:
            update = {"failure": str(failed)}
        except DatabaseError as error:  # outside of a tool
            update = {"failure": f"database: {error}"}
        logged = {name: getattr(work, name)[len(state[name]) :] for name in ("trace", "decision_log")}
        return update | logged

    return visit


@functools.cache
def compiled() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph, built once; any number of threads may run it at once. Raises UsageError where LangGraph is not
    installed."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(ReflectState, context_schema=Task)
    for name, node in NODES.items():
        graph.add_node(name, as_node(node))
    graph.add_edge(START, "plan")
    routes = ("execute_tools", "generate_sql", "reflect", "complete")
    graph.add_conditional_edges("plan", should_execute_or_generate, {name: name for name in routes})
    graph.add_edge("execute_tools", "plan")
    graph.add_edge("generate_sql", "plan")
    graph.add_conditional_edges("reflect", should_refine, {"refine": "plan", "complete": "complete"})
    graph.add_edge("complete", END)
    return graph.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    try:
        import langgraph.graph  # noqa: F401
    except ImportError as error:
        needs = f"controller reflect needs LangGraph ({error})"
        raise UsageError(f"{needs}; install it: {install_command('graph')}") from None


# ----------------------------------------------------------------------------------- the controller


@dataclass(frozen=True)
class NodeEvent:
    """The change of the state by one visit of a node; the last one, of ``complete``, carries the episode."""

    node: str
    update: dict[str, Any]
    episode: Episode | None = None


def reflect(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer with up to ``config.reflect.max_iterations`` generations, each judged before the next.

    Raises UsageError and DatabaseError as the loop does, and UsageError where LangGraph is not installed.
    """
    *_, last = stream(question, resources, config)
    assert last.episode is not None
    return last.episode


def stream(question: Question, resources: Resources, config: Config) -> Iterator[NodeEvent]:
    """The same as events, one for each visit of a node."""
    task = open_task(question, resources, config)
    state = initial_state(task.nlq, config.reflect.max_iterations)
    settings: Any = {"recursion_limit": recursion_limit(state["max_iterations"])}
    values: dict[str, Any] = {}
    last: dict[str, Any] = {}
    visits: Any = compiled().stream(state, settings, context=task, stream_mode=["updates", "values"])
    for mode, content in visits:
        if mode == "values":
            values = content
            continue
        for node, update in content.items():
            if node == "complete":
                last = update
            else:
                yield NodeEvent(node, update)
    yield NodeEvent("complete", last, _episode(task, values))


def _episode(task: Task, values: dict[str, Any]) -> Episode:
    """The Episode of the final state: its SQL with the rows, and all that was recorded."""
    sql = values["sql_query"] or ""
    asked: list[dict[str, str]] = next((call["messages"] for call in task.calls if call["messages"]), [])
    last = {sql: values["raw_sql"] or ""} if sql else {}  # no attempt where the reflection on it failed
    raw = (last | {attempt["sql"]: attempt["raw_sql"] for attempt in values["attempts"]}).get(sql, "")
    return make_episode(
        task,
        "reflect",
        sql,
        raw_sql=raw,
        finish=values["finish"],
        error=values["failure"],
        why_none=f"model: {values['attempts'][-1]['error']}" if values["attempts"] else "controller: no SQL",
        steps=len({record["step"] for record in values["trace"]}),
        trace=values["trace"],
        decision_log=values["decision_log"],
        messages=asked,
        transcript=raw,
        flags={"iterations": values["iteration"], "quality_score": values["quality_score"]},
    )
