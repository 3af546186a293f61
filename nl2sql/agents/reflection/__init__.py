"""Reflection and retry: an attempt is executed, judged, and made again with what went wrong (docs/reflection.md).

``reflect`` is the controller, ``stream`` the same with an event for every node. Both work on the loop's tools, prompts,
guardrails and runner; the nodes are in ``nodes``, what is worth another attempt in ``judge``.

Not covered: a wrong answer that runs and looks sound is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.reflection import nodes
from nl2sql.agents.reflection.nodes import Context, ReflectState, initial_state, workspace
from nl2sql.agents.state_graph import as_node, check_langgraph
from nl2sql.agents.task import State, Task
from nl2sql.config import Config
from nl2sql.interfaces import Question, Resources

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["NodeEvent", "check_installed", "reflect", "stream"]


# ------------------------------------------------------------------- the state machine on LangGraph

# LangGraph counts the nodes that it visits, and ends an episode at a limit: these are the most of one in order.
ATTEMPT_VISITS = 8  # plan, generate_sql, plan, execute_tools, plan, execute_tools, plan, reflect
OTHER_VISITS = 6  # plan and execute_tools before the first, complete behind the last, and a plan behind a failure


def recursion_limit(max_iterations: int) -> int:
    """The most nodes that an episode may visit: LangGraph's own default would let a mistake go round 10,000 times."""
    return ATTEMPT_VISITS * max_iterations + OTHER_VISITS


@functools.cache
def compiled() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph, built once; any number of threads may run it at once. Raises UsageError where LangGraph is not
    installed."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(ReflectState, context_schema=Context)
    for name in ("plan", "execute_tools", "generate_sql", "reflect", "complete"):
        graph.add_node(name, as_node(getattr(nodes, name), _work))
    graph.add_edge(START, "plan")
    routes = ("execute_tools", "generate_sql", "reflect", "complete")
    graph.add_conditional_edges("plan", nodes.should_execute_or_generate, {name: name for name in routes})
    graph.add_edge("execute_tools", "plan")
    graph.add_edge("generate_sql", "plan")
    graph.add_conditional_edges("reflect", nodes.should_refine, {"refine": "plan", "complete": "complete"})
    graph.add_edge("complete", END)
    return graph.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    check_langgraph("reflect")


def _work(state: ReflectState, context: Context) -> State:
    return workspace(state, context.task)


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
    visits: Any = compiled().stream(state, settings, context=Context(task), stream_mode=["updates", "values"])
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
    return task.episode(
        "reflect",
        sql,
        raw_sql=raw,
        finish=values["finish"],
        error=values["failure"],
        why_none=_why_none(values),
        steps=len({record["step"] for record in values["trace"]}),
        trace=values["trace"],
        decision_log=values["decision_log"],
        messages=asked,
        transcript=raw,
        flags={"iterations": values["iteration"], "quality_score": values["quality_score"]},
    )


def _why_none(values: dict[str, Any]) -> str:
    return f"model: {values['attempts'][-1]['error']}" if values["attempts"] else "controller: no SQL"
